"""What watches a training and cannot change its result: its journals, and the callbacks that the workflow gives it."""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psutil
from torch.profiler import ProfilerActivity, profile

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.journal import Event, Journal, TrainingProgress
from snaketrain.runtime.manifests import PRIVATE_FILE, make_private_folder, write_text
from snaketrain.runtime.rank_logs import keeps_files
from snaketrain.runtime.ranks import WORTH_ANOTHER_START
from snaketrain.strategies.base import Strategy
from snaketrain.training.callbacks import Callback
from snaketrain.training.state import StepOutcome, TrainState

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def open_journals(
    folder: Path,
    strategy: Strategy,
    check: Callable[[], None] = lambda: None,
    about: Mapping[str, object] = MappingProxyType({}),
    own_journal: bool | None = None,
) -> tuple[Journal, Journal]:
    """The journal of the training, which only rank 0 writes, and the one of this rank; `about` describes this attempt.

    `own_journal`: whether this rank writes one; by default the first rank of each node does.
    """
    make_private_folder(folder / "logs")
    whole = Journal(folder / "journal.jsonl", strategy.rank == 0, check, about)
    return whole, Journal(folder / f"logs/rank-{strategy.rank}.jsonl", keeps_files() if own_journal is None else own_journal)


def default_callbacks(
    run: str, folder: Path, strategy: Strategy, journal: Journal, stall_seconds: float, profile: str | None
) -> list[Callback]:
    """The callbacks of a training that the workflow starts; `profile`: the first step to trace, and how many."""
    callbacks = [
        StallWatchdog(folder / "logs/stalled", strategy.rank, strategy.world_size, stall_seconds, journal),
        Progress(run, journal), TensorBoard(folder / "tensorboard"), MachineLoad(journal), Samples(journal),
    ]  # fmt: skip
    if profile:
        callbacks.append(Profiler(folder / "profile", *map(int, profile.split(":"))))
    return callbacks


# --- One live line in a terminal, whole lines in a log.

LOG_SECONDS = 10.0  # between two lines in a log
LIVE_SECONDS = 0.2  # drawing at each line of the journal would slow quick steps down
ERASE_LINE = "\r\x1b[K"


class Progress(Callback):
    """Follows the journal, which only rank 0 writes: the other ranks show nothing."""

    def __init__(self, run: str, journal: Journal):
        self.progress = TrainingProgress(run)
        self.live = sys.stderr.isatty()
        self.shown = time.monotonic()
        journal.listeners.append(self.follow)

    def follow(self, event: Event) -> None:
        self.progress.add(event)
        if event["event"] in ("train", "eval"):
            self.show(now=event["event"] == "eval")

    def show(self, now: bool) -> None:
        if not now and time.monotonic() - self.shown < (LIVE_SECONDS if self.live else LOG_SECONDS):
            return
        self.shown = time.monotonic()
        if self.live:  # the cursor stays at the beginning of the line, where the next message replaces it
            line = self.progress.line[: shutil.get_terminal_size().columns - 1]
            print(f"{ERASE_LINE}{line}", end="\r", file=sys.stderr, flush=True)
        else:
            logging.info("%s", self.progress.line)

    def on_train_end(self, state: TrainState) -> None:
        if self.live:
            print(file=sys.stderr, flush=True)


# --- What a task shows of an evaluation in words, such as generated answers: in the journal and in the log.

MOST_CHARACTERS = 300  # of a text in the log; the journal has all of it


class Samples(Callback):
    """Written by the first rank, from the examples that it evaluates."""

    def __init__(self, journal: Journal):
        self.journal = journal

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        samples = state.task.samples()
        if state.rank > 0 or not samples:
            return
        self.journal.write("samples", step=state.step, samples=samples)
        for sample in samples:
            logging.info("step %d: %s", state.step, ", ".join(f"{name} {shortened(value)}" for name, value in sample.items()))


def shortened(value: object) -> str:
    """On one line, whatever the text contains."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


# --- TensorBoard event files, with the same figures as the journal, where the package tensorboard is installed.

BUNDLE_SECONDS = 1.0  # figures are written in bundles, since writing each one slows small steps down


class TensorBoard(Callback):
    """Written by the first rank."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.waiting: list[tuple[str, int, dict[str, float], float]] = []
        self.written = time.monotonic()
        self.events: SummaryWriter | None = None

    def on_train_start(self, state: TrainState) -> None:
        if state.rank == 0 and find_spec("tensorboard") is None:
            logging.info("no files for TensorBoard are written: `pip install tensorboard` to get them")
        elif state.rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(self.folder), purge_step=state.step + 1, max_queue=1000)

    def on_log(self, state: TrainState, figures: dict[str, float]) -> None:
        self._add("train", state.step, figures)

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        if state.step:
            self._add("eval", state.step, metrics)

    def _add(self, prefix: str, step: int, figures: dict[str, float]) -> None:
        if self.events:
            self.waiting.append((prefix, step, figures, time.time()))
            if time.monotonic() - self.written > BUNDLE_SECONDS:
                self._write(self.events)

    def _write(self, events: "SummaryWriter") -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert events.file_writer is not None, "until it is closed"
        for prefix, step, figures, when in self.waiting:
            values = [Summary.Value(tag=f"{prefix}/{name}", simple_value=value) for name, value in figures.items()]
            events.file_writer.add_summary(Summary(value=values), step, when)
        self.waiting, self.written = [], time.monotonic()

    def on_train_end(self, state: TrainState) -> None:
        if self.events:
            self._write(self.events)
            self.events.close()

    def on_error(self, state: TrainState, error: BaseException) -> None:
        self.on_train_end(state)


# --- The load of the machine every few seconds, from a thread of the first rank.

INTERVAL_SECONDS = 5.0
ASK_GPUS = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


class MachineLoad(Callback):
    """Writes the load of the first rank's machine into the journal."""

    def __init__(self, journal: Journal, interval_seconds: float = INTERVAL_SECONDS):
        self.journal, self.interval_seconds = journal, interval_seconds
        self.over = threading.Event()
        self.thread: threading.Thread | None = None

    def on_train_start(self, state: TrainState) -> None:
        if state.rank == 0:
            self.thread = threading.Thread(target=self._sample, args=(state,), name="machine load", daemon=True)
            self.thread.start()

    def _sample(self, state: TrainState) -> None:
        psutil.cpu_percent()  # the first call starts the measurement
        while not self.over.wait(self.interval_seconds):
            try:
                self.journal.write("system", step=state.step, metrics=figures())
            except Exception:  # a full disk, or another training in the folder: the trainer finds out itself
                return

    def on_train_end(self, state: TrainState) -> None:
        self.over.set()
        if self.thread:
            self.thread.join()

    def on_error(self, state: TrainState, error: BaseException) -> None:
        self.on_train_end(state)


def figures() -> dict[str, float]:
    """Load of the CPUs, memory of the machine and of this process, and load and memory of each GPU."""
    found = {
        "cpu_percent": psutil.cpu_percent(),
        "memory_mb": round(psutil.virtual_memory().used / 2**20, 1),
        "process_memory_mb": round(psutil.Process().memory_info().rss / 2**20, 1),
    }
    return found | gpus()


def gpus() -> dict[str, float]:
    if not shutil.which(ASK_GPUS[0]):
        return {}
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        for line in subprocess.run(ASK_GPUS, capture_output=True, text=True, timeout=10).stdout.splitlines():
            number, busy, memory_mb = map(float, line.split(","))
            found |= {f"gpu_{number:.0f}_percent": busy, f"gpu_{number:.0f}_memory_mb": memory_mb}
    return found


# --- A `torch.profiler` trace of a few steps, one file per rank, to be opened in Perfetto or chrome://tracing.


class Profiler(Callback):
    """Traces `steps` steps from `first_step` on; a training that resumes within them leaves no trace."""

    def __init__(self, folder: Path, first_step: int, steps: int):
        self.folder, self.first_step, self.last_step = folder, first_step, first_step + steps - 1
        self.running: profile | None = None

    def on_train_start(self, state: TrainState) -> None:
        self._start(state)

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        if self.running and state.step == self.last_step:
            self.running.stop()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.running.export_chrome_trace(str(self.folder / f"rank-{state.rank}-steps-{self.first_step}-{self.last_step}.json.gz"))
            self.running = None
        self._start(state)

    def _start(self, state: TrainState) -> None:
        if state.step + 1 == self.first_step:
            cuda = [ProfilerActivity.CUDA] if state.strategy.device.type == "cuda" else []
            self.running = profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True)
            self.running.start()

    def on_train_end(self, state: TrainState) -> None:
        if self.running:
            self.running.stop()
            self.running = None

    def on_error(self, state: TrainState, error: BaseException) -> None:
        self.on_train_end(state)


# --- A training that hangs: it tells where each rank is, and ends.

POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 10.0  # if more passed between two polls, the process was suspended, or its machine slept
LATE_SECONDS, TIMES_AS_LONG = 60.0, 2.0  # without a step, and compared with the longest time for one, until that is told
PEERS_SECONDS = 5.0  # for the other ranks to write down where they are


class StallWatchdog(Callback):
    """Tells where the ranks are if no step and no batch of an evaluation ends for a minute; after `limit_seconds` it ends the process.

    Time in which the process was suspended does not count.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, limit_seconds: float, journal: Journal | None = None):
        self.folder, self.rank, self.world_size, self.limit, self.journal = folder, rank, world_size, limit_seconds, journal
        self.main = threading.get_ident()
        self.closed = threading.Event()
        self.idle_seconds, self.longest_seconds = 0.0, 0.0
        self.is_late = True  # what an earlier start has written is removed
        self.beat()
        threading.Thread(target=self._watch, name="stall watchdog", daemon=True).start()

    def beat(self, *_: Any, **__: Any) -> None:
        self.longest_seconds = max(self.longest_seconds, self.idle_seconds)
        self.idle_seconds = 0.0
        if self.is_late:
            self.is_late = False
            with contextlib.suppress(OSError):  # which must not fail a step
                self._stack.unlink()

    def close(self, *_: Any, **__: Any) -> None:
        self.closed.set()

    on_step_end = on_evaluation_step = on_checkpoint = beat
    on_train_end = close

    def on_train_start(self, state: TrainState) -> None:
        self.beat()
        self.longest_seconds = 0.0  # the start may have taken longer than any step

    def _watch(self) -> None:
        polled = time.monotonic()
        while not self.closed.wait(min(POLL_SECONDS, self.limit / 4)):
            now = time.monotonic()
            self.idle_seconds += min(now - polled, LONGEST_POLL_SECONDS)
            polled = now
            if self.idle_seconds > self.limit:
                self._end()
            if not self.is_late and self.idle_seconds > self._late_seconds:
                self.is_late = True
                self._tell()

    @property
    def _late_seconds(self) -> float:
        """The first rank is the last one, so that it finds what the others have written."""
        return LATE_SECONDS if self.rank else max(LATE_SECONDS, TIMES_AS_LONG * self.longest_seconds)

    def _tell(self) -> None:
        self._write_stack()
        if self.rank:
            return
        time.sleep(PEERS_SECONDS)
        if self.is_late and (seconds := round(self.idle_seconds + PEERS_SECONDS)) < self.limit:
            places = {named(ranks): place for place, ranks in self._places()}
            logging.warning(
                "nothing has moved for %d seconds: %s", seconds, "; ".join(f"{ranks} {place}" for ranks, place in places.items())
            )
            with contextlib.suppress(Exception):  # a full disk, or another training in the folder: the trainer finds out itself
                if self.journal:
                    self.journal.write("idle", seconds=seconds, places=places)

    def _end(self) -> None:
        stack = self._write_stack()
        logging.error(
            "nothing has moved for %.0f seconds (compute.stall_seconds); rank %d is here:\n%s",
            self.limit, self.rank, "".join(traceback.format_list(stack[-12:])),
        )  # fmt: skip
        time.sleep(PEERS_SECONDS * (1 if self.rank == 0 else 2))  # the first rank to exit ends the others
        if self.rank == 0:
            for place, ranks in self._places():
                logging.error("%s: %s", named(ranks), place)
            logging.error("stacks of all ranks: %s", self.folder)
        logging.shutdown()
        os._exit(WORTH_ANOTHER_START)  # the main thread is stuck, perhaps in a call that no exception reaches

    @property
    def _stack(self) -> Path:
        return self.folder / f"rank-{self.rank}.txt"

    def _write_stack(self) -> traceback.StackSummary:
        """Where the main thread is."""
        stack = traceback.extract_stack(sys._current_frames()[self.main])
        with contextlib.suppress(OSError):  # such as a full disk, after which a process that hangs must end all the same
            make_private_folder(self.folder)
            write_text(self._stack, hidden("".join(traceback.format_list(stack))), PRIVATE_FILE)
        return stack

    def _places(self) -> list[tuple[str, list[int]]]:
        """Where the ranks are, in the order of how many are there: most wait for the few that are elsewhere."""
        places: dict[str, list[int]] = {}
        for rank in range(self.world_size):
            places.setdefault(self._where(rank), []).append(rank)
        return sorted(places.items(), key=lambda item: len(item[1]))

    def _where(self, rank: int) -> str:
        try:
            lines = (self.folder / f"rank-{rank}.txt").read_text(encoding="utf-8").splitlines()
        except OSError:
            return "does not answer: the machine or the process may be gone or suspended"
        frames = [line.strip() for line in lines if line.startswith("  File")]
        places = [frame for frame in frames if not frame.startswith('File "<')] or frames or ["no frame of Python"]  # files, not <string>
        # inside torch, or where a strategy waits for it, most likely means a collective, blocked by the rank that is busy elsewhere
        is_waiting = any(folder in places[-1] for folder in ("/torch/", "/snaketrain/strategies/"))
        return f"{'waiting' if is_waiting else 'busy'} in {places[-1]}"


def named(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0-2, 4-1023`, from their numbers in ascending order."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join('-'.join(map(str, span)) for span in spans)}"
