"""What the runs of this folder are at: their jobs, logs and progress, under SLURM or on this machine; and how to cancel one.

snaketrain status                what each run is at: its job, state, step, time left, nodes and log
snaketrain log RUN --follow      what the run's current job prints, or what its last one printed
snaketrain cancel RUN            save and end the run's job; snakemake does not submit it again until its next start
"""

import argparse
import glob
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.orchestration.stages import classes, evaluates, parts_of, run_of_work, trains
from snaketrain.orchestration.submissions import Submission, Submissions
from snaketrain.runtime.journal import Event, TrainingProgress, duration, last_attempt, read_events
from snaketrain.runtime.ownership import living_process
from snaketrain.slurm.client import ENDED_STATES, ENDING_SECONDS, Slurm, SlurmError, jobs_here, wait_for_end
from snaketrain.slurm.jobs import QueuedJob, Work

SECONDS_BETWEEN_QUESTIONS = 10.0  # to SLURM, whether a job is over
COLUMNS = ("RUN", "STAGE", "JOB", "STATE", "STEP", "TIME LEFT", "NODES", "LOG")


def main() -> None:
    args = arguments()
    if args.directory:
        os.chdir(args.directory)
    try:
        sys.exit({"status": status, "log": log, "cancel": cancel}[args.command](args))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="status|log|cancel")
    shown = commands.add_parser("status", help="show what each run is at", description="Show what each run is at.")
    shown.add_argument("runs", nargs="*", metavar="RUN", help="only these runs (default: all of the folder)")
    shown.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    printed = commands.add_parser("log", help="print the log of a run's job", description="Print the log of a run's current or last job.")
    printed.add_argument("run", metavar="RUN", help="name of the run")
    printed.add_argument("-n", "--lines", type=int, default=100, help="print so many of its last lines, 0 for all (default: %(default)s)")
    printed.add_argument("-f", "--follow", action="store_true", help="keep printing until the job ends, or Ctrl-C")
    ended = commands.add_parser("cancel", help="save and end the jobs of runs", description="Save and end the jobs of runs.")
    ended.add_argument("runs", nargs="+", metavar="RUN", help="names of the runs whose jobs are ended")
    for command in (shown, printed, ended):
        command.add_argument("--directory", type=Path, metavar="FOLDER", help="folder of the workflow (default: the current one)")
    args = parser.parse_args()
    if args.directory and not args.directory.is_dir():
        parser.error(f"--directory: {args.directory} is no folder")
    return args


# --- What each run of this folder is at: by SLURM's queue where there is one, and by what the runs have written.

# of each stage of a run, in this order, below that of the run
FOLDERS = {
    name: stage.folder.removeprefix("runs/{}/") for name, stage in classes().items() if re.fullmatch(r"runs/\{\}/[^/]+", stage.folder)
}
LAST_BYTES = 262_144  # of a journal, which may be long
SILENT_SECONDS = 60  # a training records the load of its machine every few seconds


@dataclass(frozen=True)
class RunState:
    """Of a run; or of a job of another kind, such as the preparation of data, which has its name instead."""

    run: str
    stage: str
    job: str = ""  # of SLURM
    state: str = ""
    step: int | None = None
    steps: int | None = None
    seconds_left: float | None = None
    nodes: str = ""
    log: str = ""
    process: int | None = None  # on this machine
    in_queue: bool = False
    training: str = ""  # the folder; none of a job that does not train
    idle_seconds: float | None = None  # since the last step of a training that runs; None if that is not long ago
    places: Mapping[str, str] = field(default_factory=dict)  # where its ranks are then

    @property
    def is_at_work(self) -> bool:
        """Whether there is something to cancel."""
        return self.process is not None or self.in_queue


@dataclass(frozen=True)
class Progress:
    """Of a training, as its journal tells."""

    step: int | None
    steps: int | None
    seconds_left: float | None
    end: Event | None  # of the last attempt
    last: float | None = None  # when it recorded something, unless it has ended
    idle: Event | None = None  # if that no step ends is the last that it has recorded


def run_states(folder: Path, queue: Iterable[QueuedJob] | None, submissions: Mapping[str, Submission]) -> list[RunState]:
    """A line for each run, or for each of its jobs in the queue, and one for each other job, such as the preparation of data.

    None: SLURM does not answer.
    """
    if queue is None:
        submissions = {name: made if made.state else replace(made, state="unknown") for name, made in submissions.items()}
    waiting = [row for row in queue or () if row.state not in ENDED_STATES]
    runs = {path.name for path in (folder / "results/runs").glob("*") if path.is_dir()}
    runs |= {run_of_work(row.work) for row in waiting if row.work.stage in (*FOLDERS, *parts_of("train_model"))}
    jobs = [of_job(folder, run_of(row.work, runs), row, submissions) for row in waiting]
    idle = [of_run(folder, run, submissions) for run in runs - {job.run for job in jobs}]
    return sorted(idle + jobs, key=lambda each: (each.run not in runs, each.run, int(each.job or 0)))


def run_of(work: Work, runs: Iterable[str]) -> str:
    """The run that a job is of, or the name of what else it works on."""
    if not evaluates(work.stage):
        return run_of_work(work)
    return max((run for run in runs if f"{work.name}_".startswith(f"{run}_")), key=len, default=work.name)


def of_run(folder: Path, run: str, submissions: Mapping[str, Submission]) -> RunState:
    """Of a run without a job in the queue."""
    training, stage = folder / "results/runs" / run / "training", last_stage(folder, run)
    progress = progress_of(training)
    known = partial(RunState, run, step=progress.step, steps=progress.steps, training=str(training))
    if process := living_process(training):
        log = local_log(folder, "train_model", run)
        return with_pace(known("train_model", state="RUNNING", nodes="here", log=log, process=process), progress)
    made = last_submission(run, stage, submissions)
    state = ended_as(folder, run, stage, progress.end, made)
    return known(stage, made.number if made else "", state, log=made.log if made else local_log(folder, stage, run))


def of_job(folder: Path, name: str, row: QueuedJob, submissions: Mapping[str, Submission]) -> RunState:
    stage = row.work.stage
    training = training_of(folder, name)
    progress = progress_of(training)
    state = f"{row.state} ({row.reason})" if row.state == "PENDING" else row.state
    found = RunState(
        name, stage, row.number, state, progress.step, progress.steps, None, row.nodes, log_of(folder, row, submissions),
        in_queue=True, training=str(training) if trains(stage) else "",
    )  # fmt: skip
    return with_pace(found, progress) if trains(stage) and row.state == "RUNNING" else found


def with_pace(state: RunState, progress: Progress) -> RunState:
    """With the time that is left; or with how long it has done nothing: it may hang."""
    if progress.idle:
        idle = time.time() - progress.idle["time"] + progress.idle["seconds"]
        return replace(state, idle_seconds=idle, places=progress.idle["places"])
    if progress.last is None:
        return state
    log = Path(state.log)
    printed = log.stat().st_mtime if state.log and log.exists() else 0.0
    silent = time.time() - max(progress.last, printed)  # its first rank is suspended or cut off, or it loads a model
    if silent > SILENT_SECONDS:
        return replace(state, idle_seconds=silent)
    return replace(state, seconds_left=progress.seconds_left)


def training_of(folder: Path, name: str) -> Path:
    """The folder of the training of a run, or of what else trains."""
    found = sorted((folder / "results").glob(f"*/{glob.escape(name)}/training"))
    return found[0] if found else folder / "results/runs" / name / "training"


def last_submission(run: str, stage: str, submissions: Mapping[str, Submission]) -> Submission | None:
    """Of a stage of a run. A training may have been submitted in parts, or as one job with what follows it."""
    wanted = {stage, *parts_of(stage)}
    found = [made for name, made in submissions.items() if run_of_work(work := Work.of(name)) == run and wanted & set(work.stages)]
    return max(found, key=lambda made: int(made.number), default=None)


def log_of(folder: Path, row: QueuedJob, submissions: Mapping[str, Submission]) -> str:
    made = submissions.get(row.comment)
    return made.log if made and made.number == row.number else str(row.log(folder / "logs/slurm"))


def local_log(folder: Path, stage: str, run: str) -> str:
    logs = [folder / "logs" / stage / f"{run}.log"]
    logs += (log for part in parts_of(stage) for log in (folder / "logs" / part / run).glob("*.log"))
    return str(max(there, key=lambda log: log.stat().st_mtime)) if (there := [log for log in logs if log.exists()]) else ""


def last_stage(folder: Path, run: str) -> str:
    """The one that was started last; a later stage of an earlier training does not count."""
    started = [stage for stage in FOLDERS if (folder / "logs" / stage / f"{run}.log").exists()]
    return max(started, key=lambda stage: (folder / "logs" / stage / f"{run}.log").stat().st_mtime, default="train_model")


def ended_as(folder: Path, run: str, stage: str, end: Event | None, made: Submission | None) -> str:
    """Of a run that nothing works on."""
    results = folder / "results/runs" / run
    if made and made.state not in ("", "COMPLETED"):
        return made.state
    if (results / FOLDERS[stage] / "manifest.json").exists():
        return f"{stage} done" if stage in ("train_model", "select_checkpoint") else "done"
    if stage == "train_model" and end:
        stopped = end.get("why") or f"stopped by {', '.join(end.get('signals', []))}"
        return {"STOPPED": stopped, "FAILED": "FAILED"}.get(str(end["status"]), "killed")
    if not (results / FOLDERS[stage]).exists() and not local_log(folder, stage, run):
        return "not started"
    return "started" if any((folder / ".snakemake/locks").glob("*")) else "killed, or failed"


def progress_of(training: Path) -> Progress:
    journal = training / "journal.jsonl"
    attempt = last_attempt(journal)
    if attempt is None:
        return Progress(None, None, None, None)
    events = [
        event
        for event in read_events(journal, max(0, journal.stat().st_size - LAST_BYTES))[0]
        if event.get("attempt") == attempt["attempt"]
    ]
    known = TrainingProgress(training.parent.name)
    for event in (attempt, *events):
        known.add(event)
    if events and events[-1]["event"] == "end":
        return Progress(known.step, known.steps, None, events[-1])
    last = max((event["time"] for event in events or [attempt] if "time" in event), default=None)
    done = [event for event in events if event["event"] != "system"]
    idle = done[-1] if done and done[-1]["event"] == "idle" else None
    return Progress(known.step, known.steps, known.seconds_left, None, last, idle)


def states(wanted: list[str] | None = None) -> list[RunState]:
    """Of these runs, or of all."""
    submissions = Submissions().latest()
    found = run_states(Path(), queue() if submissions else [], submissions)
    if missing := sorted(set(wanted or ()) - {each.run for each in found}):
        there = ", ".join(each.run for each in found) or "none, so is this the folder of a workflow?"
        raise SystemExit(f"{Path.cwd()}: no run {', '.join(missing)} here. There are: {there}")
    return [each for each in found if not wanted or each.run in wanted]


def queue() -> list[QueuedJob] | None:
    """None if SLURM does not answer."""
    slurm = Slurm()
    if not slurm.is_installed():
        return []
    try:
        return jobs_here(slurm)
    except SlurmError as error:
        print(
            f"{str(error).splitlines()[-1]}\nSo this is what the runs have written; jobs whose state is unknown may be at work.",
            file=sys.stderr,
        )
        return None


# --- status


def status(args: argparse.Namespace) -> int:
    found = states(args.runs)
    if args.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
        return 0
    rows = [COLUMNS, *map(columns, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS) - 1)]
    for row, state in zip(rows, [None, *found], strict=True):
        print("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)).rstrip())
        for ranks, place in state.places.items() if state else ():
            print(f"  {ranks} {place}")
    if not found:
        print(f"{Path.cwd()}: no runs here. Start snakemake, or give --directory.", file=sys.stderr)
    return 0


def columns(each: RunState) -> tuple[str, ...]:
    step = "" if each.step is None else f"{each.step} of {each.steps or '?'}"
    left = "" if each.seconds_left is None else duration(each.seconds_left)
    log = os.path.relpath(each.log) if each.log else ""
    state = each.state if each.idle_seconds is None else f"{each.state}, no step for {each.idle_seconds:.0f} s"
    return each.run, each.stage, each.job or (f"process {each.process}" if each.process else ""), state, step, left, each.nodes, log


# --- log


def log(args: argparse.Namespace) -> int:
    state = states([args.run])[-1]  # of several jobs the one that was submitted last
    path = Path(state.log)
    if not state.log or not path.exists():
        raise SystemExit(f"{args.run} has no log yet: {state.stage}, {state.state}")
    with open(path, "rb") as file:
        content = file.read()
        lines = content.splitlines(keepends=True)
        show(b"".join(lines[-args.lines :] if args.lines else lines))
        if args.follow:
            follow(file.read, lambda: run_is_at_work(args.run))
    return 0


def follow(read: Callable[[], bytes], is_at_work: Callable[[], bool]) -> None:
    asked, at_work = time.monotonic(), True
    while at_work:
        if time.monotonic() - asked > SECONDS_BETWEEN_QUESTIONS:
            asked, at_work = time.monotonic(), is_at_work()
        show(read())
        time.sleep(0.2)


def run_is_at_work(run: str) -> bool:
    return any(state.is_at_work for state in states([run]))


def show(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.flush()


# --- cancel


def cancel(args: argparse.Namespace) -> int:
    found = states(args.runs)
    at_work = [each for each in found if each.is_at_work]
    for each in found:
        if each not in at_work:
            print(f"{each.run}: nothing to cancel ({each.stage}: {each.state}).")
    left = cancel_jobs({each.job: f"{each.stage} {each.run}" for each in at_work if each.in_queue})
    for each in at_work:
        over = each.job not in left if each.in_queue else end_process(each)
        print(f"{each.run}: {outcome(each) if over else 'has not ended yet; it saves and ends.'}")
    return 0 if at_work else 1


def cancel_jobs(jobs: dict[str, str]) -> set[str]:
    """All steps of a job get SIGTERM: a training saves."""
    if not jobs:
        return set()
    slurm = Slurm()
    try:
        slurm.cancel(*jobs)
    except SlurmError as error:
        raise SystemExit(f"{error}\nNothing is cancelled.") from None
    return wait_for_end(slurm, jobs, print)


def end_process(each: RunState) -> bool:
    assert each.process is not None
    os.kill(each.process, signal.SIGTERM)
    end, folder = time.monotonic() + ENDING_SECONDS, Path(each.training)
    while (living := living_process(folder)) and time.monotonic() < end:
        time.sleep(0.2)
    return living is None


def outcome(each: RunState) -> str:
    again = "Start snakemake again to resume it."
    if each.state.startswith("PENDING"):
        return f"removed from the queue, where it was waiting. {again}"
    if not each.training:
        return f"{each.stage} was ended, and starts from the beginning when snakemake is started again."
    now = progress_of(Path(each.training))
    if now.end and now.end["status"] == "FINISHED":
        return "its training is complete. Start snakemake again for what follows."
    if now.end and now.end["status"] == "STOPPED":
        return f"saved at step {now.end['step']} of {now.steps} and ended. {again}"
    return f"ended without saving; its last checkpoint stays. {again}"


if __name__ == "__main__":
    main()
