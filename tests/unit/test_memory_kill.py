"""Whether the kernel has killed a process for its memory, by the counters of cgroups or of the machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snaketrain.runtime import processes
from snaketrain.runtime.processes import MemoryUse, kill_since


def cgroups(folder: Path, monkeypatch, own: str, **files: str) -> None:
    """A file system of cgroups, in which this process is in `own`; `step__memory_max` is the file `step/memory.max`."""
    for name, text in files.items():
        *path, file = name.split("__")
        target = folder.joinpath(*path, file.replace("memory_", "memory.", 1))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
    (folder / "self").write_text(own + "\n")
    monkeypatch.setattr(processes, "CGROUPS", folder)
    read = processes.lines_of
    monkeypatch.setattr(processes, "lines_of", lambda path: read(folder / "self" if path == Path("/proc/self/cgroup") else path))


def test_limit_and_peak_of_version_2(tmp_path, monkeypatch):
    events = "low 0\nhigh 0\nmax 9\noom 1\noom_kill 3"
    cgroups(
        tmp_path, monkeypatch, "0::/job_7/step_0", job_7__step_0__memory_events=events, job_7__step_0__memory_max="max",
        job_7__memory_max=str(2 << 30), job_7__memory_peak=str(2000 << 20),
    )  # fmt: skip
    assert processes.memory_use() == MemoryUse(3, False, 2048, 2000)


def test_limit_and_peak_of_version_1(tmp_path, monkeypatch):
    cgroups(
        tmp_path, monkeypatch, "4:memory:/job_7/step_0\n0::/", memory__job_7__step_0__memory_oom_control="under_oom 0\noom_kill 1",
        memory__job_7__step_0__memory_limit_in_bytes=str(1 << 30), memory__job_7__step_0__memory_max_usage_in_bytes=str(900 << 20),
        memory__memory_limit_in_bytes="9223372036854771712",
    )  # fmt: skip
    assert processes.memory_use() == MemoryUse(1, False, 1024, 900)


def test_without_a_limit_the_machine_counts(tmp_path, monkeypatch):
    cgroups(tmp_path, monkeypatch, "0::/", memory_events="oom_kill 0")
    use = processes.memory_use()
    assert use.of_machine and use.peak_mb is None and use.limit_mb > 100
    assert kill_since(use) is None
    found = kill_since(MemoryUse(use.kills - 1, True))
    assert found.kills == 1 and "perhaps of another job" in str(found)


EATER = "import sys; sys.path.insert(0, sys.argv[1])\nfrom snaketrain.runtime.processes import *\nimport subprocess\n" \
    "before = memory_use(); done = subprocess.run([sys.executable, '-c', 'x = bytearray(400 << 20); x[::4096] = b\"1\" * len(x[::4096])'])\n" \
    "print(done.returncode, kill_since(before))"  # fmt: skip


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.W_OK), reason="needs root and cgroup v1"
)
def test_a_real_memory_kill():
    group = Path(f"/sys/fs/cgroup/memory/snaketrain-test-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(100 << 20))
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        scripts = Path(processes.__file__).parents[2]
        done = subprocess.run(["sh", "-c", enter, "sh", sys.executable, "-c", EATER, scripts], capture_output=True, text=True)
        assert done.stdout.startswith("-9 the kernel killed 1 process of this job on "), done
        assert "(limit 100 MB, peak 100 MB)" in done.stdout
    finally:
        group.rmdir()
