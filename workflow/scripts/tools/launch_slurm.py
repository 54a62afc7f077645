"""Start a script in a SLURM job with one torchrun on each of the job's nodes, however many there are.

If the script saves because its time is running out, or if a node is lost, the job is requeued under the same number. SLURM itself
requeues preempted jobs, and jobs whose lost node it notices first.
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
signals: list[int] = []  # received: SLURM is ending the job, and knows why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="processes on each node (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU cores on each node (default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments, after --")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if "SLURM_JOB_ID" not in os.environ:
        raise SystemExit("SLURM_JOB_ID is not set: this tool runs inside a SLURM job. On one machine use torchrun, or launch_local.py.")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.append(number))  # the processes get them too; they save and exit
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
    if code and not signals and (reason := why_requeue(slurm, job, folder, before)):
        requeue(slurm, job, reason)
    return code


def step(args: argparse.Namespace, job: Allocation, command: list[str]) -> list[str]:
    """The srun command that runs torchrun once on each node. Sizes are explicit, since Snakemake's job hides SLURM's variables from it."""
    # What is left of an earlier start on a node that was cut off must neither hold our port nor join us; two jobs may share a
    # node; and the system hands out ports from 32768 on to other programs
    port = 20000 + (int(job.number) + 1009 * job.restarts) % 12000
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", f"{job.number}.{job.restarts}", "--rdzv-endpoint", f"{job.hosts[0]}:{port}"]
    agent = torchrun("--nnodes", len(job.hosts), "--nproc-per-node", args.processes, *rendezvous, "--max-restarts", 0)
    # only known on the node itself: whether it is the first, and its address
    here = '--rdzv-conf "is_host=$((SLURM_NODEID == 0)),join_timeout=600" --local-addr "$SLURMD_NODENAME"'
    size = ["--nodes", len(job.hosts), "--ntasks", len(job.hosts), "--ntasks-per-node", 1, "--cpus-per-task", args.threads]
    # of whole nodes (--exclusive, or by their partition) a step gets no GPU that it does not ask for
    size += ["--gpus-per-node", job.gpus] if job.gpus else []
    # the first node may still be writing long after the others are done: --wait 0. If one node fails, the others must not wait for it
    srun = ["srun", *size, "--kill-on-bad-exit=1", "--wait", 0, "--unbuffered"]
    return [*map(str, srun), "bash", "-c", f"exec {shlex.join(agent)} {here} {shlex.join(command)}"]


def why_requeue(slurm: Slurm, job: Allocation, folder: Path, before: int) -> str | None:
    """A reason that is not the script's fault; None if the script itself failed."""
    if OUT_OF_TIME in stopped_by(folder, before):
        return "its time ran out; saved"
    lost = [host for host in job.hosts if len(job.hosts) > 1 and not slurm.starts_programs(job.number, host)]
    return f"{', '.join(lost)} does not answer; resuming from the last checkpoint" if lost else None


def requeue(slurm: Slurm, job: Allocation, reason: str) -> None:
    if slurm.allocation(job.number).restarts != job.restarts:
        return print(f"job {job.number}: SLURM has already restarted it elsewhere", flush=True)
    try:
        slurm.requeue(job.number)
    except SlurmError as error:  # the job fails, and Snakemake retries it
        return print(f"job {job.number}: {reason}, but it cannot be requeued: {error}", flush=True)
    print(f"job {job.number}: {reason}; requeued", flush=True)
    end = time.monotonic() + 600
    while not signals and time.monotonic() < end:  # until SLURM ends this start; exiting earlier would count as a failure
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
