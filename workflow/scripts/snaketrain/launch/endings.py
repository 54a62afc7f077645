"""How a start of the processes ended, and whether to start them again."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from snaketrain.runtime.run_folder import last_saved, microbatches_that_fit

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
