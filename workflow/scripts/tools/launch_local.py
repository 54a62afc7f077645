"""Run a script as several processes on this machine with torchrun's agent, and restart them when one is lost.

If one process is killed, hangs or loses its GPU, all of them end. After a pause that grows, as many processes as GPUs still answer resume
from the last checkpoint. When GPUs come back, the training saves and resumes with them.
"""

import argparse
import os
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.launch.workers import (
    Ending,
    Restarts,
    add_restart_options,
    gpus_that_answer,
    launch_config,
    parse_with_training,
    run_workers,
)
from snaketrain.runtime.ranks import FAILED, STOPPED_EARLY
from snaketrain.runtime.run_folder import end_of_journal, stopped_by


class Workers:
    """The processes: how many were asked for, and how many are possible now."""

    def __init__(self, wanted: int, count_gpus: bool, look_seconds: float):
        self.wanted, self.count_gpus, self.look_seconds = wanted, count_gpus, look_seconds

    def possible(self) -> int:
        return max(1, min(self.wanted, gpus_that_answer())) if self.count_gpus else self.wanted

    def run(self, command: list[str], processes: int) -> Ending:
        # each start has its own store and port: processes that read the previous start's addresses would wait for dead peers
        config = launch_config(processes, 1, uuid.uuid4().hex, "c10d", "localhost:0")
        over, more = threading.Event(), threading.Event()
        if processes < self.wanted:
            threading.Thread(target=self._wait_for_more, args=(processes, over, more), daemon=True).start()
        try:
            ending = run_workers(config, command)
        except SignalException:
            if more.is_set():
                return Ending(STOPPED_EARLY, "GPUs are back", planned=True)
            raise
        finally:
            over.set()
        if ending.code and not ending.lost and (left := self.possible()) < processes:
            return replace(ending, lost=f"{processes - left} of {processes} GPUs no longer answer")
        return ending

    def _wait_for_more(self, processes: int, over: threading.Event, more: threading.Event) -> None:
        while not over.wait(self.look_seconds):
            if self.possible() > processes:
                more.set()
                os.kill(os.getpid(), 15)  # the agent passes it on: they save and exit
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--processes", type=int, default=2, help="number of processes, or fewer if fewer GPUs answer (default: %(default)s)"
    )
    add_restart_options(parser)
    parser.add_argument("--cpu", action="store_true", help="run on CPUs: do not limit the processes to the number of GPUs")
    parser.add_argument(
        "--look",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between two checks whether lost GPUs are back (default: %(default)g)",
    )
    args = parse_with_training(parser)
    before = end_of_journal(args.folder)
    try:
        restarts = Restarts(args.folder, args.restarts, args.first_pause, say)
        return run_with_restarts(Workers(args.processes, not args.cpu, args.look), args.command, restarts)
    except SignalException as error:
        return STOPPED_EARLY if stopped_by(args.folder, before) else 128 + error.sigval


def run_with_restarts(workers: Workers, command: list[str], restarts: Restarts) -> int:
    while True:
        processes = workers.possible()
        if processes < workers.wanted:
            say(f"{processes} of {workers.wanted} processes, since no more GPUs answer")
        ending = workers.run(command, processes)
        if (pause := restarts.pause_after(ending)) is None:
            return ending.code or (FAILED if ending.lost else 0)
        time.sleep(pause)


def say(message: str) -> None:
    print(f"warning: launch_local: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
