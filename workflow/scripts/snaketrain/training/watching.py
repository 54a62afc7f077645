"""What watches a training and cannot change its result: its journals, and the callbacks that the workflow gives it."""

import contextlib
import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil
from torch.profiler import ProfilerActivity, profile

from snaketrain.runtime.journal import Event, Journal, TrainingProgress
from snaketrain.runtime.manifests import make_private_folder
from snaketrain.runtime.rank_logs import keeps_files
from snaketrain.strategies.base import Strategy
from snaketrain.training.callbacks import Callback
from snaketrain.training.hangs import StallWatchdog
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
        StallWatchdog(folder / "logs/stalled", strategy, stall_seconds, journal),
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
ASK_GPUS = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,power.draw", "--format=csv,noheader,nounits"]


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
    """Load of the CPUs, memory of the machine and of this process, and load, memory and power of each GPU."""
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
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for line in subprocess.run(ASK_GPUS, capture_output=True, text=True, timeout=10).stdout.splitlines():
            number, *values = line.split(",")
            for name, value in zip(("percent", "memory_mb", "watts"), values, strict=False):
                with contextlib.suppress(ValueError):  # [N/A]
                    found[f"gpu_{int(number)}_{name}"] = float(value)
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
