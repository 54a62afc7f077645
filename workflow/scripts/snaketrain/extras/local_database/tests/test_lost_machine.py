"""A follower on a machine that is lost, with a local database: the next one goes on elsewhere."""

import errno
import subprocess
from pathlib import Path

import limits
import no_locks
import pytest
from pipeline.test_follower_faults import losses, write
from pipeline.test_follower_leases import ENVIRONMENT, command, sent
from unit.workspace import make_workspace

pytestmark = pytest.mark.slow


def local_command(results: Path, folder: Path, *options: str) -> list[str]:
    return [*command(results, f"sqlite:///{results.parent}/mlflow.db", *options), "--local-store", str(folder)]


def test_a_local_database_that_is_lost_with_its_follower(tmp_path, tmp_path_factory):
    """Killed before the first copy; the next follower runs on another machine. SQLite would fail at the database's place."""
    home = tmp_path / "lustre"
    results = make_workspace(home, {"first": {"ends": "nothing"}})
    environment = no_locks.environment(home, errno.ENOSYS, tmp_path_factory.mktemp("library")) | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    workflow = subprocess.Popen(["sleep", "infinity"])
    killed = subprocess.Popen(local_command(results, tmp_path / "node1", "--while-pid", str(workflow.pid)), env=environment)
    try:
        limits.until(lambda: sent(results) == 60)
    finally:
        for process in (killed, workflow):
            process.kill()
            process.wait()
    assert list((tmp_path / "node1").rglob("mlflow.db")) and not (home / "mlflow.db").exists()
    write(results, range(61, 100))
    for _ in range(2):
        words = local_command(results, tmp_path / "node2", "--once")
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=limits.seconds(60))
        assert (done.returncode, done.stderr) == (0, "") and f"snaketrain ui --uri sqlite:///{home}/mlflow.db" in done.stdout
        assert losses(f"sqlite:///{home}/mlflow.db") == [*range(5, 65, 5), *range(61, 100)]
        assert not list((tmp_path / "node2").rglob("mlflow.db")) and list((home / "mlartifacts").rglob("run.json"))
    done = subprocess.run(command(results, f"sqlite:///{home}/mlflow.db", "--once"), env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "has no file locks, so MLflow's database is written in " in done.stderr  # without the option
    assert losses(f"sqlite:///{home}/mlflow.db") == [*range(5, 65, 5), *range(61, 100)]
