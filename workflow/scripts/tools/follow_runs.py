"""Bring MLflow up to date with the runs' files, once or for as long as a workflow runs. Safe to start at any time.

It only reads files, so a training neither knows of it nor waits for it. If MLflow does not answer, it prints a warning.
"""

import argparse
import contextlib
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.config.schema.of_extras import hooks
from snaketrain.orchestration.follower import NOTE
from snaketrain.runtime.credentials import hide_in_tracebacks
from snaketrain.runtime.ownership import STILL_SECONDS, Lease, LeaseLost
from snaketrain.runtime.processes import end_quickly
from snaketrain.runtime.ranks import FAILED, WORTH_ANOTHER_START
from snaketrain.runtime.secret_forms import without_secrets
from snaketrain.tracking.database import SQLITE
from snaketrain.tracking.loop import Loop, Options, warn

LEASE = ".follower.lease"  # in the results: one follower at a time
WAIT_FOR_OTHER_SECONDS = STILL_SECONDS + 30
stopping: list[int] = []  # signals received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results folder of the workflow (default: results)"
    )
    parser.add_argument("--uri", help="MLflow server or database (default: mlflow.db beside the results folder)")
    for add_arguments in hooks("following", "add_arguments"):
        add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="update MLflow once and exit")
    parser.add_argument("--while-pid", type=int, metavar="PID", help="keep MLflow up to date until this process has ended")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between two looks at the files (default: %(default)g)"
    )
    args = parser.parse_args()
    if args.interval <= 0:
        parser.error("--interval must be more than 0 seconds")
    hide_in_tracebacks()
    if args.uri and without_secrets(args.uri) != args.uri:
        parser.error(
            "--uri holds a password, which process lists show: write '${NAME}' for a variable of the environment, or set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD instead"
        )
    results = args.results.resolve()
    if args.once and not results.is_dir():
        parser.error(f"--results: {results} is no folder. Name the results of a workflow.")
    uri = args.uri or f"{SQLITE}{results.parent / 'mlflow.db'}"
    options = Options(results, uri, args)
    for problem_of in hooks("following", "problem"):
        if problem := problem_of(options.database, args):
            parser.error(problem)
    # Ctrl-C reaches the workflow too, which then waits for its jobs: what they still write must reach MLflow
    signal.signal(signal.SIGINT, signal.SIG_IGN if args.while_pid else lambda number, _: stopping.append(number))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopping.append(number))
    is_over = end_of(args.while_pid)
    lease = Lease(results / LEASE)
    seconds = math.inf if args.while_pid else WAIT_FOR_OTHER_SECONDS if args.once else 0
    try:
        results.mkdir(parents=True, exist_ok=True)
        other = lease.acquire(seconds, is_over, lambda owner: warn(f"another follower is running for {results}: {owner}; waiting for it"))
    except OSError as error:
        warn(f"{results}: cannot be written to ({error}), so MLflow is not updated. Correct that; then: {options.to_repeat}")
        sys.exit(FAILED if args.while_pid else 0)  # a workflow tries again
    if other:
        return print(f"Another follower is already running for {results}: {other}. Nothing to do.")
    try:
        Loop(options, lease, is_over).run()
    except LeaseLost as lost:
        warn(str(lost))
        sys.exit(WORTH_ANOTHER_START)
    finally:
        with contextlib.suppress(OSError):
            if lease.is_ours():
                (results / NOTE).unlink(missing_ok=True)
        lease.release()


def end_of(pid: int | None) -> Callable[[], bool]:
    """Whether this process has ended, if one is given, or this one is to end."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid) if pid else None
        return lambda: bool(stopping) or (process is not None and not runs(process))
    return lambda: True


def runs(process: psutil.Process) -> bool:
    """False for a later process of the same id, and for a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
    end_quickly()  # the workflow waits for it
