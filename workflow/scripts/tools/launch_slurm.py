"""Start a script in a SLURM job: one torchrun on each of its nodes, however many the job was given.

Where the script was told that its time runs out, and saved, or where a node was lost, the job goes back into the queue
under its number. Preemptions, and lost nodes that SLURM notices first, SLURM itself queues again.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.orchestration.launching import torchrun
from snaketrain.runtime.run_folder import end_of_journal, stopped_by

OUT_OF_TIME = "SIGUSR1"
PROBE_SECONDS = 60  # in which a node that lives starts a program
told: list[int] = []  # signals: SLURM ends the job, and knows why


@dataclass(frozen=True)
class Job:
    """The job that this runs in. Its number stays the same when it is queued again, `restarts` does not."""

    number: str
    restarts: int
    hosts: tuple[str, ...]

    @classmethod
    def now(cls, number: str) -> "Job":
        shown = ask("scontrol", "show", "job", "--oneliner", number)
        found = {key: re.search(rf" {key}=(\S+)", shown) for key in ("Restarts", "NodeList")}
        nodes = found["NodeList"][1] if found["NodeList"] else ""
        hosts = () if nodes in ("", "(null)") else tuple(ask("scontrol", "show", "hostnames", nodes).split())
        return cls(number, int(found["Restarts"][1]) if found["Restarts"] else 0, hosts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="on each node")
    parser.add_argument("--threads", type=int, default=1, help="CPU cores on each node")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- script.py and its arguments")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if "SLURM_JOB_ID" not in os.environ:
        raise SystemExit("SLURM_JOB_ID is not set: this is for jobs of SLURM. On one machine, torchrun does the same.")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, _: told.append(number))  # the processes are told as well; they save, and end by themselves
    job = Job.now(os.environ["SLURM_JOB_ID"])
    # torch warns at each start and end of its connections; export another level to see it
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    print(f"job {job.number}: {args.processes} processes on each of {', '.join(job.hosts)}", flush=True)
    folder = Path(command[command.index("--output") + 1]).parent
    before = end_of_journal(folder)
    code = subprocess.run(step(args, job, command)).returncode
    if code and not told and (reason := why_again(job, folder, before)):
        queue_again(job, reason)
    return code


def step(args: argparse.Namespace, job: Job, command: list[str]) -> list[str]:
    """The srun that runs torchrun once on each node. Sizes are given, since Snakemake's job hides SLURM's variables from it."""
    # What may be left of an earlier start on a node that was cut off must neither hold our port nor join us; two jobs may
    # share a node; and ports from 32768 on are handed out to programs that ask for any
    port = 20000 + (int(job.number) + 1009 * job.restarts) % 12000
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", f"{job.number}.{job.restarts}", "--rdzv-endpoint", f"{job.hosts[0]}:{port}"]
    agent = torchrun("--nnodes", len(job.hosts), "--nproc-per-node", args.processes, *rendezvous, "--max-restarts", 0)
    # known on the node only: whether it is the first one, and its own address
    here = '--rdzv-conf "is_host=$((SLURM_NODEID == 0)),join_timeout=600" --local-addr "$SLURMD_NODENAME"'
    size = ["--nodes", len(job.hosts), "--ntasks", len(job.hosts), "--ntasks-per-node", 1, "--cpus-per-task", args.threads]
    # the first node may write for long after the others are done: --wait 0. One that fails must not leave the others waiting
    srun = ["srun", *size, "--kill-on-bad-exit=1", "--wait", 0, "--unbuffered"]
    return [*map(str, srun), "bash", "-c", f"exec {shlex.join(agent)} {here} {shlex.join(command)}"]


def why_again(job: Job, folder: Path, before: int) -> str | None:
    """What is no fault of the script; none where it failed by itself."""
    if OUT_OF_TIME in stopped_by(folder, before):
        return "its time ran out; saved"
    lost = [host for host in job.hosts if len(job.hosts) > 1 and not answers(job, host)]
    return f"{', '.join(lost)} does not answer; going on from the last checkpoint" if lost else None


def answers(job: Job, host: str) -> bool:
    """SLURM itself may take minutes to notice that a node is lost, while the processes on the others fail at once."""
    probe = ["srun", "--jobid", job.number, "--overlap", "--nodes=1", "--ntasks=1", "--nodelist", host, "true"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=PROBE_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def queue_again(job: Job, reason: str) -> None:
    if Job.now(job.number).restarts != job.restarts:
        return print(f"job {job.number}: SLURM has started it elsewhere already", flush=True)
    done = subprocess.run(["scontrol", "requeue", job.number], capture_output=True, text=True)
    if done.returncode:  # then it fails, and Snakemake's `retries` start it again
        return print(f"job {job.number}: {reason}, but it cannot be queued again: {done.stderr.strip()}", flush=True)
    print(f"job {job.number}: {reason}; queued again", flush=True)
    end = time.monotonic() + 600
    while not told and time.monotonic() < end:  # until SLURM ends this start; an exit code before would count as a failure
        time.sleep(0.2)


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
