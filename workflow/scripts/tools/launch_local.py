"""Start a script as several processes on this machine with torchrun's agent, and again when one of them was lost.

All end when one is killed, hangs or loses its GPU; they go on from the last checkpoint after a pause that grows, as many as
there are GPUs that still answer. When GPUs come back, the training saves and goes on with them.
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
    lost: str = ""  # what was lost; empty where another start would come to the same


class Crew:
    """The processes: how many were asked for, and how many there can be now."""

    def __init__(self, wanted: int, count_gpus: bool, look_seconds: float):
        self.wanted, self.count_gpus, self.look_seconds = wanted, count_gpus, look_seconds

    def possible(self) -> int:
        return max(1, min(self.wanted, gpus_that_answer())) if self.count_gpus else self.wanted

    def work(self, command: list[str], processes: int) -> Ending:
        # a store and a port of its own for each start: processes that read the last start's addresses wait for the dead
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
                return Ending(STOPPED_EARLY, "there are more GPUs again")
            raise
        finally:
            over.set()

    def _wait_for_more(self, processes: int, over: threading.Event, more: threading.Event) -> None:
        while not over.wait(self.look_seconds):
            if self.possible() > processes:
                more.set()
                os.kill(os.getpid(), 15)  # the agent passes it on: they save and end
                return

    def _why(self, error: ChildFailedError, processes: int) -> Ending:
        """The others fail in the same moment, when they miss the one that was lost: theirs is not the reason."""
        for rank, failure in sorted(error.failures.items()):
            if failure.exitcode < 0:
                return Ending(128 - failure.exitcode, f"process {rank} was ended by {failure.signal_name()}")
            if failure.exitcode == WORTH_ANOTHER_START:
                return Ending(failure.exitcode, f"process {rank} asks for another start")
        code = error.get_first_failure()[1].exitcode
        if (left := self.possible()) < processes:
            return Ending(code, f"{processes - left} of {processes} GPUs do not answer any more")
        return Ending(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="at most; fewer where fewer GPUs answer")
    parser.add_argument("--restarts", type=int, default=3, help="in a row without a new checkpoint (default: %(default)s)")
    parser.add_argument("--first-pause", type=float, default=2.0, metavar="SECONDS", help="before a restart; doubles each time")
    parser.add_argument("--cpu", action="store_true", help="do not count GPUs")
    parser.add_argument("--look", type=float, default=60.0, metavar="SECONDS", help="how often to look whether lost GPUs are back")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- script.py and its arguments")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    folder = Path(command[command.index("--output") + 1]).parent
    before = end_of_journal(folder)
    try:
        return keep_at_it(Crew(args.processes, not args.cpu, args.look), command, folder, args.restarts, args.first_pause)
    except SignalException as error:
        return STOPPED_EARLY if stopped_by(folder, before) else 128 + error.sigval


def keep_at_it(crew: Crew, command: list[str], folder: Path, restarts: int, first_pause: float) -> int:
    in_vain = 0
    while True:
        saved, processes = last_saved(folder), crew.possible()
        if processes < crew.wanted:
            say(f"{processes} of {crew.wanted} processes, as many as GPUs answer")
        ending = crew.work(command, processes)
        in_vain = 0 if last_saved(folder) > saved else in_vain + 1
        if not ending.lost:
            return ending.code
        if in_vain > restarts:
            say(f"{ending.lost}; {in_vain} starts in a row saved nothing new (compute.restarts: {restarts}), so it ends here")
            return ending.code or FAILED
        pause = min(first_pause * 2**in_vain, LONGEST_PAUSE_SECONDS) if ending.code != STOPPED_EARLY else 0
        say(f"{ending.lost}; going on from step {last_saved(folder)} in {pause:g} seconds")
        time.sleep(pause)


def gpus_that_answer() -> int:
    """Asked of the driver: a process that holds CUDA itself never sees a GPU come back. Without a driver there is none to lose."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        return sys.maxsize
    except subprocess.TimeoutExpired:  # it hangs where a GPU does
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    return found if chosen is None else min(found, len(chosen.split(",")))


def say(message: str) -> None:
    print(f"launch_local: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
