"""Stage: predict the unlabelled data of `predict` with the selected model, each row once, on any number of processes."""

import os
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.extras.prediction.settings import Inputs
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import read_manifest, verify
from snaketrain.runtime.rank_logs import report_failure, start_rank
from snaketrain.runtime.ranks import Ranks, leave


def arguments() -> Namespace:
    parser = stages.parser_of_inference("predict_inputs", __doc__)
    parser.add_argument(
        "--inputs", required=True, nargs="+", metavar="MANIFEST", help="manifests of the fetched inputs, in the order of their names"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        help="the most rows at a time, over all processes together (default: on each as in evaluations during training)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU cores that tokenise (default: %(default)s)")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    start_rank()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # transformers would warn of missing weights, which are loaded later
    given = job.given.settings["predict"]
    inputs = {name: Inputs.model_validate(given[name]) for name in sorted(given)}
    selection, model = read_manifest(args.selection), read_manifest(args.model) if args.model else None
    fetched = dict(zip(inputs, map(read_manifest, args.inputs), strict=True))
    if Ranks.of_environment().rank == 0:
        verify(*filter(None, (selection, model, *fetched.values())))

    from snaketrain.evaluation.trained_model import TrainedModel
    from snaketrain.extras.prediction.predictor import Predictor, load_state
    from snaketrain.training.building import start_strategy
    from snaketrain.training.hangs import StallWatchdog

    folder = selection.folder / "model"
    trained = TrainedModel.read(folder)
    strategy = start_strategy(trained.train, args.device, trained.precision)
    watch = StallWatchdog(job.folder / "stalled", strategy, args.stall_seconds)
    state = load_state(trained, folder, model.model_files if model else None, strategy)
    predictor = Predictor(trained, folder, state, args.batch_size, args.threads, watch.beat)
    files = []
    for name, each in inputs.items():
        paths = [fetched[name].folder / file for file in fetched[name].files]
        files += predictor.predict_files(each, paths, fetched[name].folder / "files", job.folder, name)
    strategy.finish()
    watch.close()
    if strategy.rank == 0:
        contents = {name: manifest.content for name, manifest in fetched.items()}
        job.finish({"selection": selection.content} | contents, files, {"run": trained.run}, started)


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report_failure, "prediction", folder), leave)
