"""launch_slurm.py: what is restarted within a job, on which nodes, and when the job is requeued. Real processes; SLURM is a stand-in."""

import subprocess
import sys
from pathlib import Path

import limits
import pytest
from distributed import fake_slurm

pytestmark = pytest.mark.slow

TOOL = Path(__file__).parents[2] / "workflow/scripts/tools/launch_slurm.py"


class Job:
    """launch_slurm.py in a job on a1, a2 and so on; each process runs the given Python text."""

    def __init__(self, folder: Path, script: str, *options: str, nodes: int = 2, processes: int = 1):
        self.folder = folder
        (folder / "bin").mkdir()
        for name in ("srun", "scontrol", "scancel"):
            (folder / "bin" / name).write_text(f"#!{sys.executable}\n{Path(fake_slurm.__file__).read_text()}")
            (folder / "bin" / name).chmod(0o755)
        (folder / "nodes").write_text(" ".join(f"a{number + 1}" for number in range(nodes)))
        (folder / "restarts").write_text("0")
        (folder / "script.py").write_text(
            "import os, signal, sys, time\nfrom pathlib import Path\n"
            f"here, host, rank = Path({str(folder)!r}), os.environ['SLURMD_NODENAME'], os.environ['RANK']\n"
            "start = os.environ['SNAKETRAIN_START']\n"
            "(here / f'{start}-{rank}-{host}').touch()\n" + script
        )
        environment = {"SLURM_JOB_ID": "7", "PATH": f"{folder / 'bin'}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            TOOL,
            "--interface",
            "lo",
            "--first-pause",
            "0.1",
            *options,
            "--",
            "torchrun",
            f"--nproc-per-node={processes}",
            folder / "script.py",
            "--output",
            folder / "out/manifest.json",
        ]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)

    def wait(self) -> int:
        return self.process.wait(limits.seconds(120))

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def started(self) -> set[str]:
        return {path.name for path in self.folder.glob("*-*-a*")}

    def until(self, condition) -> None:
        limits.until(condition, 60, self.process, self.log)


def job(tmp_path, script: str, *options: str, nodes: int = 2, processes: int = 1) -> Job:
    return Job(tmp_path, script, *options, nodes=nodes, processes=processes)


def test_a_killed_process_is_named_and_all_are_restarted(tmp_path):
    """Peers on the other node fail at the same moment, as in a collective, and that node reports first."""
    script = "if start == '0.0':\n    if host == 'a1': sys.exit(1)\n    time.sleep(1)\n    if rank == '2': os.kill(os.getpid(), 9)\n    time.sleep(600)"
    found = job(tmp_path, script, "--nodes", "2", processes=2)
    assert found.wait() == 0
    assert "job 7: rank 2 was killed by SIGKILL on a2; resuming from step 0 in 0.2 seconds" in found.log()
    assert found.started() >= {f"0.1-{rank}-a{1 + rank // 2}" for rank in range(4)}
    assert found.asked() == ["srun a1,a2", "srun a1,a2"]


def test_torchrun_starts_the_processes_of_each_node(tmp_path):
    found = job(tmp_path, "(here / f'parent-{rank}').write_bytes(Path(f'/proc/{os.getppid()}/cmdline').read_bytes())", "--nodes", "2")
    assert found.wait() == 0
    for rank in range(2):
        words = (tmp_path / f"parent-{rank}").read_text().split("\0")
        assert Path(words[1]).name == "torchrun" and {"--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=snaketrain"} <= set(words)


@pytest.mark.parametrize(
    ("script", "code", "starts", "told"),
    [
        ("sys.exit(3) if rank == '1' else time.sleep(600)", 3, 1, ""),
        ("sys.exit(75)", 75, 1, ""),
        ("sys.exit(76 if start == '0.0' else 0)", 0, 2, "rank 0 asks for a restart on a1"),
        ("os.kill(os.getpid(), 9)", 137, 2, "2 starts in a row without a new checkpoint (compute.restarts: 1), giving up"),
    ],
    ids=["an error of the script", "stopped", "another start", "killed each time"],
)
def test_what_is_restarted(tmp_path, script, code, starts, told):
    found = job(tmp_path, script, "--nodes", "2", "--restarts", "1")
    assert found.wait() == code
    assert len(found.started()) == 2 * starts
    assert told in found.log()


def test_a_new_checkpoint_resets_the_count(tmp_path):
    step = "step = int(start.partition('.')[2])\n"
    saving = step + "(here / f'out/checkpoints/step-{step:08d}').mkdir(parents=True, exist_ok=True)\n"
    found = job(tmp_path, saving + "if step < 4: os.kill(os.getpid(), 9)", "--nodes", "1", "--restarts", "1", nodes=1)
    assert found.wait() == 0
    assert "resuming from step 3" in found.log()


def test_a_killed_step_is_restarted(tmp_path):
    found = job(tmp_path, "if start == '0.0': time.sleep(600)", "--nodes", "2")
    found.until(lambda: len(found.started()) == 2)
    fake_slurm.HERE = tmp_path
    fake_slurm.kill("0")
    assert found.wait() == 0
    assert "the processes on a1, a2 ended without a report (srun: exit code 9); resuming from step 0" in found.log()


HANGS = (
    "if start == '0.0':\n    if host == 'a2': (here / 'dead').write_text('a2'); os.kill(os.getppid(), signal.SIGSTOP)\n    time.sleep(600)"
)


@pytest.mark.parametrize(
    ("nodes", "had", "then"), [("2+1", 3, ["srun a1,a2", "srun a1,a3"]), ("1-2", 2, ["srun a1,a2", "srun a1"])], ids=["spare", "fewer"]
)
def test_a_dead_node_is_given_up_and_the_others_continue(tmp_path, nodes, had, then):
    """It is cut off: nothing fails by itself, but its heartbeats stop, and it starts no program."""
    found = job(tmp_path, HANGS, "--nodes", nodes, "--silence", "3", nodes=had)
    try:
        assert found.wait() == 0
    finally:
        fake_slurm.HERE = tmp_path
        fake_slurm.kill("0")
    left = then[1].removeprefix("srun ") if had == 2 else "a1,a3"
    assert found.asked() == [then[0], "scancel 7.0", f"update JobId=7 NodeList={left}", then[1]]
    assert "job 7: a2 does not answer; resuming from step 0" in found.log()
    assert ("; spare: a3" in found.log()) == (had == 3)
