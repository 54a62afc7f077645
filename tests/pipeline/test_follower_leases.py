"""One follower at a time on any file system: without file locks, and after one was suspended."""

import contextlib
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import limits
import no_locks
import psutil
import pytest
from unit.workspace import make_workspace

from pipeline import workspace
from pipeline.test_follower_faults import losses, write
from snaketrain.runtime.journal import read_events
from snaketrain.tracking.mlflow_store import Store

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
# the tool, with a lease that expires after two seconds
QUICK = """
import sys
from snaketrain.runtime import ownership
ownership.BEAT_SECONDS, ownership.STILL_SECONDS = 0.1, 2.0
import follow_runs
follow_runs.main()
"""


def command(results: Path, uri: str, *options: str) -> list[str]:
    return [sys.executable, "-c", QUICK, "--results", str(results), "--uri", uri, "--interval", "0.2", *options]


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS / "tools")])}


def sent(results: Path) -> int:
    """The last step that MLflow has."""
    state = results / "runs/first/training/.mlflow.json"
    return json.loads(state.read_text())["high_water"].get("train/loss", 0) if state.exists() else 0


def test_results_on_a_file_system_without_locks(tmp_path, tmp_path_factory):
    results = make_workspace(tmp_path / "lustre", {"first": {}})
    environment = no_locks.environment(tmp_path / "lustre", errno.ENOLCK, tmp_path_factory.mktemp("library")) | {
        "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]
    }
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    done = subprocess.run(command(results, uri, "--once"), capture_output=True, text=True, env=environment, timeout=limits.seconds(60))
    assert (done.returncode, done.stderr) == (0, "") and "up to date with 1 run." in done.stdout
    assert losses(uri) == [*range(5, 65, 5)]


def suspended_between_transactions(follower: subprocess.Popen, folder: Path) -> bool:
    """Inside a transaction, even a reading one, SQLite's own lock would keep all others from writing."""
    follower.send_signal(signal.SIGSTOP)
    limits.until(lambda: psutil.Process(follower.pid).status() == psutil.STATUS_STOPPED)
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db", timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
            return True
        except sqlite3.OperationalError:
            follower.send_signal(signal.SIGCONT)
            return False


def test_a_suspended_follower_loses_its_lease_and_stops_writing(tmp_path):
    results, uri = make_workspace(tmp_path, {"first": {"ends": "nothing"}}), f"sqlite:///{tmp_path}/mlflow.db"
    workflow = subprocess.Popen(["sleep", "infinity"])
    words = command(results, uri, "--while-pid", str(workflow.pid))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    first = subprocess.Popen(words, **pipes)
    try:
        limits.until(lambda: sent(results) == 60)
        limits.until(lambda: suspended_between_transactions(first, tmp_path))
        write(results, range(61, 100))
        second = subprocess.Popen(words, **pipes)
        limits.until(lambda: sent(results) == 99)
        first.send_signal(signal.SIGCONT)
        error = first.communicate(timeout=limits.seconds(30))[1]
        assert first.returncode == 76 and f"process {second.pid} on " in error and "may write now, and this one ends" in error
        write(results, range(100, 120))
    finally:
        first.kill()
        workflow.kill()
        workflow.wait()
    told, error = second.communicate(timeout=limits.seconds(60))
    assert (second.returncode, error.count(f"another follower is running for {results}: process {first.pid} on ")) == (0, 1)
    assert losses(uri) == [*range(5, 65, 5), *range(61, 120)]


def test_a_follower_that_is_killed_beside_a_workflow(tmp_path):
    """The workflow starts another one, and all curves arrive."""
    workspace.make_workspace(tmp_path, runs={"small": {}})
    words = [sys.executable, "-m", "snakemake", "--snakefile", workspace.REPOSITORY / "Snakefile", "--directory", tmp_path, "--cores", "2"]
    workflow = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "results/runs/small/training/journal.jsonl"
    # MLflow cannot open a database whose creation was interrupted
    limits.until(lambda: journal.exists() and has_experiment(tmp_path / "mlflow.db", "words"), 120, process=workflow)
    (lease,) = (tmp_path / "results").glob(".follower.lease.*")
    os.kill(json.loads(lease.read_text())["pid"], signal.SIGKILL)
    told = workflow.communicate(timeout=limits.seconds(300))[1]
    assert workflow.returncode == 0
    assert "the follower, which updates MLflow, was killed by SIGKILL. Nothing is lost; starting it again in 2 seconds." in told
    steps = [event["step"] for event in read_events(journal)[0] if event["event"] == "train"]
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = store.client.search_runs([store.experiment("words")], "attributes.run_name = 'small'")
    assert [point.step for point in store.client.get_metric_history(run.info.run_id, "train/loss")] == steps != []
    assert run.info.status == "FINISHED" and "test/accuracy" in run.data.metrics


def has_experiment(database: Path, name: str) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("select count(*) from experiments where name = ?", (name,)).fetchone()[0])
    except sqlite3.OperationalError:  # not there, or without tables yet
        return False
