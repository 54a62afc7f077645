"""The follower beside a workflow: restarted when it dies, and waited for at the end, with what the workflow says about it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import limits
import pytest

from snaketrain.config.schema import Tracking
from snaketrain.orchestration import follower
from snaketrain.orchestration.follower import MOST_DEATHS, NOTE, FollowerProcess

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
# ignores SIGTERM, as if a registration took a long time
SLOW = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[2], ".follower.doing").write_text("registering the best model of small"))
child = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[2], "child").write_text(str(child.pid))
while True:
    time.sleep(0.1)
"""
INTERRUPTED = """
import sys
from pathlib import Path
from snaketrain.config.schema import Tracking
from snaketrain.orchestration import follower
follower.SCRIPT, follower.QUIET_SECONDS = Path(sys.argv[1]), 0.1
waiting = follower.FollowerProcess(Path(sys.argv[2]), Tracking(wait_seconds=600))
waiting.start()
while not Path(sys.argv[2], "child").exists():
    pass
waiting.finish()
"""


@pytest.fixture
def slow(tmp_path, monkeypatch) -> Path:
    script = tmp_path / "follow_runs.py"
    script.write_text(SLOW)
    monkeypatch.setattr(follower, "SCRIPT", script)
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0.1)
    return script


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_waits_no_longer_than_allowed_and_says_for_what(tmp_path, slow, capfd):
    waited_for = FollowerProcess(tmp_path, Tracking(wait_seconds=2))
    waited_for.start()
    limits.until((tmp_path / "child").exists)
    began = time.monotonic()
    waited_for.finish()
    assert 1.5 < time.monotonic() - began < limits.seconds(20)
    first, *_, last = capfd.readouterr().err.splitlines()
    assert first.startswith("waiting for MLflow, registering the best model of small: at most ") and "Ctrl-C" in first
    assert "after 2 seconds (tracking.wait_seconds) it was ended while registering the best model of small" in last
    words = shlex.split(last.partition("To finish it: ")[2])
    assert words == [sys.executable, str(slow), "--results", str(tmp_path), "--once"]
    limits.until(lambda: not lives(int((tmp_path / "child").read_text())))  # the process that registers models ends with it


def test_ctrl_c_ends_the_wait_at_once(tmp_path, slow):
    waiting = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(slow), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr.readline().startswith("waiting for MLflow")
    waiting.send_signal(signal.SIGINT)
    told = waiting.communicate(timeout=limits.seconds(60))[1]  # it would wait for 600
    assert waiting.returncode == 0
    assert "MLflow is not up to date: interrupted while registering the best model of small. Nothing is lost. To finish it: " in told
    assert not lives(int((tmp_path / "child").read_text()))


def test_a_follower_that_ends_at_once_is_not_mentioned(tmp_path, monkeypatch, capfd):
    script = tmp_path / "follow_runs.py"
    script.write_text("")
    monkeypatch.setattr(follower, "SCRIPT", script)
    quick = FollowerProcess(tmp_path, Tracking())
    quick.finish()  # never started
    quick.start()
    quick.process.wait()
    quick.finish()
    assert capfd.readouterr().err == "" and not (tmp_path / NOTE).exists()


# notes each start; the first ones end as the last argument says, the others run until SIGTERM
DYING = """
import os, pathlib, signal, subprocess, sys, time
starts = pathlib.Path(sys.argv[2], "starts")
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with open(starts, "a") as file:
    file.write(" ".join([str(os.getpid()), *sys.argv[3:]]) + "\\n")
if len(starts.read_text().splitlines()) <= DEATHS:
    print("Traceback (most recent call last):\\nModuleNotFoundError: No module named 'mlflow'", file=sys.stderr)
    sys.exit(1)
child = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[2], "child").write_text(str(child.pid))
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def dying(tmp_path, monkeypatch):
    """A follower that dies at its first starts, as many as given; and its number of starts so far."""

    def dying(deaths: int) -> FollowerProcess:
        (tmp_path / "follow_runs.py").write_text(DYING.replace("DEATHS", str(deaths)))
        return FollowerProcess(tmp_path, Tracking())

    monkeypatch.setattr(follower, "SCRIPT", tmp_path / "follow_runs.py")
    monkeypatch.setattr(follower, "FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(follower, "PAUSE_FACTOR", 1.5)
    return dying


def starts(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "starts").read_text().splitlines()] if (folder / "starts").exists() else []


def test_a_killed_follower_is_started_again_and_its_children_end(tmp_path, dying, capfd):
    followed = dying(deaths=0)
    followed.start()
    limits.until((tmp_path / "child").exists)
    child = int(limits.until((tmp_path / "child").read_text))
    os.kill(int(starts(tmp_path)[0][0]), signal.SIGKILL)
    limits.until(lambda: len(starts(tmp_path)) == 2)
    assert not lives(child)
    followed.finish()
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "the follower, which updates MLflow, was killed by SIGKILL. Nothing is lost; starting it again in 0.1 seconds."
    assert len(starts(tmp_path)) == 2


def test_a_follower_that_dies_at_each_start_is_given_up_and_named_at_the_end(tmp_path, dying, capfd):
    followed = dying(deaths=99)
    followed.start()
    limits.until(lambda: not followed._watching.is_alive())
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("the follower")]
    died = "the follower, which updates MLflow, ended with exit code 1 (ModuleNotFoundError: No module named 'mlflow')."
    assert [line.startswith(died) for line in lines] == [True] * MOST_DEATHS
    assert [line.rpartition(" in ")[2] for line in lines[:-1]] == ["0.1 seconds.", "0.15 seconds.", "0.225 seconds.", "0.3375 seconds."]
    command = shlex.join([sys.executable, str(tmp_path / "follow_runs.py"), "--results", str(tmp_path), "--once"])
    assert f"It died {MOST_DEATHS} times in a row" in lines[-1] and lines[-1].endswith(f"To update MLflow earlier: {command}")
    followed.finish()
    *_, last = capfd.readouterr().err.splitlines()
    assert last.startswith("MLflow is not up to date: the follower ended with exit code 1 (ModuleNotFoundError") and last.endswith(command)
    assert len(starts(tmp_path)) == MOST_DEATHS + 1 and starts(tmp_path)[-1][1:] == ["--once"]


def test_its_warnings_are_shown_once_without_passwords_and_outlive_the_workflow(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "lang-und-geheim")
    (tmp_path / "follow_runs.py").write_text("import sys; print('refused: lang-und-geheim', file=sys.stderr)")
    monkeypatch.setattr(follower, "SCRIPT", tmp_path / "follow_runs.py")
    (tmp_path / follower.LOG).write_text("of an earlier workflow\n")
    followed = FollowerProcess(tmp_path, Tracking())
    followed.start()
    limits.until(lambda: not followed._watching.is_alive())
    assert capfd.readouterr().err == "refused: ***\n"


def test_the_command_for_the_end_of_a_run_is_in_the_followers_environment(tmp_path):
    """Not among its arguments, which everybody on the machine can read."""
    before = time.time()
    followed = FollowerProcess(tmp_path, Tracking(on_end="mail me"))
    assert followed.log.environment[follower.ON_END] == "mail me" and float(followed.log.environment[follower.ON_END_SINCE]) >= before
    assert follower.ON_END not in FollowerProcess(tmp_path, Tracking()).log.environment
