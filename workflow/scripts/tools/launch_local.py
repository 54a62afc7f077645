"""Run a script as several processes on this machine with torchrun's agent, and restart them when one is lost.

If one process is killed, hangs or loses its GPU, all end. They resume from the last checkpoint after a growing pause, with as many
processes as GPUs still answer. When GPUs come back, the training saves and resumes with them.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.orchestration.launching import SECONDS_TO_SAVE, SIGNALS
from snaketrain.runtime.exit_codes import FAILED, STOPPED_EARLY, WORTH_ANOTHER_START
from snaketrain.runtime.run_folder import end_of_journal, last_saved, stopped_by

LONGEST_PAUSE_SECONDS = 300


@dataclass(frozen=True)
class Ending:
    code: int
    lost: str = ""  # what was lost; empty if a restart would end the same way


class Workers:
    """The processes: how many were asked for, and how many are possible now."""

    def __init__(self, wanted: int, count_gpus: bool, look_seconds: float):
        self.wanted, self.count_gpus, self.look_seconds = wanted, count_gpus, look_seconds

    def possible(self) -> int:
        return max(1, min(self.wanted, gpus_that_answer())) if self.count_gpus else self.wanted

    def run(self, command: list[str], processes: int) -> Ending:
        # each start has its own store and port: processes that read the previous start's addresses would wait for dead peers
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
            run_id=uuid.uuid4().hex, signals_to_handle=SIGNALS, shutdown_timeout=SECONDS_TO_SAVE,
        )  # fmt: skip
        over, more = threading.Event(), threading.Event()
        if processes < self.wanted:
            threading.Thread(target=self._wait_for_more, args=(processes, over, more), daemon=True).start()
        try:
            elastic_launch(config, sys.executable)("-u", *command)
            return Ending(0)
        except ChildFailedError as error:
            return self._why(error, processes)
        except SignalException:
            if more.is_set():
                return Ending(STOPPED_EARLY, "GPUs are back")
            raise
        finally:
            over.set()

    def _wait_for_more(self, processes: int, over: threading.Event, more: threading.Event) -> None:
        while not over.wait(self.look_seconds):
            if self.possible() > processes:
                more.set()
                os.kill(os.getpid(), 15)  # the agent passes it on: they save and exit
                return

    def _why(self, error: ChildFailedError, processes: int) -> Ending:
        """The first cause: when one process is lost, its peers fail at the same moment, in their collectives."""
        for rank, failure in sorted(error.failures.items()):
            if failure.exitcode < 0:
                return Ending(128 - failure.exitcode, f"rank {rank} was killed by {failure.signal_name()}")
            if failure.exitcode == WORTH_ANOTHER_START:
                return Ending(failure.exitcode, f"rank {rank} asks for a restart")
        code = error.get_first_failure()[1].exitcode
        if (left := self.possible()) < processes:
            return Ending(code, f"{processes - left} of {processes} GPUs no longer answer")
        return Ending(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--processes", type=int, default=2, help="number of processes, or fewer if fewer GPUs answer (default: %(default)s)"
    )
    parser.add_argument(
        "--restarts", type=int, default=3, help="how many restarts in a row may fail to reach a new checkpoint (default: %(default)s)"
    )
    parser.add_argument(
        "--first-pause",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="pause before the first restart; it doubles each time (default: %(default)g)",
    )
    parser.add_argument("--cpu", action="store_true", help="run on CPUs: do not limit the processes to the number of GPUs")
    parser.add_argument(
        "--look",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between two checks whether lost GPUs are back (default: %(default)g)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments, after --")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    folder = Path(command[command.index("--output") + 1]).parent
    before = end_of_journal(folder)
    try:
        return run_with_restarts(Workers(args.processes, not args.cpu, args.look), command, folder, args.restarts, args.first_pause)
    except SignalException as error:
        return STOPPED_EARLY if stopped_by(folder, before) else 128 + error.sigval


def run_with_restarts(workers: Workers, command: list[str], folder: Path, restarts: int, first_pause: float) -> int:
    without_progress = 0
    while True:
        saved, processes = last_saved(folder), workers.possible()
        if processes < workers.wanted:
            say(f"{processes} of {workers.wanted} processes, since no more GPUs answer")
        ending = workers.run(command, processes)
        without_progress = 0 if last_saved(folder) > saved else without_progress + 1
        if not ending.lost:
            return ending.code
        if without_progress > restarts:
            say(f"{ending.lost}; {without_progress} starts in a row without a new checkpoint (compute.restarts: {restarts}), giving up")
            return ending.code or FAILED
        pause = min(first_pause * 2**without_progress, LONGEST_PAUSE_SECONDS) if ending.code != STOPPED_EARLY else 0
        say(f"{ending.lost}; resuming from step {last_saved(folder)} in {pause:g} seconds")
        time.sleep(pause)


def gpus_that_answer() -> int:
    """Counted by the driver: a process that uses CUDA itself never sees a GPU come back. Without a driver no GPU can be lost."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        return sys.maxsize
    except subprocess.TimeoutExpired:  # it hangs when a GPU does
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    return found if chosen is None else min(found, len(chosen.split(",")))


def say(message: str) -> None:
    print(f"launch_local: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
