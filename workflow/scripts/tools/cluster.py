"""What the runs of this folder are at: their jobs, logs and progress, under SLURM or on this machine; and how to cancel one.

cluster.py status                what each run is at: its job, state, step, time left, nodes and log
cluster.py log RUN --follow      what the run's current job prints, or what its last one printed
cluster.py cancel RUN            save and end the run's job; snakemake does not submit it again until its next start
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.runtime.ownership import living_process
from snaketrain.slurm.client import ENDING_SECONDS, QueuedJob, Slurm, SlurmError, jobs_here, wait_for_end
from snaketrain.slurm.run_states import RunState, progress_of, run_states
from snaketrain.slurm.submissions import Submissions

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
    parser.add_argument("--directory", type=Path, metavar="FOLDER", help="folder of the workflow (default: the current one)")
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
    return parser.parse_args()


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
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)).rstrip())
    if not found:
        print(f"{Path.cwd()}: no runs here. Start snakemake, or give --directory.", file=sys.stderr)
    return 0


def columns(each: RunState) -> tuple[str, ...]:
    step = "" if each.step is None else f"{each.step} of {each.steps or '?'}"
    left = "" if each.seconds_left is None else duration(each.seconds_left)
    log = os.path.relpath(each.log) if each.log else ""
    return each.run, each.stage, each.job or (f"process {each.process}" if each.process else ""), each.state, step, left, each.nodes, log


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


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
