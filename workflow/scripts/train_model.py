"""Train one run to the end of its plan, or go on from its last checkpoint.

Of several processes each runs this; `--output` is written by the first one, when the training is complete.
"""

import argparse
import logging
import os
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from snaketrain.config.runs import from_strings
from snaketrain.config.schema import Model, Train
from snaketrain.runtime import stages
from snaketrain.runtime.exit_codes import STOPPED_EARLY, leave
from snaketrain.runtime.goodput import Clock
from snaketrain.runtime.integrity import verify
from snaketrain.runtime.manifests import digest, read_manifest
from snaketrain.runtime.ownership import check, end_previous_owner, sign
from snaketrain.runtime.provenance import place, seconds_alive
from snaketrain.runtime.ranks import Ranks
from snaketrain.runtime.run_folder import (
    EXECUTION_ONLY,
    execution_options,
    log_to,
    prepare_run_folder,
    record_failure,
    record_start,
    set_aside_from_damage,
)
from snaketrain.runtime.stopping import Stopping
from snaketrain.tasks.metric_modes import mode_of, modes_of

LENGTH = ("train.epochs=", "train.steps=")


def arguments() -> argparse.Namespace:
    parser = stages.parser(__doc__)
    parser.add_argument("--run-name", required=True, help="name of the run")
    parser.add_argument("--data", required=True, help="manifest of the prepared data")
    parser.add_argument("--model", help="manifest of the fetched model; none: a random start")
    parser.add_argument("--initial", help="manifest of the fetched model.initial_weights")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--keep-best-by", metavar="METRIC", help="which checkpoints are best; not given: by the first metric of the task")
    parser.add_argument("--keep-best-mode", choices=("max", "min"), help="of a metric that does not say whether more or less is better")
    parser.add_argument("--keep", type=int, default=2, help="how many of the best are kept, besides the last")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS", help="distance of the lines in the journal")
    parser.add_argument(
        "--stall-seconds", type=float, default=1800, help="a training in which nothing moves for so long says where, and ends"
    )
    parser.add_argument("--reduce-batch-on-oom", action="store_true", help="work off batches in more pieces when the memory runs out")
    parser.add_argument("--experiment", default="snaketrain", help="of MLflow")
    parser.add_argument("--notes", default="", help="shown in MLflow")
    return parser.parse_args()


def main(args: argparse.Namespace) -> int:
    started, stop = time.time() - seconds_alive(), Stopping()  # a signal that comes while torch is still being loaded counts as well
    folder = Path(args.output).parent
    sections = from_strings(args.settings)
    settings, model = Train.model_validate(sections["train"]), Model.model_validate(sections["model"])
    paths = {"data": args.data, "model": args.model, "initial": args.initial}
    read = {role: read_manifest(path) for role, path in paths.items() if path}
    if Ranks.of_environment().rank == 0:
        verify(*read.values())
    data, inputs = read["data"], {role: manifest.content for role, manifest in read.items()}
    files = {role: manifest.folder / "files" for role, manifest in read.items()}

    import torch

    from snaketrain.config.references import load
    from snaketrain.data.loading.batches import Batches
    from snaketrain.data.loading.opening import open_split
    from snaketrain.runtime.journal import Journal
    from snaketrain.strategies import make_strategy
    from snaketrain.training.bad_steps import BadSteps
    from snaketrain.training.callbacks.machine_load import watched
    from snaketrain.training.callbacks.progress import Progress
    from snaketrain.training.callbacks.stall_watchdog import Watch
    from snaketrain.training.checkpoints.store import Checkpoints
    from snaketrain.training.early_stopping import Patience
    from snaketrain.training.learner import build, make_learner, make_task
    from snaketrain.training.loop import Training
    from snaketrain.training.out_of_memory import Pieces
    from snaketrain.training.plan import Plan, make_schedule
    from snaketrain.training.window import Window

    if settings.deterministic:  # to say no would make torch load its compiler
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        torch.use_deterministic_algorithms(True)
    strategy = make_strategy(settings.strategy.use, settings.strategy.arguments, device=args.device, precision=settings.precision)
    strategy.start()
    first, about = strategy.rank == 0, {}
    train_data, dev_data = (open_split(data, split, settings) for split in ("train", "dev"))
    batches = Batches(train_data.lengths, settings.seed, settings.batch_size, settings.batch_tokens, padded=not settings.packing)
    plan = Plan.of(settings, batches, make_schedule(load(settings.schedule.use, "training.schedules"), settings.schedule.arguments))
    if first:
        indifferent = (*EXECUTION_ONLY, *LENGTH) if plan.open_ended else EXECUTION_ONLY
        purpose = digest("train", [string for string in sorted(args.settings) if not string.startswith(indifferent)], inputs)
        end_previous_owner(folder)
        if changed := prepare_run_folder(folder, purpose, execution_options(args), plan.steps):
            about["warning"] = f"code or strategy changed during this training: {', '.join(changed)}"
        sign(folder)
        set_aside_from_damage(folder)
        record_start(folder, purpose, args, inputs, data, started, strategy)
    strategy.wait()  # for the folder
    log_to(folder / "logs" / f"rank-{strategy.rank}.log", strategy)

    task = make_task(settings)
    metrics = modes_of(task.metrics, data.facts.get("label_kind"), settings.task.use)
    metric = args.keep_best_by or next(iter(metrics), "loss")
    mode = mode_of(metric, metrics, args.keep_best_mode)
    built = build(task, settings, model, files.get("model"), data.facts, files.get("initial"), strategy.builds)
    parameters = sum(p.numel() for module in built.values() for p in module.parameters())
    if first:
        (folder / "description").mkdir(exist_ok=True)
        task.describe(built, folder / "description")
    early = settings.early_stopping
    patience = Patience(metric, mode, early and early.patience, early.min_change if early else 0.0)
    progress = Progress(args.run_name, plan.steps, args.log_every, folder / "tensorboard", shows=first)
    watch = Watch(folder / "logs/stalled", strategy.rank, strategy.world_size, args.stall_seconds)
    training = Training(
        make_learner(task, settings, built, strategy), train_data, dev_data, settings, plan, batches,
        Pieces(folder, settings.accumulate, args.reduce_batch_on_oom), Window(strategy), patience,
        BadSteps(settings.bad_steps_allowed, settings.rollbacks_allowed),
        Checkpoints(folder / "checkpoints", metric, mode, args.keep), progress, stop, watch, Clock(started),
    )  # fmt: skip
    start = training.resume()
    about |= {"steps": plan.steps, "processes": strategy.world_size, "precision": strategy.precision, "began": started}
    about |= place() if first else {}
    training.journal = Journal(folder / "journal.jsonl", start, first, partial(check, folder), **about)
    training.rank_journal = Journal(folder / f"logs/rank-{strategy.rank}.jsonl", start, True)
    progress.start(start)
    logging.info("%s: %s parameters, %d examples, steps %d to %d", args.run_name, f"{parameters:,}", len(train_data), start, plan.steps)
    with watched(training.tell_load) if first else nullcontext():
        reached = training.run()
    watch.close()
    progress.close()

    status = "FINISHED" if training.complete else "STOPPED"
    signals = sorted({name for told in strategy.all_gather_object(stop.signals) for name in told})
    end = {"step": reached, "signals": signals, "seconds": time.time() - started, "peak_memory_mb": peak_memory_mb()}
    training.journal.write("end", status=status, **end, spent=training.clock.spent())
    strategy.finish()
    if not training.complete:
        logging.warning(
            "%s: stopped by %s at step %d of %d; %s. Run the same command to go on.",
            args.run_name,
            ", ".join(signals) or "another process",
            reached,
            plan.steps,
            "saved" if reached else "nothing is trained yet",
        )
        return STOPPED_EARLY
    if reached < plan.steps:
        logging.info("%s: stopped at step %d of %d, since %s has not improved", args.run_name, reached, plan.steps, metric)
    if first:
        facts = {"run": args.run_name, "steps": reached, "examples": len(train_data), "parameters": parameters}
        facts["precision"] = strategy.precision  # which `auto` chose on these devices
        facts |= {"metrics": metrics, "checkpoints": training.checkpoints.metrics()}
        description = [f"description/{path.name}" for path in sorted((folder / "description").iterdir())]
        stages.finish("train_model", args, inputs, [*training.checkpoints.files_to_select(folder), *description], facts, started)
    return 0


def peak_memory_mb() -> float:
    import resource

    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tell_failure(args: argparse.Namespace, error: BaseException) -> None:
    """On the terminal, in the log of this process, and as the last line of the journal."""
    if isinstance(error, SystemExit) and isinstance(error.code, str):  # what to do about it is all that matters
        logging.error(error.code)
    else:
        logging.error("the training failed", exc_info=error)
    with suppress(OSError):  # on a full disk
        record_failure(Path(args.output).parent, error)


if __name__ == "__main__":
    stages.run(main, arguments(), tell_failure, leave)
