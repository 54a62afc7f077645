"""Evaluate the selected checkpoint, or all kept checkpoints, on one of `evaluation_sets`, on any number of processes."""

import shutil
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.evaluation.scoring import ScoredSet, Scoring
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import Manifest, read_manifest, verify, write_json
from snaketrain.runtime.model_card import write_card
from snaketrain.runtime.rank_logs import report_failure, start_rank
from snaketrain.runtime.ranks import Ranks, leave
from snaketrain.training.checkpoints.model_folder import export, merge, weights_in


class KeptCheckpoint(NamedTuple):
    step: int
    path: str  # relative to the training's folder
    weights: dict[str, str]  # what identifies them: digests by file


def kept_checkpoints(training: Manifest) -> list[KeptCheckpoint]:
    """The checkpoints of a finished training that are still there, in the order of their steps."""
    paths = sorted({str(Path(name).parent) for name in training.files if name.startswith("checkpoints/step-") and name.count("/") == 2})
    steps = {path: int(path.rpartition("-")[2]) for path in paths if (training.folder / path).is_dir()}
    return [KeptCheckpoint(step, path, weights_in(training, path)) for path, step in sorted(steps.items(), key=lambda item: item[1])]


def arguments() -> Namespace:
    parser = stages.parser_of_evaluation("evaluate_set", __doc__)
    parser.add_argument("--set", required=True, metavar="MANIFEST", help="manifest of the prepared evaluation set")
    parser.add_argument("--set-name", required=True, help="name of the evaluation set")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    start_rank()
    training, selection, data, prepared = (read_manifest(path) for path in (args.training, args.selection, args.data, args.set))
    model = read_manifest(args.model) if args.model else None
    with_all = job.given.settings["set"]["checkpoints"] == "all"
    kept = kept_checkpoints(training) if with_all else []
    if Ranks.of_environment().rank == 0:
        verify(*filter(None, (selection, model, prepared)))
        verify(training, wanted=lambda name: name.startswith(tuple(f"{each.path}/" for each in kept)))
    scoring, each = Scoring(args, job.given, training, data, model), ScoredSet(args.set_name, prepared, "test")
    score_all(scoring, each, selection, kept)
    if Ranks.of_environment().rank > 0:  # rank 0 alone writes the results
        return
    files = scoring.write_results(selection.facts["weights"], each)
    (job.folder / "checkpoints.json").unlink(missing_ok=True)  # of another setting
    if with_all:
        measured = [{"step": one.step, "metrics": scoring.read(one.weights, each)[0]["metrics"]} for one in kept]
        write_json(job.folder / "checkpoints.json", {"set": each.name, "checkpoints": measured})
        files.append("checkpoints.json")
    inputs = {"selection": selection.content, "data": data.content, "set": prepared.content}
    inputs |= {"training": training.content} if with_all else {}
    splits = {each.name: prepared.facts["splits"][each.split]}
    job.finish(inputs, files, {"run": args.run_name, "set": each.name, "splits": splits}, started)
    scoring.keep_only(*((weights, each) for weights in (selection.facts["weights"], *(one.weights for one in kept))))
    write_card(training, data, selection)


def score_all(scoring: Scoring, each: ScoredSet, selection: Manifest, kept: list[KeptCheckpoint]) -> None:
    """The selected model and the kept checkpoints, as far as they have no scores yet."""
    selected = selection.facts["weights"]
    # decided before any is scored, so that all ranks decide the same
    with_selected = not scoring.stored(selected, each)
    missing = [one for one in kept if not scoring.stored(one.weights, each) and one.weights != selected]
    if with_selected:
        scoring.score(selection.folder / "model", selected, [each], scoring.args.run_name)
    for one in missing:
        score_checkpoint(scoring, each, one)
    if with_selected or missing:
        scoring.close()


def score_checkpoint(scoring: Scoring, each: ScoredSet, one: KeptCheckpoint) -> None:
    """Exported as a selected one would be, into a folder that is removed afterwards."""
    folder = Path(scoring.args.output).parent / ".checkpoint"
    if scoring.strategy.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        export([scoring.training.folder / one.path], scoring.training, scoring.data.folder / "tokenizer", folder / "model")
        if scoring.model.adapters and scoring.fetched:
            merge(scoring.training, scoring.data, scoring.fetched, folder)
    scoring.strategy.wait()
    scoring.score(folder / "model", one.weights, [each], f"{scoring.args.run_name} at step {one.step}")
    scoring.strategy.wait()
    if scoring.strategy.rank == 0:
        shutil.rmtree(folder)


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report_failure, "evaluation", folder), leave)
