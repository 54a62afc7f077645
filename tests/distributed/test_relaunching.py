"""launch_local.py: what it restarts, with how many processes, and when it gives up. The processes are real, and really killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import limits
import pytest

from snaketrain.runtime.journal import read_events

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import kill_anywhere  # noqa: E402
from distributed import forking  # noqa: E402

START = [sys.executable, str(REPOSITORY / "workflow/scripts/tools/launch_local.py"), "--first-pause", "0.2"]


class Started:
    """launch_local.py with a script and its arguments, and what it has printed so far."""

    def __init__(self, log: Path, options: list[str], command: list[str], path: Path | None = None, processes: int = 2):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
        self.log, self.folder = log, Path(command[command.index("--output") + 1]).parent
        with open(log, "wb") as file:
            start = [*START, *options, "--", "torchrun", f"--nproc-per-node={processes}"]
            self.process = subprocess.Popen([*start, *command], env=environment, stdout=file, stderr=file)

    def wait(self) -> int:
        return self.process.wait(limits.seconds(240))

    def told(self) -> str:
        return self.log.read_text()

    def of(self, kind: str) -> list[dict]:
        return [event for event in read_events(self.folder / "journal.jsonl")[0] if event["event"] == kind]

    def pid(self, rank: int) -> int:
        """Of the newest start of that process."""
        return int(re.findall(r"pid (\d+)", (self.folder / f"logs/rank-{rank}.log").read_text())[-1])

    def until(self, condition) -> None:
        limits.until(condition, 120, self.process, lambda: self.told()[-3000:])


def training(data: Path, folder: Path) -> list[str]:
    return [str(forking.SCRIPT), "--rank-files", "all", *kill_anywhere.arguments(data, folder, 1, epochs=20)]


@pytest.mark.slow
def test_it_restarts_after_each_loss_with_as_many_processes_as_gpus_answer(data, tmp_path, monkeypatch):
    """The driver's list of GPUs is ours; the processes, their number and what they do are real."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "bin").mkdir()
    (tmp_path / "gpus").write_text("GPU 0: A\nGPU 1: A\n")
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/gpus\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    started = Started(tmp_path / "log", ["--look", "0.5"], training(data, tmp_path / "run"), tmp_path / "bin")
    started.until(lambda: started.of("checkpoint"))
    os.kill(started.pid(0), signal.SIGKILL)  # where the others meet
    started.until(lambda: len(started.of("attempt")) == 2 and len(started.of("eval")) > 2)
    (tmp_path / "gpus").write_text("GPU 0: A\nUnable to determine the device handle for GPU 1: Unknown Error\n")
    os.kill(started.pid(1), signal.SIGKILL)
    started.until(lambda: len(started.of("attempt")) == 3)
    (tmp_path / "gpus").write_text("GPU 0: A\nGPU 1: A\n")
    assert started.wait() == 0
    attempts = started.of("attempt")
    assert [event["processes"] for event in attempts] == [2, 2, 1, 2] and all(event["resume_step"] for event in attempts[1:])
    assert re.search(r"launch_local: rank 0 was killed by SIGKILL; resuming from step \d+ in 0.2 seconds", started.told())
    assert "GPUs are back; resuming from step" in started.told()
    assert set(range(3, 220, 3)) < {event["step"] for event in started.of("train")}  # none is missing


def script(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(f"import os, sys\nopen('{folder}/starts', 'a').write(os.environ['RANK'])\n{text}\n")
    return [str(folder / "script.py"), "--output", str(folder / "out/manifest.json")]


@pytest.mark.parametrize(
    ("text", "options", "code", "starts", "told"),
    [
        ("sys.exit(3)", [], 3, 1, ""),
        ("sys.exit(75)", [], 75, 1, ""),
        ("os.kill(os.getpid(), 9)", ["--restarts", "2"], 137, 3, "3 starts in a row without a new checkpoint"),
        ("sys.exit(76 if open('HERE/starts').read() == '0' else 0)", [], 0, 2, "asks for a restart"),
    ],
    ids=["an error of the script", "stopped", "killed each time", "another start"],
)  # fmt: skip
def test_which_endings_are_restarted(tmp_path, text, options, code, starts, told):
    command = script(tmp_path, text.replace("HERE", str(tmp_path)))
    started = Started(tmp_path / "log", ["--cpu", *options], command, processes=1)
    assert (started.wait(), len((tmp_path / "starts").read_text())) == (code, starts)
    assert told in started.told()
