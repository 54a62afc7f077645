"""Train one run to the end of its plan, resuming from its last checkpoint if there is one.

Every rank runs this script; rank 0 writes `--output` when the training is complete.
"""

import argparse
import logging
import os
import time
from collections.abc import Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema import Model, Train
from snaketrain.config.schema.of_extras import hooks
from snaketrain.runtime import stages
from snaketrain.runtime.journal import Clock, last_attempt
from snaketrain.runtime.manifests import read_manifest, verify
from snaketrain.runtime.ownership import check
from snaketrain.runtime.processes import Stopping
from snaketrain.runtime.provenance import place, seconds_alive
from snaketrain.runtime.rank_logs import keeps_files, log_to, report_failure, start_rank
from snaketrain.runtime.ranks import STOPPED_EARLY, Ranks, leave
from snaketrain.runtime.run_folder import loaded_so_far, record_failure, record_start, recorder_of_loaded, take_over
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.metric_names import mode_of, modes_of

if TYPE_CHECKING:
    from snaketrain.runtime.manifests import Manifest
    from snaketrain.tasks.base import Task
    from snaketrain.tasks.metric_names import Modes
    from snaketrain.training.callbacks import Callback
    from snaketrain.training.checkpoints.ranking import Selection
    from snaketrain.training.plan import Plan
    from snaketrain.training.trainer import Trainer


@dataclass(frozen=True)
class Attempt:
    """A start of a training, for `before_attempt(attempt)` of the extras: on rank 0, before the journal is open. It returns callbacks."""

    arguments: argparse.Namespace  # with those that the extras have added
    job: stages.Job
    data: "Manifest"
    inputs: dict[str, str]  # as those of Training
    task: "Task"
    plan: "Plan"
    selection: "Selection"
    execution: JsonObject
    until: int | None  # the last step to take now, from which another start continues


@dataclass(frozen=True)
class Training:
    """A training that has taken its steps, until its end or until it was stopped."""

    job: stages.Job
    data: "Manifest"
    inputs: dict[str, str]  # content digests of the manifests that were read, by role
    trainer: "Trainer"
    metrics: "Modes"
    stop: Stopping
    started: float


def arguments() -> argparse.Namespace:
    return parser().parse_args()


def parser() -> argparse.ArgumentParser:
    parser = stages.parser("train_model", __doc__)
    parser.add_argument("--run-name", required=True, help="name of the run")
    parser.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared data")
    parser.add_argument(
        "--model", nargs="?", metavar="MANIFEST", help="manifest of the fetched model; without it, the weights start at random"
    )
    parser.add_argument("--initial", nargs="?", metavar="MANIFEST", help="manifest of the fetched weights that model.initial_weights names")
    parser.add_argument(
        "--branch-steps",
        type=int,
        nargs="+",
        default=[],
        metavar="STEP",
        help="save at these steps, at which other trainings continue, and end at the last of them",
    )
    parser.add_argument("--device", default="auto", help="device to train on: auto, cpu or cuda (default: %(default)s)")
    parser.add_argument("--keep-best-by", metavar="METRIC", help="metric that ranks the checkpoints (default: the task's first metric)")
    parser.add_argument(
        "--keep-best-mode", choices=("max", "min"), help="needed if the metric does not declare whether higher or lower is better"
    )
    parser.add_argument(
        "--keep", type=int, default=2, help="how many of the best checkpoints to keep, besides the last (default: %(default)s)"
    )
    parser.add_argument(
        "--checkpoint-format",
        choices=("auto", "whole", "sharded"),
        default="auto",
        help="how checkpoints are stored (default: %(default)s)",
    )
    parser.add_argument(
        "--log-every", type=int, default=10, metavar="STEPS", help="steps between two lines in the journal (default: %(default)s)"
    )
    parser.add_argument(
        "--stall-seconds",
        type=float,
        default=1800,
        help="end a training that makes no progress for this long, and report where it hangs (default: %(default)s)",
    )
    parser.add_argument("--loader-workers", default="0", metavar="N", help=stages.LOADER_WORKERS)
    parser.add_argument(
        "--resume-changed",
        action="store_true",
        help="continue an unfinished training whose code or settings have changed, and mark it as mixed",
    )
    parser.add_argument("--same-versions", action="store_true", help="train again what was trained with other versions of packages")
    parser.add_argument("--reduce-batch-on-oom", action="store_true", help="split batches into more microbatches when memory runs out")
    parser.add_argument(
        "--rank-files",
        choices=("node", "all"),
        default="node",
        help="ranks that keep a log, a journal and a trace: the first of each node, or all (default: %(default)s)",
    )
    parser.add_argument(
        "--profile", metavar="STEP:STEPS", help="trace STEPS steps, beginning with STEP, with torch.profiler, into profile/"
    )
    parser.add_argument("--experiment", default="snaketrain", help="MLflow experiment name (default: %(default)s)")
    parser.add_argument("--notes", default="", help="description of the run, shown in MLflow")
    for add_arguments in hooks("training", "add_arguments"):
        add_arguments(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    training = train(args)
    code = record_end(args.run_name, training)
    return code or finish(args.run_name, training)


def train(args: argparse.Namespace, share: float | None = None) -> Training:
    """Take the steps that are left; with a `share` those up to there."""
    started, stop = time.time() - seconds_alive(), Stopping()  # a signal that arrives while torch is being imported counts too
    start_rank()
    job = stages.Job(args.output, args.settings)
    folder, settings = job.folder, job.given.settings
    train, model = Train.model_validate(settings["train"]), Model.model_validate(settings["model"])
    paths = {role: path for role, path in (("data", args.data), ("model", args.model), ("initial", args.initial)) if path}
    read = {role: read_manifest(path) for role, path in paths.items()}
    if Ranks.of_environment().rank == 0:
        verify(*read.values())
    data, inputs = read["data"], {role: manifest.content for role, manifest in read.items()}
    files = {role: manifest.model_files for role, manifest in read.items()}

    from snaketrain.data.loading.examples import open_splits
    from snaketrain.data.loading.loader import Loader
    from snaketrain.training.building import make_task, start_strategy
    from snaketrain.training.checkpoints.ranking import Selection
    from snaketrain.training.execution import execution_of, gain_of_bf16
    from snaketrain.training.plan import Plan
    from snaketrain.training.trainer import Trainer, TrainerOptions
    from snaketrain.training.watching import default_callbacks, open_journals

    strategy, splits = start_strategy(train, args.device), open_splits(data, train)
    first, plan = strategy.rank == 0, Plan.of(train, splits.train.lengths, args.branch_steps)
    about: JsonObject = {"began": started} | (place() if first else {})
    if first:
        compared = share is not None or bool(args.branch_steps)
        job = take_over(job, inputs, args.resume_changed and not compared, clean=compared, same_versions=args.same_versions)
        described = {name: getattr(args, name) for name in ("log_every", "device", "experiment", "notes")}
        processes: JsonObject = {"processes": strategy.world_size, "device": strategy.device.type, "precision": strategy.precision}
        record_start(job, inputs, data, started, {"run": args.run_name, "paths": paths} | described, processes)
    job = replace(job, mixed=strategy.all_gather_object(job.mixed)[0])  # which also waits for the folder
    own_files = keeps_files(of_all=args.rank_files == "all")
    log_to(folder / "logs" / f"rank-{strategy.rank}.log" if own_files else None)
    logging.info("rank %d of %d, pid %d, %s, %s", strategy.rank, strategy.world_size, os.getpid(), strategy.device, strategy.precision)
    if first and train.precision == "auto" and strategy.device.type == "cpu" and (gain := gain_of_bf16()):
        logging.info("train.precision: auto is fp32 on a CPU; this one multiplies matrices %.1f times as fast in bf16", gain)

    task = make_task(train, data.facts)
    metrics = modes_of(task.metrics, data.facts.get("label_kind"), train.task.use)
    metric = args.keep_best_by or next(iter(metrics), "loss")
    selection = Selection(metric, mode_of(metric, metrics, args.keep_best_mode))
    execution, until = execution_of(train, strategy), plan.step_at(share) if share else None
    of_extras: list[Callback] = []
    if first:
        attempt = Attempt(args, job, data, inputs, task, plan, selection, execution, until)
        of_extras = [callback for before_attempt in hooks("training", "before_attempt") for callback in before_attempt(attempt)]
        about |= {"execution": execution} | executed_otherwise(folder, execution) | ({"mixed": job.mixed} if job.mixed else {})
    strategy.wait()  # for the checkpoints
    journals = open_journals(folder, strategy, partial(check, folder), about | {"metric": metric}, own_files)
    journals[0].listeners.append(recorder_of_loaded(folder))
    of_extras += [callback for on_each_rank in hooks("training", "on_each_rank") for callback in on_each_rank(args, strategy, journals[0])]
    options = TrainerOptions(
        selection=selection, keep_best=args.keep, checkpoint_format=args.checkpoint_format, log_every=args.log_every,
        callbacks=of_extras
        + default_callbacks(args.run_name, folder, strategy, journals[0], args.stall_seconds, args.profile if own_files else None),
        reduce_batch_on_oom=args.reduce_batch_on_oom, until=until, resume_changed=bool(job.mixed),
        loader=Loader.of(args.loader_workers, pin_memory=strategy.device.type == "cuda"), stop=stop.requested, clock=Clock(started),
    )  # fmt: skip
    trainer = Trainer.from_settings(
        train, model, splits, folder, options, strategy=strategy, task=task, plan=plan, journals=journals,
        weights=files.get("model"), initial_weights=files.get("initial"),
    )  # fmt: skip
    trainer.fit()
    return Training(job, data, inputs, trainer, metrics, stop, started)


def record_end(run: str, training: Training, why_paused: str = "") -> int:
    """The last line of the journal; returns the exit code."""
    trainer, state, stop = training.trainer, training.trainer.state, training.stop
    strategy, steps = state.strategy, training.trainer.plan.last
    signals = sorted({name for of_rank in strategy.all_gather_object(stop.signals) for name in of_rank})
    end = {"step": state.step, "signals": signals, "seconds": time.time() - training.started, "peak_memory_mb": peak_memory_mb()}
    if why := why_paused if trainer.paused and not trainer.complete else state.finished_early:
        end["why"] = why
    trainer.journal.write("end", status="FINISHED" if trainer.complete else "STOPPED", **end, spent=trainer.clock.spent())
    strategy.finish()
    if trainer.paused:
        logging.info("%s: at step %d of %d, %s", run, state.step, steps, why_paused)
        return 0
    if not trainer.complete:
        by, saved = ", ".join(signals) or "another process", "saved" if state.step else "nothing is trained yet"
        logging.warning("%s: stopped by %s at step %d of %d; %s. Run the same command to resume.", run, by, state.step, steps, saved)
        return STOPPED_EARLY
    if state.finished_early:
        logging.info("%s: stopped at step %d of %d: %s", run, state.step, steps, state.finished_early)
    return 0


def finish(run: str, training: Training) -> int:
    """The manifest, on rank 0."""
    trainer, state, folder = training.trainer, training.trainer.state, training.job.folder
    if state.rank == 0:
        facts = {
            "run": run, "steps": state.step,
            "examples": len(trainer.data.train) if isinstance(trainer.data.train, Sized) else None, "parameters": state.parameters,
            "precision": state.strategy.precision,  # which `auto` chose on these devices
            "metrics": training.metrics, "checkpoints": trainer.checkpoints.metrics(),
        } | ({"mixed": list(training.job.mixed)} if training.job.mixed else {})  # fmt: skip
        described = sorted(str(path.relative_to(folder)) for part in ("description", "adapter") for path in (folder / part).glob("*"))
        written = trainer.checkpoints.files_to_select(folder)
        training.job.finish(
            training.inputs, described, facts, training.started, versions_of_steps(folder),
            logs=["journal.jsonl"], written=written, loaded=loaded_so_far(folder),
        )  # fmt: skip
    return 0


def versions_of_steps(folder: Path) -> dict[str, str]:
    """Of the packages with which the steps were computed: an attempt that had none to take only wrote the manifest."""
    from snaketrain.runtime.journal import events_named
    from snaketrain.runtime.provenance import one_after_the_other

    attempts = [each for each in events_named(folder / "journal.jsonl", "attempt") if "execution" in each]
    took_steps = [each for each in attempts if each["resume_step"] < each["steps"]]
    return one_after_the_other(each["execution"]["versions"] for each in took_steps or attempts)


def executed_otherwise(folder: Path, execution: JsonObject) -> JsonObject:
    """For the journal of a training that resumes itself, in what it is executed otherwise than before."""
    from snaketrain.training.execution import execution_differences

    before = (last_attempt(folder / "journal.jsonl") or {}).get("execution")
    if not before or not (different := execution_differences(before, execution)):
        return {}
    message = f"resumes executed otherwise ({'; '.join(different)}): equal up to rounding only"
    logging.warning("%s", message)
    return {"warning": message}


def peak_memory_mb() -> float:
    import resource

    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(folder: Path, error: BaseException) -> None:
    """On stderr, in this rank's log, and as the last line of the journal."""
    cause = report_failure("training", folder / "logs", error)
    with suppress(OSError):  # on a full disk
        record_failure(folder, cause)


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report, folder), leave)
