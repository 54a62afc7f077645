"""Worker processes: starting them, how they ended, and whether to start them again."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from snaketrain.runtime.processes import LAUNCHER_SIGNALS, SECONDS_TO_SAVE
from snaketrain.runtime.ranks import WORTH_ANOTHER_START
from snaketrain.runtime.run_folder import last_saved, microbatches_that_fit

# --- How a start of the processes ended, and whether to start them again.

LONGEST_PAUSE_SECONDS = 300


@dataclass(frozen=True)
class Ending:
    code: int
    lost: str = ""  # what was lost; empty if another start would end the same way
    node_unfit: bool = False  # another start must do without this node
    memory_kill: str = ""  # by the kernel
    planned: bool = False  # ended to start again with more processes: nothing is wrong, so no pause

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Ending":
        return cls(**json.loads(text))


class Restarts:
    """Counts the starts in a row that made no progress, and waits longer after each.

    Progress is a new checkpoint, or smaller microbatches after the memory ran out.
    """

    def __init__(self, folder: Path, allowed: int, first_pause: float, report: Callable[[str], None]):
        self.folder, self.allowed, self.first_pause, self.report = folder, allowed, first_pause, report
        self.reached, self.without_progress = progress(folder), 0

    def pause_after(self, ending: Ending) -> float | None:
        """Seconds until the next start; None to give up."""
        before, self.reached = self.reached, progress(self.folder)
        self.without_progress = 0 if self.reached > before else self.without_progress + 1
        if not ending.lost:
            return None
        if self.without_progress > self.allowed:
            self.report(
                f"{ending.lost}; {self.without_progress} starts in a row without a new checkpoint (compute.restarts: {self.allowed}), giving up"
            )
            return None
        pause = 0 if ending.planned else min(self.first_pause * 2**self.without_progress, LONGEST_PAUSE_SECONDS)
        self.report(f"{ending.lost}; resuming from step {self.reached[0]} in {pause:g} seconds")
        return pause


def progress(folder: Path) -> tuple[int, int]:
    """What the next start builds on; more is greater."""
    return last_saved(folder), microbatches_that_fit(folder)


# --- Options that launch_local.py and launch_slurm.py share, and the command that every launcher starts.


def add_restart_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--restarts", type=int, default=3, help="give up when more starts in a row have reached no new checkpoint (default: %(default)s)"
    )
    parser.add_argument(
        "--first-pause",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="pause before a restart; it doubles for each start in a row without a new checkpoint (default: %(default)g)",
    )


def parse_with_command(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """`command` becomes the words after `--`."""
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments, after --")
    args = parser.parse_args(words)
    args.command = args.command[1:] if args.command[:1] == ["--"] else args.command
    return args


def parse_with_training(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """The same for a command that trains; `folder` becomes the folder of the training."""
    args = parse_with_command(parser, words)
    if "--output" not in args.command[:-1]:
        parser.error("the command needs --output FOLDER/manifest.json: checkpoints and journal of the training are in that folder")
    args.folder = Path(args.command[args.command.index("--output") + 1]).parent
    return args


# --- The processes of one node under torch's elastic agent, which starts, signals and ends them together.


def launch_config(processes: int, nodes: int, run_id: str, backend: str, endpoint: str, **rendezvous: object) -> LaunchConfig:
    """The agent restarts nothing: within one agent, processes that read the previous start's addresses would wait for dead peers."""
    return LaunchConfig(
        min_nodes=nodes, max_nodes=nodes, nproc_per_node=processes, run_id=run_id, rdzv_backend=backend, rdzv_endpoint=endpoint,
        rdzv_configs=rendezvous, max_restarts=0, signals_to_handle=LAUNCHER_SIGNALS, shutdown_timeout=SECONDS_TO_SAVE,
    )  # fmt: skip


def run_workers(config: LaunchConfig, command: list[str]) -> Ending:
    """Run them to their end. A signal makes them save and exit, and is then raised as SignalException."""
    try:
        elastic_launch(config, sys.executable)(*command)
        return Ending(0)
    except ChildFailedError as error:
        return first_cause(error)


def first_cause(error: ChildFailedError) -> Ending:
    """The process that was lost: its peers fail at the same moment in their collectives, or the agent ends them with SIGTERM."""
    ended_by_agent = {rank for rank, failure in error.failures.items() if failure.exitcode == -signal.SIGTERM}
    for rank, failure in sorted(error.failures.items()):
        if rank in ended_by_agent and len(ended_by_agent) < len(error.failures):
            continue
        if failure.exitcode < 0:
            return Ending(128 - failure.exitcode, f"rank {rank} was killed by {failure.signal_name()}")
        if failure.exitcode == WORTH_ANOTHER_START:
            return Ending(failure.exitcode, f"rank {rank} asks for a restart")
    return Ending(next(failure.exitcode for rank, failure in error.failures.items() if rank not in ended_by_agent))


def gpus_that_answer() -> int:
    """How many the driver lists: a process that uses CUDA itself never sees a lost GPU come back. Without a driver none can be lost."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        return sys.maxsize
    except subprocess.TimeoutExpired:  # it hangs when a GPU does
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    return found if chosen is None else min(found, len(chosen.split(",")))
