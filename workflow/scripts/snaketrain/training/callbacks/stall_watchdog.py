"""Ends a training that hangs, and logs where each rank was."""

import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import PRIVATE_FILE, make_private_folder, write_text
from snaketrain.runtime.ranks import WORTH_ANOTHER_START
from snaketrain.training.callbacks.base import Callback
from snaketrain.training.state import StepOutcome, TrainState

POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 10.0  # if more passed between two polls, the process was suspended, or its machine slept
PEERS_SECONDS = 5.0  # for the other ranks to write down where they are


class StallWatchdog(Callback):
    """If no step and no batch of an evaluation has ended for `limit_seconds`, the process logs its stack and exits.

    Time in which the process was suspended does not count.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, limit_seconds: float):
        self.folder, self.rank, self.world_size, self.limit = folder, rank, world_size, limit_seconds
        self.main = threading.get_ident()
        self.closed = threading.Event()
        self.beat()
        for old in folder.glob(f"rank-{rank}.txt"):
            old.unlink()
        threading.Thread(target=self._watch, name="stall watchdog", daemon=True).start()

    def beat(self) -> None:
        self.idle_seconds = 0.0

    def close(self) -> None:
        self.closed.set()

    def on_train_start(self, state: TrainState) -> None:
        self.beat()

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        self.beat()

    def on_evaluation_step(self, state: TrainState) -> None:
        self.beat()

    def on_checkpoint(self, state: TrainState, step: int) -> None:
        self.beat()

    def on_train_end(self, state: TrainState) -> None:
        self.close()

    def _watch(self) -> None:
        polled = time.monotonic()
        while not self.closed.wait(min(POLL_SECONDS, self.limit / 4)):
            now = time.monotonic()
            self.idle_seconds += min(now - polled, LONGEST_POLL_SECONDS)
            polled = now
            if self.idle_seconds > self.limit:
                self._report()
                logging.shutdown()
                os._exit(WORTH_ANOTHER_START)  # the main thread is stuck, perhaps in a call that no exception reaches

    def _report(self) -> None:
        stack = traceback.extract_stack(sys._current_frames()[self.main])
        make_private_folder(self.folder)
        write_text(self.folder / f"rank-{self.rank}.txt", hidden("".join(traceback.format_list(stack))), PRIVATE_FILE)
        logging.error(
            "nothing has moved for %.0f seconds (compute.stall_seconds); rank %d is here:\n%s",
            self.limit, self.rank, "".join(traceback.format_list(stack[-12:])),
        )  # fmt: skip
        time.sleep(PEERS_SECONDS * (1 if self.rank == 0 else 2))  # the first rank to exit ends the others
        if self.rank == 0:
            for place, ranks in self._places():
                logging.error("%s: %s", named(ranks), place)
            logging.error("stacks of all ranks: %s", self.folder)

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
            return "no answer: the machine or the process may be gone"
        frames = [line.strip() for line in lines if line.startswith("  File")]
        places = [frame for frame in frames if not frame.startswith('File "<')] or frames or ["no frame of Python"]  # files, not <string>
        # inside torch most likely means a collective, blocked by the rank that is busy elsewhere
        return f"waiting in {places[-1]}" if "/torch/" in places[-1] else f"busy in {places[-1]}"


def named(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0-2, 4-1023`, from their numbers in ascending order."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join('-'.join(map(str, span)) for span in spans)}"
