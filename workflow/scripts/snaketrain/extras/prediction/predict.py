"""Predict unlabelled data by hand with a trained model: `snaketrain predict --model results/runs/x/selection/model --input new.jsonl`.

With torchrun in front of it, several processes share the work.
"""

import argparse
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.errors import problems_of
from snaketrain.config.schema import Data, Model, Source
from snaketrain.config.schema.evaluation import Generate
from snaketrain.data.fetching import describe, local_files
from snaketrain.extras.prediction.settings import ReadInputs, text_problems
from snaketrain.runtime import stages
from snaketrain.runtime.rank_logs import log_to, quiet_libraries
from snaketrain.runtime.ranks import leave

FORMATS = get_args(Data.model_fields["format"].annotation)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, metavar="FOLDER", help="the folder selection/model of a run, or a copy of it")
    parser.add_argument("--input", required=True, metavar="PATH", help="a file, a folder or a glob such as 'raw/*.jsonl'")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="PATH.parquet and PATH.csv are written, or replaced (default: NAME-predictions in the current folder, NAME being that of the input)",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        metavar="COLUMN",
        help="the columns of the text, or of the prompts or chats (default: those of the training data)",
    )
    parser.add_argument(
        "--id", metavar="COLUMN", help="a column that is copied to the predictions (default: the number of the row, from 0)"
    )
    parser.add_argument("--format", choices=FORMATS, help="format of the files (default: that of the training data)")
    parser.add_argument("--encoding", help="encoding of text files (default: that of the training data)")
    parser.add_argument("--columns", nargs="*", metavar="NAME", help="for CSV and TSV without a header line; without a NAME: there is one")
    parser.add_argument(
        "--generate",
        nargs="+",
        metavar="NAME=VALUE",
        help="how text is generated, such as max_new_tokens=64 num_beams=4: settings of evaluate.generate (default: those of the training)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        help="the most rows at a time, over all processes together (default: on each as in evaluations during training)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU cores that tokenise (default: %(default)s)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="where the model runs (default: %(default)s)")
    return parser.parse_args()


def predict(args: argparse.Namespace) -> None:
    quiet_libraries()
    log_to(None)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # transformers would warn of missing weights, which are loaded later
    from snaketrain.evaluation.trained_model import TrainedModel

    trained = TrainedModel.read(args.model)
    if trained.data.by_class:
        raise SystemExit(
            f"--model: {args.model} was trained on a dataset class, and only files of text are predicted here. Load its weights in Python, as its "
            "README.md shows."
        )
    try:
        read = ReadInputs(
            text=args.text, id=args.id, format=args.format, encoding=args.encoding, columns=args.columns, generate=generation(args.generate)
        )
        found = local_files(local_source(args.input))
        if problems := text_problems("--text", read, trained.data):
            raise ValueError(problems[0])
    except ValueError as error:
        raise SystemExit(str(error)) from None
    for line in found.told():
        print(f"--input: {line}", flush=True)
    files, output = list(found.files.values()), args.output or default_output(args.input)

    from snaketrain.extras.prediction.predictor import Predictor, load_state
    from snaketrain.training.building import start_strategy

    strategy = start_strategy(trained.train, args.device, trained.precision)
    state = load_state(trained, args.model, built_from(args.model, trained.model), strategy)
    predictor = Predictor(trained, args.model, state, args.batch_size, args.threads)
    predictor.predict_files(read, files, Path(os.path.commonpath([file.parent for file in files])), output.parent, output.name)
    strategy.finish()


def local_source(given: str) -> Source:
    source = Source(path=given)
    if source.is_remote:
        raise ValueError(
            f"--input: {describe(source)} is not on this machine. Copy its files here, or let the workflow predict: `predict` in the configuration."
        )
    return source


def default_output(given: str) -> Path:
    """Named after the input, `new-all-predictions` for `raw/new-*.jsonl`."""
    name = re.sub(r"(\[[^]]*]|[*?])+", "all", Path(os.path.abspath(given)).stem)
    return Path(f"{name}-predictions")


def generation(words: list[str] | None) -> Generate | None:
    if words is None:
        return None
    given = dict(word.partition("=")[::2] for word in words)
    if errors := problems_of(Generate, given, "--generate"):
        raise ValueError("\n".join(errors))
    return Generate.model_validate(given)


def built_from(folder: Path, model: Model) -> Path | None:
    """Where the model is built from: a transformers model from its own folder, whatever its training started from."""
    if (folder / "config.json").is_file():
        return folder
    if model.source is None:
        return None
    raise SystemExit(
        f"{folder}: has no config.json, and model.source was {model.source.model_dump(exclude_defaults=True)}, which is not here. "
        "Let the workflow predict: give the data as `predict` in the configuration."
    )


def main() -> None:
    args = arguments()
    stages.run(partial(predict, args), args.output.parent if args.output else Path(), leave=leave)


if __name__ == "__main__":
    main()
