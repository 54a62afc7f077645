"""Run torchrun on each node of a SLURM job, however many there are, and restart it within the job when processes or nodes are lost.

If too few nodes are left, or the script saves because its time is running out, the job is requeued under the same number. SLURM itself
requeues preempted jobs, and jobs whose lost node it notices first.
"""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies
# torch, which reads this when it is imported, warns at each start and end of its connections; export another level to see it
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from snaketrain.config.sizes import NodeCounts
from snaketrain.launch.slurm_job import SlurmJob
from snaketrain.launch.slurm_step import NodeSize
from snaketrain.launch.workers import Restarts, add_restart_options, parse
from snaketrain.slurm.client import Slurm, SlurmError


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nodes",
        type=NodeCounts.of,
        default="1",
        help="nodes to train on: 2, a range such as 1-4, or 4+1 with a spare (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU cores on each node (default: %(default)s)")
    parser.add_argument("--interface", help="network interface over which nodes communicate, such as ib0 (default: the system chooses)")
    parser.add_argument(
        "--python",
        type=shlex.split,
        default=[sys.executable],
        help="command that starts Python on a node, in a container for example (default: this Python)",
    )
    parser.add_argument(
        "--srun", action="append", default=[], metavar="OPTION", help="a further option of srun; may be given several times"
    )
    parser.add_argument(
        "--save-before-limit",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long before the job's time limit SLURM signals the processes to save; with less time left, the job is requeued instead of "
        "restarting them (default: they are not signalled)",
    )
    add_restart_options(parser)
    parser.add_argument(
        "--silence",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a node is probed after this long without a heartbeat (default: %(default)g)",
    )
    return parse(parser, words)


def node_size(args: argparse.Namespace) -> NodeSize:
    return NodeSize(args.processes, args.threads, args.cpu, tuple(args.torchrun), args.interface, tuple(args.python), tuple(args.srun))


def main() -> int:
    args = arguments()
    if "SLURM_JOB_ID" not in os.environ:
        raise SystemExit(
            "SLURM_JOB_ID is not set: this tool runs inside a SLURM job. On one machine use launch_local.py, or torchrun alone."
        )
    size = node_size(args)
    restarts = Restarts(args.folder, args.restarts, args.first_pause, lambda message: job.say(message))
    try:
        job = SlurmJob(
            Slurm(), os.environ["SLURM_JOB_ID"], args.folder, args.nodes, size, restarts, args.silence,
            os.environ.get("SLURMD_NODENAME", ""), args.save_before_limit,
        )  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, _: job.signals.append(number))  # the processes get them too; they save and exit
        return job.train(args.command)
    except SlurmError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
