"""How long a workflow that has ended waits for MLflow, and what it says meanwhile."""

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
from snaketrain.orchestration.follower import NOTE, FollowerProcess

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
# as one whose registration takes long: told to end, it goes on
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


def test_it_waits_no_longer_than_it_may_and_says_for_what(tmp_path, slow, capfd):
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
    limits.until(lambda: not lives(int((tmp_path / "child").read_text())))  # what registers ends with it


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


def test_a_follower_that_ends_at_once_is_not_worth_a_word(tmp_path, monkeypatch, capfd):
    script = tmp_path / "follow_runs.py"
    script.write_text("")
    monkeypatch.setattr(follower, "SCRIPT", script)
    quick = FollowerProcess(tmp_path, Tracking())
    quick.finish()  # never started
    quick.start()
    quick.process.wait()
    quick.finish()
    assert capfd.readouterr().err == "" and not (tmp_path / NOTE).exists()
