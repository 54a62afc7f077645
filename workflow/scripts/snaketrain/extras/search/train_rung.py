"""Train one run as far as a rung of its search, and predict the development set there, for the decision whether it continues.

It works in the folder of the run's training, which a later rung or `train_model` continues.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where train_model lies

import train_model
from snaketrain.config.schema import Evaluate
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import read_manifest
from snaketrain.runtime.ranks import Ranks, leave
from snaketrain.runtime.stages import JobSettings

if TYPE_CHECKING:
    from snaketrain.training.trainer import Trainer


def arguments() -> argparse.Namespace:
    parser = train_model.parser()
    parser.description = __doc__
    parser.add_argument(
        "--rung-output", required=True, type=Path, metavar="FOLDER/manifest.json", help="written last, beside the predictions"
    )
    parser.add_argument(
        "--rung-settings",
        required=True,
        type=lambda path: JobSettings.read(path, "train_rung"),
        metavar="FILE.json",
        help="those of --settings, and the share",
    )
    parser.add_argument("--rung-name", required=True, metavar="RUN/RUNG", help="name of the rung")
    parser.add_argument("--share", required=True, type=float, help="share of all steps at which the rung is")
    return parser.parse_args()


def main(args: argparse.Namespace) -> int:
    started, rung = time.time(), stages.Job(args.rung_output, args.rung_settings)
    inputs = {role: read_manifest(path).content for role in ("data", "model", "initial") if (path := getattr(args, role))}
    try:
        training = train_model.train(args, args.share)
    except SystemExit as error:
        from snaketrain.training.step import Diverged

        if not isinstance(error, Diverged):
            raise
        # no reason to hold up the others: this run is not among the best
        train_model.report(args.output.parent, error)
        if Ranks.of_environment().rank == 0:
            rung.finish(inputs, [], {"run": args.run_name, "step": None, "error": str(error.code)}, started)
        return 0
    trainer = training.trainer
    if not (trainer.paused or trainer.complete):
        return train_model.record_end(args.run_name, training)
    step = write_predictions(training, rung.folder, args.run_name)
    train_model.record_end(args.run_name, training, "stopped at a rung of its search")
    if trainer.state.rank == 0:
        facts = {"run": args.run_name, "step": step, "rung_step": min(trainer.options.until or step, step), "metrics": training.metrics}
        rung.finish(inputs, [path.name for path in sorted(rung.folder.glob("dev_*"))], facts, started)
    return 0


def write_predictions(training: train_model.Training, folder: Path, run: str) -> int:
    """All ranks take part. Returns the step whose weights predict."""
    from snaketrain.evaluation.predicting import predict
    from snaketrain.evaluation.results import Measured, write_results
    from snaketrain.evaluation.scoring import ScoredSet
    from snaketrain.training.weight_average import averages_in_place

    trainer = training.trainer
    state, dev, facts = trainer.state, trainer.data.dev, trainer.data.facts
    step = load_weights(trainer)
    with averages_in_place(state):
        limits, loader = trainer.evaluation_limits(), trainer.options.loader
        metrics, rows = predict(state, dev, *limits, f"{run}: dev", measured=True, loader=loader)
    if state.rank == 0:
        prepared, shown = ScoredSet("dev", training.data, "dev"), Evaluate()
        measured = Measured(examples=len(dev), metrics=metrics, baselines={})
        write_results(folder, run, "dev", measured, rows, prepared.table(len(dev)), facts, shown.confidence, shown.bins, prepared.files)
    return step


def load_weights(trainer: "Trainer") -> int:
    """The rung's step; of a training that went past it before it was searched, the first step after it whose weights are kept."""
    state, checkpoints, until = trainer.state, trainer.checkpoints, trainer.options.until
    if until is None or state.step <= until:
        return state.step
    kept = [int(path.name.removeprefix("step-")) for path in checkpoints.found()] if state.rank == 0 else []
    step: int = state.strategy.all_gather_object(min((each for each in kept if each >= until), default=state.step))[0]
    checkpoints.load(state, step, {"task": state.task})
    if state.rank == 0:
        print(
            f"warning: the training was already at step {state.step}; compared are its weights at step {step} instead of {until}",
            flush=True,
        )
    return step


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(train_model.report, folder), leave)
