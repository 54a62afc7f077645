"""What a workflow costs the login node while hundreds of its jobs wait in SLURM's queue: CPU, memory, and questions to SLURM.

The jobs are trainings that may begin only tomorrow. Measured from when all of them are queued: snakemake, which looks at them, and the
follower. On the SLURM of this environment, or, where there is none, on a cluster on this machine, which needs root and the packages that
`make test-slurm` needs.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from harness import REPOSITORY, command_line, write_figures
from pipeline.workspace import configuration, make_workspace, snakemake
from slurm import lab
from slurm.conftest import SIZE, why_not

PROGRAMS = ("squeue", "scontrol", "sinfo", "sacct", "sbatch", "scancel")
SECONDS_BETWEEN_SAMPLES = 5


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Whose cluster it is."""
    if shutil.which("sinfo") and subprocess.run(["sinfo"], capture_output=True).returncode == 0:
        yield "of this environment"
        return
    if reason := why_not():
        sys.exit(reason)
    with lab.started(folder, **SIZE):
        yield "on the same machine"


def workspace(folder: Path, jobs: int) -> Path:
    """With its data prepared, and nothing else to do than to train."""
    config = configuration()
    config["compute"] = {"threads": 1, "device": "cpu", "memory_mb": 1000, "minutes": 20, "sbatch": "--begin=now+1days"}
    config |= {"runs": {}, "sweeps": {"seed": {"train.seed": list(range(jobs))}}}
    make_workspace(folder, **config)
    snakemake(folder, "--until", "prepare_data")
    return folder


def counted(folder: Path) -> dict[str, str]:
    """An environment in which each call of SLURM's programs is a line of the file `asked`."""
    folder.mkdir()
    for name in PROGRAMS:
        if real := shutil.which(name):
            (folder / name).write_text(f'#!/bin/sh\necho {name} >> {folder}/asked\nexec {real} "$@"\n')
            (folder / name).chmod(0o755)
    (folder / "asked").touch()
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY / "workflow/scripts")}


def processes(pid: int) -> dict[str, list[psutil.Process]]:
    """snakemake's and the follower's, with what they have started."""
    found: dict[str, list[psutil.Process]] = {"snakemake": [psutil.Process(pid)], "follower": []}
    for process in found["snakemake"][0].children(recursive=True):
        try:
            above = [process, *process.parents()]
            follows = any("follow_runs.py" in " ".join(each.cmdline()) for each in above)
        except psutil.NoSuchProcess:
            continue
        found["follower" if follows else "snakemake"].append(process)
    return found


def cpu_and_memory(found: list[psutil.Process]) -> tuple[float, float]:
    """CPU seconds, with those of children that have ended, and MB; what processes share counts once, and a program that was just started not."""
    seconds = megabytes = 0.0
    for process in found:
        try:
            seconds += sum(process.cpu_times()[:4])
            if time.time() - process.create_time() > SECONDS_BETWEEN_SAMPLES:
                megabytes += process.memory_full_info().pss / 2**20
        except psutil.NoSuchProcess:
            continue
    return seconds, megabytes


def watched(pid: int, minutes: float, asked: Path) -> dict[str, Any]:
    before, peaks = {name: cpu_and_memory(each)[0] for name, each in processes(pid).items()}, Counter[str]()
    calls, began = len(asked.read_text().split()), time.monotonic()
    while time.monotonic() - began < 60 * minutes:
        time.sleep(SECONDS_BETWEEN_SAMPLES)
        now = {name: cpu_and_memory(each) for name, each in processes(pid).items()}
        for name, (_, megabytes) in now.items():
            peaks[name] = max(peaks[name], round(megabytes))
    seconds = time.monotonic() - began
    return {
        "minutes": minutes,
        "percent of a core": {name: round(100 * (cpu - before[name]) / seconds, 2) for name, (cpu, _) in now.items()},
        "peak, MB": dict(peaks),
        "calls of SLURM a minute": {
            name: round(60 * count / seconds, 2) for name, count in Counter(asked.read_text().split()[calls:]).items()
        },
    }


def queued(folder: Path) -> int:
    rows = lab.slurm("squeue", "--me", "--noheader", "--states=PENDING", "--format=%Z").splitlines()
    return sum(Path(row) == folder for row in rows)


def main() -> None:
    parser = command_line("queued_jobs", __doc__)
    parser.add_argument("--jobs", type=int, default=500, help="how many wait (%(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="how long they are watched (%(default)s)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="queued-jobs-")).resolve()
    folder.chmod(0o755)
    with cluster(folder / "cluster") as where:
        here = workspace(folder / "workspace", args.jobs)
        options = ["--snakefile", REPOSITORY / "Snakefile", "--profile", REPOSITORY / "profiles/slurm", "--jobs", args.jobs]
        began = time.monotonic()
        with open(here / "snakemake.out", "w") as output:
            workflow = subprocess.Popen(
                [*map(str, [sys.executable, "-m", "snakemake", *options])],
                cwd=here,
                env=counted(folder / "bin"),
                stdout=output,
                stderr=output,
            )
        try:
            lab.until(lambda: workflow.poll() is not None or queued(here) == args.jobs, "all jobs are queued", seconds=1800)
            if workflow.poll() is not None:
                sys.exit((here / "snakemake.out").read_text())
            found = {"jobs": args.jobs, "cluster": where, "seconds until all were queued": round(time.monotonic() - began)}
            found |= watched(workflow.pid, args.minutes, folder / "bin/asked")
        finally:
            workflow.send_signal(signal.SIGINT)
            workflow.wait(600)
    shutil.rmtree(folder)
    write_figures(args.output, found)


if __name__ == "__main__":
    main()
