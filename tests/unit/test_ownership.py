"""Each training folder has one writer: a previous owner is ended, an unrelated process never."""

import json
import os
import signal
import subprocess
import sys
import time

import limits
import pytest

from snaketrain.runtime import ownership
from snaketrain.runtime.processes import start_ticks

WAITS = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\nprint('ready', flush=True)\ntime.sleep(600)"


@pytest.fixture
def other():
    """A process that ends with 75 when it is signalled."""
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def outside_of_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    ownership._ourselves.cache_clear()
    yield
    ownership._ourselves.cache_clear()


def sign(folder, pid, **changes):
    owner = ownership._ourselves() | {"pid": pid, "started": start_ticks(pid)} | changes
    (folder / "owner.json").write_text(json.dumps(owner))


def test_a_leftover_process_is_signalled_and_waited_for(tmp_path, other):
    sign(tmp_path, other.pid)
    ownership.end_previous_owner(tmp_path)
    assert other.wait(limits.seconds(1)) == 75


def test_a_leftover_process_that_ends_by_itself_meanwhile_is_no_error(tmp_path, other, monkeypatch):
    def has_ended(*_):
        raise ProcessLookupError

    sign(tmp_path, other.pid)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", has_ended)
        ownership.end_previous_owner(tmp_path)
    assert other.poll() is None


def test_a_leftover_process_that_does_not_end_is_killed(tmp_path, other, monkeypatch):
    monkeypatch.setattr(ownership, "PATIENCE_SECONDS", 0.5)
    other.send_signal(signal.SIGSTOP)
    sign(tmp_path, other.pid)
    ownership.end_previous_owner(tmp_path)
    assert other.wait(limits.seconds(5)) == -signal.SIGKILL


@pytest.mark.parametrize(
    "changes", [{"started": 1}, {"started": None}, {"host": "elsewhere"}], ids=["recycled number", "unknown start", "other host"]
)
def test_an_unrelated_process_is_left_alone(tmp_path, other, changes):
    sign(tmp_path, other.pid, **changes)
    ownership.end_previous_owner(tmp_path)
    time.sleep(0.2)
    assert other.poll() is None


def test_without_a_previous_owner_nothing_is_ended(tmp_path, other):
    ownership.end_previous_owner(tmp_path)  # there is no owner
    (tmp_path / "owner.json").write_text('{"job": ')  # torn
    ownership.end_previous_owner(tmp_path)
    ownership.sign(tmp_path)
    ownership.end_previous_owner(tmp_path)  # ourselves
    other.kill()
    other.wait()
    sign(tmp_path, other.pid, started=5)
    ownership.end_previous_owner(tmp_path)  # over long ago


def test_a_previous_owner_stops_writing(tmp_path, other):
    ownership.sign(tmp_path)
    ownership.check(tmp_path)
    sign(tmp_path, other.pid, job="12", host="train3")
    with pytest.raises(ownership.TakenOver, match="job 12 on train3 writes here now"):
        ownership.check(tmp_path)


def test_the_owner_stays_the_same_when_its_torchrun_was_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    ownership.sign(tmp_path)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    ownership.check(tmp_path)


def test_the_owner_is_the_launcher_that_would_start_another_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("SNAKETRAIN_LAUNCHER", str(os.getpid()))
    ownership.sign(tmp_path)
    assert ownership.living_process(tmp_path) == os.getpid() != os.getppid()


@pytest.fixture
def slurm(tmp_path, programs):
    """squeue and scancel for a job that ends some time after it was cancelled; they record their arguments."""
    unknown = "{ echo 'Invalid job id specified' >&2; exit 1; }"
    squeue = f"[ ! -s $HERE/cancelled ] || rm -f $HERE/state; cat $HERE/state 2>/dev/null || {unknown}"
    programs(squeue=squeue, scontrol=unknown, scancel='echo "$@" >> $HERE/cancelled')
    return tmp_path


def test_a_leftover_job_is_cancelled_and_waited_for(slurm):
    (slurm / "state").write_text("12\n")
    sign(slurm, 1, job="12")
    ownership.end_previous_owner(slurm)
    assert (slurm / "cancelled").read_text() == "12\n"


def test_a_job_that_is_over_is_not_cancelled(slurm):
    sign(slurm, 1, job="12")
    ownership.end_previous_owner(slurm)
    assert not (slurm / "cancelled").exists()


def test_our_own_requeued_job_is_not_cancelled(slurm, monkeypatch):
    (slurm / "state").write_text("12\n")
    sign(slurm, 1, job="12", host="train1")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    ownership._ourselves.cache_clear()
    ownership.end_previous_owner(slurm)
    assert not (slurm / "cancelled").exists()


@pytest.mark.parametrize(
    ("owner", "refused"),
    [
        ({"job": "7", "start": "1.0"}, True),
        ({"job": "7", "start": "0.10"}, True),
        ({"job": "7", "start": "0.1"}, False),
        ({"job": "7"}, False),
        ({"job": "6", "start": "5.0"}, False),
    ],
    ids=["restarted by SLURM", "restarted within the job", "our predecessor", "of an earlier version", "another job"],
)
def test_an_earlier_start_of_a_job_never_takes_the_folder_back(tmp_path, monkeypatch, owner, refused):
    """It lives on, on a node that was cut off, and is only now ready to write."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SNAKETRAIN_START", "0.2")
    (tmp_path / "owner.json").write_text(json.dumps(owner))
    if refused:
        with pytest.raises(ownership.TakenOver, match=f"start {owner['start']} of job 7 writes here now"):
            ownership.sign(tmp_path)
    else:
        ownership.sign(tmp_path)
        assert ownership.is_ours(tmp_path)
