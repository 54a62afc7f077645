"""Run torchrun on this machine, and start it again when one of its processes is lost.

If one process is killed, hangs or loses its GPU, all of them end. After a pause that grows, as many processes as GPUs still answer resume
from the last checkpoint. When GPUs come back, the training saves and resumes with them.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.launch.workers import PROCESSES, Ending, Restarts, add_restart_options, gpus_that_answer, parse, torchrun
from snaketrain.runtime.ownership import LAUNCHER
from snaketrain.runtime.processes import LAUNCHER_SIGNALS
from snaketrain.runtime.ranks import FAILED, STOPPED_EARLY
from snaketrain.runtime.run_folder import end_of_journal, stopped_by
from torchrun_handlers import ENDING_FILE


class Workers:
    """The processes: how many were asked for, and how many are possible now."""

    def __init__(self, wanted: int, options: list[str], count_gpus: bool, look_seconds: float):
        self.wanted, self.options, self.count_gpus, self.look_seconds = wanted, options, count_gpus, look_seconds
        self.running: subprocess.Popen[bytes] | None = None
        self.signal: int | None = None  # that ends all
        for name in LAUNCHER_SIGNALS.split(","):
            signal.signal(signal.Signals[name], self._pass_on)

    def _pass_on(self, number: int, frame: object) -> None:
        self.signal = number
        if self.running:
            self.running.send_signal(number)

    def possible(self) -> int:
        return max(1, min(self.wanted, gpus_that_answer())) if self.count_gpus else self.wanted

    def run(self, command: list[str], processes: int) -> Ending:
        over, more = threading.Event(), threading.Event()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "ending.json"
            environment = os.environ | {ENDING_FILE: str(report), LAUNCHER: str(os.getpid())}
            # each start has its own store and port: processes that read the previous start's addresses would wait for dead peers
            rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={uuid.uuid4().hex}"]
            words = [sys.executable, *torchrun([*self.options, f"{PROCESSES}{processes}", *rendezvous]), *command]
            # in a process group of its own: Ctrl-C reaches it once, from here
            self.running = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, process_group=0)
            if self.signal is not None:  # it came before there was a process to pass it on to
                self.running.send_signal(self.signal)
            if processes < self.wanted:
                threading.Thread(target=self._wait_for_more, args=(processes, over, more), daemon=True).start()
            code = self.running.wait()
            over.set()
            if code and more.is_set() and self.signal is None:
                return Ending(STOPPED_EARLY, "GPUs are back", planned=True)
            ending = Ending.from_json(report.read_bytes()) if report.exists() else Ending(code if code >= 0 else 128 - code)
        if ending.code and not ending.lost and self.signal is None and (left := self.possible()) < processes:
            return replace(ending, lost=f"{processes - left} of {processes} GPUs no longer answer")
        return ending

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.signal is None and time.monotonic() < end:
            time.sleep(0.1)

    def _wait_for_more(self, processes: int, over: threading.Event, more: threading.Event) -> None:
        while not over.wait(self.look_seconds):
            if self.possible() > processes and self.running:
                more.set()
                self.running.terminate()  # torchrun passes it on: they save and exit
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_restart_options(parser)
    parser.add_argument(
        "--look",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between two checks whether lost GPUs are back (default: %(default)g)",
    )
    args = parse(parser)
    before = end_of_journal(args.folder)
    workers = Workers(args.processes, args.torchrun, not args.cpu, args.look)
    code = run_with_restarts(workers, args.command, Restarts(args.folder, args.restarts, args.first_pause, say))
    return STOPPED_EARLY if code > 128 and stopped_by(args.folder, before) else code


def run_with_restarts(workers: Workers, command: list[str], restarts: Restarts) -> int:
    while True:
        processes = workers.possible()
        if processes < workers.wanted:
            say(f"{processes} of {workers.wanted} processes, since no more GPUs answer")
        ending = workers.run(command, processes)
        if workers.signal is not None:
            return ending.code
        if (pause := restarts.pause_after(ending)) is None:
            return ending.code or (FAILED if ending.lost else 0)
        workers.pause(pause)
        if workers.signal is not None:
            return 128 + workers.signal


def say(message: str) -> None:
    print(f"warning: launch_local: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
