"""Start a script in a SLURM job: one torchrun on each of its nodes, however many the job was given.

When the script was told that its time runs out, and saved, the job is queued again under the same number. Everything else
that ends it early (a node lost, a preemption) SLURM itself queues again.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from snaketrain.launching import torchrun
from snaketrain.training_folder import stopped_by

OUT_OF_TIME = "SIGUSR1"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="on each node")
    parser.add_argument("--threads", type=int, default=1, help="CPU cores on each node")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- script.py and its arguments")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        raise SystemExit("SLURM_JOB_ID is not set: this is for jobs of SLURM. On one machine, torchrun does the same.")
    nodes = ask("squeue", "--noheader", "--job", job, "--format", "%N")
    hosts = ask("scontrol", "show", "hostnames", nodes).split()
    print(f"job {job}: {args.processes} processes on each of {len(hosts)} nodes ({nodes})", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # SLURM tells the processes as well; they save, and end by themselves
    code = subprocess.run(step(args, job, hosts, command)).returncode
    if code and OUT_OF_TIME in stopped_by(output_folder(command)):
        print(f"job {job}: its time ran out; saved, and queued again", flush=True)
        subprocess.run(["scontrol", "requeue", job], check=True)
        time.sleep(600)  # until SLURM ends this attempt; an exit code would count as a failure
    return code


def step(args: argparse.Namespace, job: str, hosts: list[str], command: list[str]) -> list[str]:
    """The srun that runs torchrun once on each node. Sizes are given, since Snakemake's job hides SLURM's variables from it."""
    port = 20000 + int(job) % 20000  # two jobs may share a node
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", job, "--rdzv-endpoint", f"{hosts[0]}:{port}"]
    agent = torchrun("--nnodes", len(hosts), "--nproc-per-node", args.processes, *rendezvous, "--max-restarts", 0)
    # known on the node only: whether it is the first one, and its own address
    here = '--rdzv-conf "is_host=$((SLURM_NODEID == 0)),join_timeout=600" --local-addr "$SLURMD_NODENAME"'
    size = ["--nodes", len(hosts), "--ntasks", len(hosts), "--ntasks-per-node", 1, "--cpus-per-task", args.threads]
    srun = ["srun", *size, "--kill-on-bad-exit=1", "--wait", 60, "--unbuffered"]
    return [*map(str, srun), "bash", "-c", f"exec {shlex.join(agent)} {here} {shlex.join(command)}"]


def output_folder(command: list[str]) -> Path:
    return Path(command[command.index("--output") + 1]).parent


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
