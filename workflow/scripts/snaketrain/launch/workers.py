"""Worker processes: starting them, how they ended, and whether to start them again."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

from snaketrain.runtime.processes import LAUNCHER_SIGNALS, SECONDS_TO_SAVE
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


# --- Options that launch_local.py and launch_slurm.py share, and the command of torchrun after them.


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
    parser.add_argument("--cpu", action="store_true", help="run on CPUs: do not count the GPUs that answer")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- torchrun --nproc-per-node=N SCRIPT --output FOLDER/manifest.json ...")


def parse(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """`processes` becomes the number of processes on each node, `torchrun` the other options of torchrun, `command` the script and its
    arguments, and `folder` the folder of the training."""
    args = parser.parse_args(words)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if command[:1] != ["torchrun"]:
        parser.error("the command must be `torchrun --nproc-per-node=N SCRIPT ...`")
    options = list(takewhile(lambda word: word.startswith("--"), command[1:]))
    args.command = command[1 + len(options) :]
    args.torchrun = [option for option in options if not option.startswith(PROCESSES)]
    try:
        [args.processes] = [int(option.removeprefix(PROCESSES)) for option in options if option.startswith(PROCESSES)]
    except ValueError:
        parser.error(f"torchrun needs `{PROCESSES}N`, the number of processes on each node")
    if "--output" not in args.command[:-1]:
        parser.error("the command needs --output FOLDER/manifest.json: checkpoints and journal of the training are in that folder")
    args.folder = Path(args.command[args.command.index("--output") + 1]).parent
    return args


# --- torchrun, which starts, signals and ends the processes of a node together. launch/torchrun_plugin.py is loaded into it.

PROCESSES = "--nproc-per-node="
TORCHRUN = Path(__file__).resolve().parents[2] / "torchrun"


def torchrun(options: Sequence[str]) -> list[str]:
    """The arguments of Python. It restarts nothing: within one torchrun, processes that read the previous start's addresses would wait for
    dead peers."""
    return [str(TORCHRUN), *options, "--max-restarts=0", f"--signals-to-handle={LAUNCHER_SIGNALS}", f"--shutdown-timeout={SECONDS_TO_SAVE}"]


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


def lost_gpus(processes: int) -> str:
    """What is lost if fewer GPUs answer than processes need one."""
    answering = gpus_that_answer() if processes else 0
    return f"{processes - answering} of {processes} GPUs no longer answer" if answering < processes else ""
