"""One owner at a time, with real processes: which one owns a lease, who takes over, and what the former owner notices."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import limits
import no_locks
import pytest

from snaketrain.runtime import ownership as module
from snaketrain.runtime.ownership import Lease, LeaseLost, Owner

pytestmark = pytest.mark.lengthy

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
# takes the lease, says so, and writes a line five times a second as long as it owns it
OWNER = """
import sys, time
from pathlib import Path
from snaketrain.runtime import ownership
ownership.BEAT_SECONDS, ownership.STILL_SECONDS = 0.1, float(sys.argv[3])
mine = ownership.Lease(Path(sys.argv[1]))
other = mine.acquire(float(sys.argv[2]))
print(f"other: {other}" if other else "owner", flush=True)
while not other:
    mine.check()
    print("write", flush=True)
    time.sleep(0.2)
"""
RACE = """
import sys, time
from pathlib import Path
from snaketrain.runtime.ownership import Lease
mine = Lease(Path(sys.argv[1]))
time.sleep(max(0, float(sys.argv[2]) - time.time()))
for _ in range(int(sys.argv[3])):
    with mine.held():
        counter = Path(sys.argv[1]).with_name("counter")
        number = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(number + 1))
"""


class Process:
    def __init__(self, path: Path, wait_seconds: float = 0, still_seconds: float = 60, environment: dict[str, str] | None = None):
        words = [sys.executable, "-c", OWNER, str(path), str(wait_seconds), str(still_seconds)]
        environment = (environment or dict(os.environ)) | {"PYTHONPATH": str(SCRIPTS)}
        self.popen = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    @property
    def says(self) -> str:
        return self.popen.stdout.readline().strip()


@pytest.fixture
def start(tmp_path):
    """Starts a process that wants the lease; it is killed at the end."""
    started: list[Process] = []

    def start(*args, **options) -> Process:
        started.append(Process(tmp_path / "lease", *args, **options))
        return started[-1]

    yield start
    for process in started:
        process.popen.kill()
        process.popen.communicate()


def test_a_second_process_is_told_the_owner(start):
    first = start()
    assert first.says == "owner"
    assert start().says == f"other: process {first.popen.pid} on {Owner.current().host}"


def test_the_owner_is_killed_and_the_next_takes_over_at_once(start):
    first = start()
    assert first.says == "owner"
    waiting = start(wait_seconds=600)
    time.sleep(0.5)
    first.popen.kill()
    first.popen.wait()
    assert waiting.says == "owner"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_lease_needs_no_file_locks(tmp_path, tmp_path_factory, start, code):
    environment = no_locks.environment(tmp_path, code, tmp_path_factory.mktemp("library"))
    locking = f"import fcntl; fcntl.flock(open({str(tmp_path / 'file')!r}, 'w'), fcntl.LOCK_EX)"
    done = subprocess.run([sys.executable, "-c", locking], env=environment, capture_output=True, text=True)
    assert os.strerror(code) in done.stderr
    first = start(environment=environment)
    assert first.says == "owner"
    assert start(environment=environment).says.startswith(f"other: process {first.popen.pid} ")


def test_a_suspended_owner_loses_the_lease_and_writes_no_more(start):
    first = start()
    assert (first.says, first.says) == ("owner", "write")
    first.popen.send_signal(signal.SIGSTOP)
    second = start(wait_seconds=600, still_seconds=1)
    assert second.says == "owner"
    first.popen.send_signal(signal.SIGCONT)
    rest, error = first.popen.communicate(timeout=limits.seconds(20))
    assert first.popen.returncode == 1 and rest.count("write") <= 10  # written to the pipe before it was suspended
    assert f"process {second.popen.pid} on {Owner.current().host} may write now, and this one ends" in error
    assert (second.says, second.says) == ("write", "write")


def written(path: Path, **changes) -> Path:
    """The file of an owner that is not this process."""
    owner = {**Owner.current().__dict__, **changes}
    file = path.with_name(f"{path.name}.7")
    file.write_text(json.dumps(owner) + "\n")
    return file


def test_an_owner_elsewhere_is_replaced_only_when_it_is_silent(tmp_path, monkeypatch):
    """Its PID means nothing here, and its clock may be wrong by years."""
    monkeypatch.setattr(module, "STILL_SECONDS", 1.0)
    file = written(tmp_path / "lease", host="node7", pid=2**22 - 1, space="another boot")
    os.utime(file, (0, 0))
    beats = subprocess.Popen(
        [sys.executable, "-c", f"import os, time\nfor n in range(9): time.sleep(0.3); os.utime({str(file)!r}, (n, n))"]
    )
    began = time.monotonic()
    assert Lease(tmp_path / "lease").acquire(0) == f"process {2**22 - 1} on node7"  # as soon as a beat is seen
    assert Lease(tmp_path / "lease").acquire(600) is None and time.monotonic() - began > 3
    beats.wait()
    assert [each.name for each in tmp_path.iterdir()] == ["lease.8"]


def test_a_reused_pid_is_not_the_owner(tmp_path):
    written(tmp_path / "lease", started=1)
    assert Lease(tmp_path / "lease").acquire(0) is None


def test_an_owner_killed_before_it_wrote_its_name_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STILL_SECONDS", 0.5)
    (tmp_path / "lease.3").touch()
    assert Lease(tmp_path / "lease").acquire(0) is None and (tmp_path / "lease.4").exists()


def test_a_waiting_process_that_was_suspended_itself_does_not_count_that_time(tmp_path, monkeypatch):
    """After a machine was frozen as a whole, the owner must get a chance to beat."""
    monkeypatch.setattr(module, "STILL_SECONDS", 60.0)
    written(tmp_path / "lease", space="another boot")
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    looks = []
    assert Lease(tmp_path / "lease").acquire(0, stop=lambda: len(looks) > 5 or looks.append(1)) is not None


def test_many_processes_take_turns(tmp_path):
    """A counter that each increments while it owns the lease; a lost update would show."""
    (tmp_path / "counter").write_text("0")
    words = [sys.executable, "-c", RACE, str(tmp_path / "lease"), str(time.time() + 1), "20"]
    processes = [subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}) for _ in range(4)]
    assert [process.wait(limits.seconds(120)) for process in processes] == [0] * 4
    assert (tmp_path / "counter").read_text() == "80"
    assert len(list(tmp_path.glob("lease.*"))) == 1


def test_no_owner_may_overlook_a_later_one(tmp_path):
    """As if it had been suspended between looking and creating its own file."""
    late = Lease(tmp_path / "lease")
    (tmp_path / "lease.5").touch()
    assert not late._create(4)
    assert late._create(6) and late.is_ours()
    (tmp_path / "lease.7").touch()
    with pytest.raises(LeaseLost):
        late.check()


def test_a_full_disk_leaves_no_file_behind(tmp_path, monkeypatch):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Lease(tmp_path / "lease").acquire(0)
    assert list(tmp_path.iterdir()) == []
