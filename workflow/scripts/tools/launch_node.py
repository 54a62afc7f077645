"""One node's part of a training under SLURM: run its processes with torch's elastic agent, and report how they ended. launch_slurm.py starts it."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.launch.rendezvous import BACKEND, Member
from snaketrain.launch.slurm_step import use_interface
from snaketrain.launch.workers import Ending, gpus_that_answer, launch_config, parse_with_command, run_workers
from snaketrain.runtime.processes import kill_since, memory_use
from snaketrain.runtime.ranks import STOPPED_EARLY, WORTH_ANOTHER_START


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rendezvous", required=True, metavar="HOST:PORT", help="where the nodes meet")
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
    parser.add_argument("--processes", type=int, required=True, help="processes on this node")
    parser.add_argument("--cpu", action="store_true", help="run on CPUs: do not count the GPUs that answer")
    parser.add_argument("--interface", help="network interface over which ranks communicate")
    args = parse_with_command(parser)
    if args.interface:
        use_interface(args.interface)
    member = Member(args.rendezvous, os.environ["SLURMD_NODENAME"], args.nodes, os.environ["SLURM_STEP_ID"])
    try:
        ending = run(args)
    except SignalException as error:
        ending = Ending(128 + error.sigval)
        member.report(ending)
        return 0  # the processes on other nodes may still be saving, and another code would have SLURM kill them
    member.report(ending)
    return 0 if ending.code == STOPPED_EARLY else ending.code


def run(args: argparse.Namespace) -> Ending:
    if lost := lost_gpus(args):
        return Ending(WORTH_ANOTHER_START, lost, node_unfit=True)
    config = launch_config(
        args.processes, args.nodes, os.environ["SLURM_STEP_ID"], BACKEND, args.rendezvous, rank=int(os.environ["SLURM_NODEID"])
    )
    before = memory_use()
    ending = run_workers(config, args.command)
    if ending.code and (kill := kill_since(before)):  # with as much memory it would be killed again
        return replace(ending, memory_kill=str(kill), lost=ending.lost if kill.of_machine else "")
    if ending.code and (lost := lost_gpus(args)):
        return Ending(ending.code, lost, node_unfit=True)
    return ending


def lost_gpus(args: argparse.Namespace) -> str:
    answering = args.processes if args.cpu else gpus_that_answer()
    return f"{args.processes - answering} of {args.processes} GPUs no longer answer" if 0 <= answering < args.processes else ""


if __name__ == "__main__":
    sys.exit(main())
