"""Ctrl-C, as a terminal sends it to snakemake and its descendants: the training saves and ends, and the next start resumes."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import limits
import psutil

from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY, SNAKEMAKE, read_configuration, write_configuration

TARGET = "results/runs/long/training/manifest.json"


def events(folder: Path) -> list[dict]:
    journal = folder / "results/runs/long/training/journal.jsonl"
    whole_lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    return [json.loads(line) for line in whole_lines if line.endswith("\n")]


def processes_in(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline())[:200])
        except (psutil.Error, OSError):  # it has just ended, or belongs to another user
            continue
    return found


def in_terminal(command: list[str | Path], folder: Path) -> str:
    """What a command that succeeds prints in a terminal."""
    ours, its = os.openpty()
    running = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=folder)
    os.close(its)
    shown = b""
    with contextlib.suppress(OSError):  # the command has ended
        while read := os.read(ours, 1 << 16):
            shown += read
    os.close(ours)
    assert running.wait() == 0, shown.decode()
    return shown.decode()


def test_ctrl_c_saves_and_the_next_start_resumes(workspace, tmp_path):
    """With two processes, which torchrun puts into sessions of their own, where Ctrl-C does not reach them."""
    folder = shutil.copytree(workspace, tmp_path / "project", symlinks=True)
    changes = {"runs": {"long": {"train.epochs": 10}}, "compute": {"processes": 2, "threads": 2, "device": "cpu"}}
    write_configuration(folder, read_configuration(folder) | changes)
    words = ["--snakefile", REPOSITORY / "Snakefile", "--directory", folder, "--cores", "2", TARGET]
    # the process that started the tests may ignore Ctrl-C, like a background job of a shell
    command = ["env", "--default-signal=INT", sys.executable, "-m", "snakemake", *words]
    with open(tmp_path / "printed.txt", "w") as printed:
        running = subprocess.Popen(command, stdout=printed, stderr=printed, cwd=folder, start_new_session=True)
    try:
        limits.until(lambda: any(event["event"] == "train" for event in events(folder)), 240, running)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(limits.seconds(120)) != 0
        limits.until(lambda: processes_in(folder) == [])
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)

    stopped = events(folder)[-1]
    assert (stopped["event"], stopped["status"]) == ("end", "STOPPED"), (tmp_path / "printed.txt").read_text()
    assert (folder / f"results/runs/long/training/checkpoints/step-{stopped['step']:08}").is_dir()
    assert not (folder / TARGET).exists()
    assert f"train_model        long  stopped by SIGINT at step {stopped['step']}\n" in (tmp_path / "printed.txt").read_text()
    log = (folder / "logs/train_model/long.log").read_text()
    assert f"stopped by SIGINT at step {stopped['step']}" in log  # the process that keeps the log survives the signal

    shown = in_terminal(["env", "TERM=xterm", "NO_COLOR=1", warm_python(), SNAKEMAKE, *words], folder)
    assert f"long  resumes after step {stopped['step']}\r\n" in shown, shown
    assert "train_model        long  done in " in shown, shown
    assert re.search(r"\x1b\[2F\x1b\[Jlong  (eta \d:\d\d  )?\d+/\d+  \d+ %  loss ", shown), f"no live line: {shown}"
    found = events(folder)
    steps = [event["step"] for event in found if event["event"] == "train"]
    assert [event["resume_step"] for event in found if event["event"] == "attempt"] == [0, stopped["step"]]
    assert steps == sorted(set(steps))
    assert (found[-1]["event"], found[-1]["status"]) == ("end", "FINISHED")
    assert found[-1]["step"] == json.loads((folder / TARGET).read_text())["facts"]["steps"] > stopped["step"]
