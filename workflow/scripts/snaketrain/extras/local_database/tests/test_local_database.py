"""MLflow's database on a local disk: which copy a start continues with, and that no change is lost."""

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import no_locks
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read_runs
from snaketrain.extras.local_database import local_database
from snaketrain.extras.local_database.local_database import LocalDatabase, folder_for
from snaketrain.orchestration import follower, preflight

SCRIPTS = Path(local_database.__file__).parents[3]
# leaves a half-written transaction, like a killed process
TORN = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN")
database.executemany("INSERT INTO points VALUES (?)", [(b"x" * 4000,)] * 50)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def place(tmp_path):
    """The database's place in a workspace, and a folder on a local disk."""
    (tmp_path / "results").mkdir()
    return tmp_path / "mlflow.db", tmp_path / "local", tmp_path / "results"


def write(database: Path, value: str) -> None:
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("CREATE TABLE IF NOT EXISTS points (value)")
        opened.execute("INSERT INTO points VALUES (?)", (value,))


def points(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(database)) as opened:
        return [value for (value,) in opened.execute("SELECT value FROM points")]


def finished(place: tuple[Path, Path, Path], value: str) -> LocalDatabase:
    local = LocalDatabase(*place)
    write(local.path, value)
    assert local.copy(complete=True) is None
    local.remove()
    return local


def test_a_start_after_a_finished_one_continues_with_the_same_content_and_id(place):
    first = finished(place, "first")
    assert not first.path.exists() and points(place[0]) == ["first"]
    second = LocalDatabase(*place)
    assert second.id == first.id and points(second.path) == ["first"]


def test_a_start_after_a_killed_one_finds_the_local_database_which_is_newer(place):
    killed = LocalDatabase(*place)
    write(killed.path, "copied")
    killed.copy()
    write(killed.path, "not copied yet")
    second = LocalDatabase(*place)
    assert second.id == killed.id and points(second.path) == ["copied", "not copied yet"]


def test_a_start_on_another_machine_after_a_killed_one_has_another_id(place):
    """So that the `.mlflow.json` files, which record what was sent to the lost database, do not count."""
    database, folder, results = place
    finished(place, "before")
    killed = LocalDatabase(*place)
    write(killed.path, "not copied yet")
    second = LocalDatabase(database, folder / "of another machine", results)
    assert second.id != killed.id and points(second.path) == ["before"]
    assert LocalDatabase(*place).id not in (killed.id, second.id) and not killed.path.exists()


def test_changes_after_the_end_are_kept_and_everything_is_sent_again(place):
    first = finished(place, "first")
    write(place[0], "a note in MLflow's pages")
    second = LocalDatabase(*place)
    assert second.id != first.id and points(second.path) == ["first", "a note in MLflow's pages"]


def test_changes_during_a_run_are_set_aside_with_a_warning(place):
    local = LocalDatabase(*place)
    write(local.path, "first")
    local.copy()
    write(place[0], "a note in MLflow's pages")
    write(local.path, "second")
    warning = local.copy()
    (aside,) = place[0].parent.glob("mlflow.db.changed-*")
    assert str(aside) in warning and points(aside) == ["first", "a note in MLflow's pages"]
    assert points(place[0]) == ["first", "second"]


def test_a_database_that_was_deleted_comes_back(place):
    local = LocalDatabase(*place)
    write(local.path, "first")
    local.copy()
    place[0].unlink()
    local.copy(complete=True)
    assert points(place[0]) == ["first"]


def test_copies_are_made_when_due_and_whenever_something_changed(place, monkeypatch):
    monkeypatch.setattr(local_database, "COPY_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(local_database, "MOST_TIME", float("inf"))
    local = LocalDatabase(*place)
    write(local.path, "first")
    local.copy_when_due()
    before = place[0].stat()
    local.copy_when_due()
    assert place[0].stat() == before
    monkeypatch.setattr(local_database, "COPY_EVERY_SECONDS", 60.0)
    local.copy_when_due()
    write(local.path, "second")
    local.copy_when_due()
    assert points(place[0]) == ["first"]


def test_a_half_written_transaction_at_its_place_is_rolled_back(place):
    """SQLite's journal belongs to the database: one must not be copied or replaced without the other."""
    write(place[0], "whole")
    subprocess.run([sys.executable, "-c", TORN, str(place[0])])
    journal = Path(f"{place[0]}-journal")
    assert journal.stat().st_size
    local = LocalDatabase(*place)
    assert points(local.path) == ["whole"]
    write(local.path, "second")
    local.copy()
    assert not journal.exists() and points(place[0]) == ["whole", "second"]


def test_a_follower_that_lost_its_lease_does_not_copy(place):
    lost: list[bool] = []

    def check() -> None:
        if lost:
            raise RuntimeError("lost")

    local = LocalDatabase(*place, check)
    write(local.path, "first")
    lost.append(True)
    with pytest.raises(RuntimeError):
        local.copy()
    assert not place[0].exists()


def test_advice_for_a_network_file_system(tmp_path, monkeypatch):
    monkeypatch.setattr(local_database, "kind", lambda folder: "nfs4")
    folder, warning = folder_for(tmp_path / "mlflow.db", None)
    assert folder is None and f"{tmp_path}/mlflow.db: its file system (nfs4)" in warning and "tracking.local_store" in warning
    folder, warning = folder_for(tmp_path / "mlflow.db", tmp_path / "scratch")
    assert folder == tmp_path / "scratch" and "Name a folder on a local disk" in warning


LOOK = """
import sys
from pathlib import Path
from snaketrain.extras.local_database.local_database import folder_for
print(*folder_for(Path(sys.argv[1], "mlflow.db"), None), sep="|")
"""


def test_without_locks_a_temporary_folder_is_used(tmp_path, tmp_path_factory):
    write(tmp_path / "mlflow.db", "first")
    environment = no_locks.environment(tmp_path, errno.ENOSYS, tmp_path_factory.mktemp("library"))
    environment |= {"PYTHONPATH": str(SCRIPTS), "TMPDIR": str(tmp_path_factory.mktemp("temporary"))}
    decided = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert decided.startswith(f"{environment['TMPDIR']}|") and "has no file locks" in decided and "tracking.local_store" in decided


# --- The setting, and the option of the follower

BASE = {"data": {"train": {"path": "x.csv"}, "tokenizer": {"path": "x"}}, "model": {"use": "transformers.BertForSequenceClassification"}}


@pytest.mark.parametrize(
    ("tracking", "told"),
    [
        ({"local_store": "scratch"}, "tracking.local_store: 'scratch' is not absolute: write a folder such as /local/scratch/me."),
        (
            {"local_store": "/scratch", "uri": "http://a:1"},
            "tracking.local_store has no effect with a server, which has its own database: leave it out, or leave out tracking.uri.",
        ),
    ],
)
def test_a_wrong_folder_is_refused(tracking, told):
    with pytest.raises(ConfigurationError) as error:
        read_runs(BASE | {"tracking": tracking})
    assert error.value.problems == [told]


def test_runs_must_agree():
    runs = read_runs(BASE | {"runs": {"a": {"tracking.local_store": "/a"}, "b": {}}})
    (problem,) = preflight.tracking(runs)
    assert problem.startswith("tracking.local_store: must be the same for all runs, but they set several: /a (run a), none (run b).")


def test_the_follower_is_told(tmp_path):
    (run,) = read_runs(BASE | {"tracking": {"local_store": "/scratch/me"}}).values()
    assert "--local-store=/scratch/me" in follower.FollowerProcess(tmp_path, run.tracking)._command("--once")


def test_with_a_server_the_option_is_refused(tmp_path):
    words = [sys.executable, follower.SCRIPT, "--results", tmp_path, "--once", "--local-store", tmp_path, "--uri", "http://127.0.0.1:1"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(SCRIPTS)})
    assert done.returncode == 2 and "--local-store has no effect with a server, which has its own database" in done.stderr
