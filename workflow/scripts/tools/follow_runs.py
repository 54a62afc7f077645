"""Bring MLflow up to date with the runs' files, once or for as long as a workflow runs. Safe to start at any time.

It only reads files, so training neither knows of it nor waits for it. If the MLflow server is away, there is a warning.
"""

import argparse
import contextlib
import math
import os
import re
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.orchestration.follower import NOTE, command
from snaketrain.runtime.credentials import has_password, hidden
from snaketrain.runtime.exit_codes import FAILED, WORTH_ANOTHER_START
from snaketrain.runtime.lease import STILL_SECONDS, Lease, LeaseLost
from snaketrain.runtime.processes import Process
from snaketrain.tracking.local_database import SQLITE, LocalDatabase, folder_for
from snaketrain.tracking.registrar import Registrar

LEASE = ".follower.lease"  # in the results: one follower at a time
WAIT_FOR_OTHER_SECONDS = STILL_SECONDS + 30
LONGEST_PAUSE_SECONDS = 15
LOCAL_UI = "http://127.0.0.1:5000"  # where show_runs.py serves MLflow's pages
stopping: list[int] = []  # signals received


@dataclass(frozen=True)
class Problem:
    what: str
    advice: str = "Correct that"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results folder of the workflow (default: results)"
    )
    parser.add_argument("--uri", help="MLflow server or database (default: mlflow.db beside the results folder)")
    parser.add_argument(
        "--local-store",
        type=Path,
        metavar="FOLDER",
        help="a folder on a local disk, where the database is written and from where it is copied to its place every minute and at the end",
    )
    parser.add_argument("--no-models", action="store_true", help="do not register the best text classifier in the model registry")
    parser.add_argument("--once", action="store_true", help="update MLflow once and exit")
    parser.add_argument("--while-pid", type=int, metavar="PID", help="keep MLflow up to date until this process has ended")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between two looks at the files (default: %(default)g)"
    )
    args = parser.parse_args()
    if args.interval <= 0:
        parser.error("--interval must be more than 0 seconds")
    if args.uri and has_password(args.uri):
        parser.error(
            "--uri holds a password: remove it from the address, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )
    results = args.results.resolve()
    uri = args.uri or f"{SQLITE}{results.parent / 'mlflow.db'}"
    if args.local_store and not uri.startswith(SQLITE):
        parser.error("--local-store has no use with a server, which keeps its own database")
    # Ctrl-C reaches the workflow too, which then lets its jobs end: what they still write must reach MLflow
    signal.signal(signal.SIGINT, signal.SIG_IGN if args.while_pid else lambda number, _: stopping.append(number))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopping.append(number))
    watched = Process(args.while_pid) if args.while_pid else None
    lease = Lease(results / LEASE)
    try:
        results.mkdir(parents=True, exist_ok=True)
        other = lease.acquire(*waiting(args, watched, results))
    except OSError as error:
        later = shlex.join(command(results, uri, args.local_store, not args.no_models, "--once"))
        warn(f"{results}: cannot be written to ({error}), so MLflow is not updated. Correct that; then: {later}")
        sys.exit(FAILED if args.while_pid else 0)  # a workflow tries again
    if other:
        return print(f"Another follower is already running for {results}: {other}. Nothing to do.")
    try:
        follow(results, uri, args, watched, lease)
    except LeaseLost as lost:
        warn(str(lost))
        sys.exit(WORTH_ANOTHER_START)
    finally:
        with contextlib.suppress(OSError):
            if lease.is_ours():
                (results / NOTE).unlink(missing_ok=True)
        lease.release()


def waiting(args: argparse.Namespace, watched: Process | None, results: Path):
    """How long to wait for another follower, when to stop waiting, and what to do if there is one."""
    seconds = math.inf if watched else WAIT_FOR_OTHER_SECONDS if args.once else 0
    return seconds, lambda: is_over(watched), lambda owner: warn(f"another follower is running for {results}: {owner}; waiting for it")


def is_over(watched: Process | None) -> bool:
    return bool(stopping) or (watched is not None and not watched.is_alive())


def follow(results: Path, uri: str, args: argparse.Namespace, watched: Process | None, lease: Lease) -> None:
    follower, failures, registrar, local = None, 0, Registrar(uri, results / ".register_model.log"), None
    folder, warning = folder_for(Path(uri.removeprefix(SQLITE)), args.local_store) if uri.startswith(SQLITE) else (None, None)
    if warning:
        warn(warning)
    while True:
        # checked before the pass, so that the last pass sees everything the process wrote before it ended
        last = args.once or is_over(watched)
        try:
            lease.check()
            if follower is None:
                note(results, f"connecting to {uri}")
                if folder:
                    local = LocalDatabase(Path(uri.removeprefix(SQLITE)), folder, results, lease.check)
                    registrar.uri = local.uri
                follower = connect(results, uri, local, lease)
            if follower.store.is_replaced():
                restart(last, lease)
            if follower.has_lost_its_runs(look_now=last):
                follower.forget()
                registrar.forget()
            if last:
                follower.jobs.asked_at = None  # ask SLURM again
            problem = full_pass(follower, (lambda text: note(results, text)) if last else lambda text: None)
            due = set() if args.no_models else follower.unregistered
            if last:
                failed = registrar.finish(due, lambda text: note(results, text))
                problem = Problem(failed, "See that log") if failed else problem
            else:
                registrar.start(due)
            if local and (warning := local.copy(complete=True) if last else local.copy_when_due()):
                warn(warning)
        except LeaseLost:
            registrar.stop()
            raise
        except Exception as error:  # whatever it is must not affect the runs
            problem = problem_with(uri, error)
            if follower:
                follower.forget()
        failures = failures + 1 if problem else 0
        if problem and (failures == 1 or last):
            later = f"{problem.advice}; then: {shlex.join(command(results, uri, args.local_store, not args.no_models, '--once'))}"
            warn(f"{problem.what}. {later if last else 'Nothing is lost; trying again.'}")
        if last:
            break
        longest = max(LONGEST_PAUSE_SECONDS, args.interval)
        pause(min(args.interval * 2 ** min(failures, 10), longest), watched)
    if not failures and (args.once or follower.runs()):
        print(f"MLflow is up to date with {len(follower.runs())} runs. Look at them: {look(uri)}")
        print(*follower.show(uri.rstrip("/") if uri.startswith("http") else LOCAL_UI), sep="\n")
    if local:
        local.remove()


def connect(results: Path, uri: str, local: LocalDatabase | None, lease: Lease):
    from snaketrain.tracking.following import Follower  # the import takes seconds, and may fail
    from snaketrain.tracking.mlflow_store import Store

    return Follower(results, Store(local.uri, lease.check, local.artifacts) if local else Store(uri, lease.check))


def restart(last: bool, lease: Lease) -> None:
    """The database was deleted or replaced. MLflow keeps connections to the old one and has no way to drop them."""
    warn("the database was deleted or replaced: starting again with everything that is in the files")
    lease.release()
    os.execv(sys.executable, [*sys.orig_argv, *(["--once"] if last else [])])


def full_pass(follower, note) -> Problem | None:
    """Update all runs; one with damaged files does not stop the others. Returns what went wrong."""
    from mlflow.exceptions import MlflowException

    from snaketrain.tracking.mlflow_store import ExperimentDeleted

    problem = follower.shared.deleted = None
    for training in follower.runs():
        note(f"updating {training.parent.name}")
        try:
            follower.update(training)
        except ExperimentDeleted as error:
            follower.forget()
            problem = Problem(str(error), error.advice)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "INVALID_STATE"):
                raise  # MLflow is unreachable, for the other runs as well
            follower.forget()
            problem = Problem(f"{training}: MLflow refused it: {first_line(error)}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = Problem(f"{training}: cannot be recorded: {first_line(error)}")
    try:
        follower.shared.comparison()
    except ExperimentDeleted as error:
        problem = problem or Problem(str(error), error.advice)
    if lost := follower.shared.deleted:
        problem = problem or Problem(str(lost), lost.advice)
    follower.show("")
    return problem


def pause(seconds: float, watched: Process | None) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_over(watched):
        time.sleep(min(left, 0.5))


def look(uri: str) -> str:
    return (
        uri
        if uri.startswith("http")
        else f"make ui, or {shlex.join(['python', str(Path(__file__).with_name('show_runs.py')), '--uri', uri])}"
    )


def problem_with(uri: str, error: Exception) -> Problem:
    """What an error of MLflow means, and what can be done about it."""
    text = str(error)
    if status := re.search(r"too many (5\d\d) error responses|(?:error|status) code (5\d\d)", text):
        return Problem(f"MLflow at {uri}: the server fails (HTTP {status[1] or status[2]})", "Its own log says why")
    if "Max retries exceeded" in text:
        return Problem(f"MLflow at {uri}: it does not answer", "Start it, or correct tracking.uri")
    if re.search(r"(error|status) code 40[13]", text):
        return Problem(
            f"MLflow at {uri}: access denied", "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    return Problem(f"MLflow at {uri}: {first_line(error)}", "Start it, or correct tracking.uri")


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def note(results: Path, text: str) -> None:
    """Note what the follower is doing, so that the workflow can say what it waits for."""
    with contextlib.suppress(OSError):
        (results / NOTE).write_text(text, encoding="utf-8")


def warn(message: str) -> None:
    print(hidden(f"warning: {message}"), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
