"""A training that hangs: it tells where each rank is and for which collective it waits, and ends."""

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.journal import Journal
from snaketrain.runtime.manifests import PRIVATE_FILE, make_private_folder, write_text
from snaketrain.runtime.ranks import WORTH_ANOTHER_START
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.collectives import Collective, Collectives
from snaketrain.training.callbacks import Callback
from snaketrain.training.state import TrainState

POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 10.0  # if more passed between two polls, the process was suspended, or its machine slept
LATE_SECONDS, TIMES_AS_LONG = 60.0, 2.0  # without a step, and compared with the longest time for one, until that is told
PEERS_SECONDS = 5.0  # for the other ranks to write down where they are


class StallWatchdog(Callback):
    """Tells where the ranks are if no step and no batch of an evaluation ends for a minute; after `limit_seconds` it ends the process.

    Time in which the process was suspended does not count.
    """

    def __init__(self, folder: Path, strategy: Strategy, limit_seconds: float, journal: Journal | None = None):
        self.folder, self.strategy, self.rank, self.limit, self.journal = folder, strategy, strategy.rank, limit_seconds, journal
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
                self._collectives(self.rank).unlink()

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

    def _collectives(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def _write_stack(self) -> traceback.StackSummary:
        """Where the main thread is, and which collectives it has entered."""
        stack = traceback.extract_stack(sys._current_frames()[self.main])
        with contextlib.suppress(OSError):  # such as a full disk, after which a process that hangs must end all the same
            make_private_folder(self.folder)
            write_text(self._stack, hidden("".join(traceback.format_list(stack))), PRIVATE_FILE)
            with contextlib.suppress(AttributeError, ImportError, LookupError):  # another version of torch may have other names for it
                write_text(self._collectives(self.rank), self.strategy.collectives().to_json(), PRIVATE_FILE)
        return stack

    def _places(self) -> list[tuple[str, list[int]]]:
        """Where the ranks are, in the order of how many are there: most wait for the few that are elsewhere."""
        ranks = range(self.strategy.world_size)
        waits = waiting_for({rank: entered for rank in ranks if (entered := self._entered(rank))})
        places: dict[str, list[int]] = {}
        for rank in ranks:
            places.setdefault(self._where(rank) + (f" ({waits[rank]})" if rank in waits else ""), []).append(rank)
        return sorted(places.items(), key=lambda item: len(item[1]))

    def _entered(self, rank: int) -> Collectives | None:
        try:
            return Collectives.from_json(self._collectives(rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # it does not answer, or has written half of it
            return None

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


def waiting_for(entered: Mapping[int, Collectives]) -> dict[int, str]:
    """Of each rank: the first collective that it has entered and that does not end, and the first that others have entered and it has not."""
    members: dict[Collective, list[int]] = {}  # in the order of their numbers
    for collective, rank in sorted((collective, rank) for rank, of_rank in entered.items() for collective in of_rank.unfinished):
        members.setdefault(collective, []).append(rank)
    waits, lacks = dict[int, str](), dict[int, str]()
    for collective, ranks in members.items():
        group, number = collective.group, collective.number
        others = sorted({each.operation for each in members if (each.group, each.number) == (group, number)} - {collective.operation})
        absent = [rank for rank in collective.ranks if rank in entered and entered[rank].last.get(group, 0) < number]
        more = f", while others are in {' or '.join(others)}" if others else "" if absent else ", which all have entered"
        for rank in ranks:
            waits.setdefault(rank, collective.name + more)
        for rank in absent:
            lacks.setdefault(rank, f"not in {collective.name} yet")
    return {rank: "; ".join(filter(None, (waits.get(rank), lacks.get(rank)))) for rank in waits | lacks}


def named(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0-2, 4-1023`, from their numbers in ascending order."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join('-'.join(map(str, span)) for span in spans)}"
