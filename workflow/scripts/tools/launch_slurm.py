"""Start a script in a SLURM job: one torchrun on each of its nodes, however many the job was given.

Where the script was told that its time runs out, and saved, or where a node was lost, the job goes back into the queue
under its number. Preemptions, and lost nodes that SLURM notices first, SLURM itself queues again.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.orchestration.launching import torchrun
from snaketrain.runtime.run_folder import end_of_journal, stopped_by
from snaketrain.slurm.client import Allocation, Slurm, SlurmError

OUT_OF_TIME = "SIGUSR1"
told: list[int] = []  # signals: SLURM ends the job, and knows why


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
    try:
        return run(Slurm(), os.environ["SLURM_JOB_ID"], args, command)
    except SlurmError as error:
        raise SystemExit(str(error)) from None


def run(slurm: Slurm, number: str, args: argparse.Namespace, command: list[str]) -> int:
    job = slurm.allocation(number)
    # torch warns at each start and end of its connections; export another level to see it
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    print(f"job {job.number}: {args.processes} processes on each of {', '.join(job.hosts)}", flush=True)
    folder = Path(command[command.index("--output") + 1]).parent
    before = end_of_journal(folder)
    code = subprocess.run(step(args, job, command)).returncode
    if code and not told and (reason := why_again(slurm, job, folder, before)):
        queue_again(slurm, job, reason)
    return code


def step(args: argparse.Namespace, job: Allocation, command: list[str]) -> list[str]:
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


def why_again(slurm: Slurm, job: Allocation, folder: Path, before: int) -> str | None:
    """What is no fault of the script; none where it failed by itself."""
    if OUT_OF_TIME in stopped_by(folder, before):
        return "its time ran out; saved"
    lost = [host for host in job.hosts if len(job.hosts) > 1 and not slurm.starts_programs(job.number, host)]
    return f"{', '.join(lost)} does not answer; going on from the last checkpoint" if lost else None


def queue_again(slurm: Slurm, job: Allocation, reason: str) -> None:
    if slurm.allocation(job.number).restarts != job.restarts:
        return print(f"job {job.number}: SLURM has started it elsewhere already", flush=True)
    try:
        slurm.requeue(job.number)
    except SlurmError as error:  # the job fails, and Snakemake's `retries` start it again
        return print(f"job {job.number}: {reason}, but it cannot be queued again: {error}", flush=True)
    print(f"job {job.number}: {reason}; queued again", flush=True)
    end = time.monotonic() + 600
    while not told and time.monotonic() < end:  # until SLURM ends this start; an exit code before would count as a failure
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
