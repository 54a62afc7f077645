"""Draws which trainings share their first steps: a line for each training, from the step at which it branches off another one to its end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from snaketrain.runtime.journal import Event, all_events

WIDTH, ROW, LEFT, TOP = 460.0, 24.0, 8.0, 12.0
LABEL_GAP, CHARACTER = 8.0, 7.5  # between a line and its label, and of a wide font
JOURNAL = "journal.jsonl"


@dataclass
class Branch:
    """The steps that a training took itself."""

    name: str
    first: int  # the step after which it began; 0: from the start
    last: int
    is_run: bool = True
    branches: list["Branch"] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """A branch as it is drawn."""

    name: str
    first: int
    last: int
    x1: float
    x2: float
    y: float
    above: float  # where the line that it leaves is
    is_run: bool

    @property
    def steps(self) -> str:
        return f"{self.first} to {self.last}"

    @property
    def right(self) -> float:
        """The end of its label."""
        return self.x2 + LABEL_GAP + CHARACTER * len(f"{self.name} {self.steps}")


def tree_of(trainings: dict[Path, list[Event]]) -> list[Branch]:
    """The trainings that begin at step 0, with those that leave them; from the journals of runs, by their folders.

    A trunk, or an earlier training that was reused, is read from the journal in its folder.
    """
    found: dict[Path, Branch] = {}
    roots: list[Branch] = []

    def add(folder: Path, events: Iterable[Event], below: frozenset[Path] = frozenset()) -> Branch:
        branch, parent = branch_of(folder, events, folder in trainings)
        found[folder], below = branch, below | {folder}
        # it may be gone, or have been trained again since, from what had continued it
        if parent and parent not in below and (parent in found or (parent / JOURNAL).is_file()):
            (found.get(parent) or add(parent, all_events(parent / JOURNAL), below)).branches.append(branch)
        else:
            roots.append(branch)
        return branch

    for folder, events in trainings.items():
        if folder not in found:
            add(folder, events)
    return roots


def branch_of(folder: Path, events: Iterable[Event], is_run: bool) -> tuple[Branch, Path | None]:
    """A training, and the folder of the one that it continues."""
    first, last, parent = 0, 0, None
    for event in events:
        if event.get("event") == "reused":
            first, parent = event["step"], Path(event["training"])
        last = max(last, event.get("step") or 0)
    return Branch(name_of(folder), first, last, is_run), parent


def name_of(training: Path) -> str:
    """The run or trunk that a training is of."""
    return f"{training.parents[1].name}, before" if training.parent.name == "superseded" else training.parent.name


def drawn(roots: list[Branch]) -> list[Line]:
    """Each training below the one that it leaves."""
    longest = max((branch.last for branch in every(roots)), default=0) or 1
    lines: list[Line] = []

    def place(branch: Branch, above: float | None) -> None:
        y = TOP + ROW * len(lines)
        x1, x2 = (LEFT + WIDTH * step / longest for step in (branch.first, branch.last))
        lines.append(Line(branch.name, branch.first, branch.last, x1, x2, y, y if above is None else above, branch.is_run))
        for each in sorted(branch.branches, key=lambda each: (-each.first, each.name)):
            place(each, y)

    for root in roots:
        place(root, None)
    return lines


def every(branches: list[Branch]) -> Iterable[Branch]:
    for branch in branches:
        yield branch
        yield from every(branch.branches)


def picture_of(roots: list[Branch]) -> str:
    """As an SVG of its own; empty where no training has taken over steps of another."""
    if not any(root.branches for root in roots):
        return ""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    lines = drawn(roots)
    return environment.get_template("shared_steps.svg.jinja").render(
        lines=lines, width=max(line.right for line in lines), height=TOP + ROW * len(lines), gap=LABEL_GAP
    )
