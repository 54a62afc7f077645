"""Draws the learning curves of a comparison, and which trainings share their first steps."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from snaketrain.evaluation import COLOURS
from snaketrain.evaluation.comparing import Curves, Row, SeedGroup
from snaketrain.evaluation.results import Axes, Line2D, in_both_themes, plt
from snaketrain.labels.base import drawable
from snaketrain.runtime.journal import Event, all_events
from snaketrain.runtime.rounding import is_number, spoken

# --- Learning curves: a colour for each configuration, a band over its seeds, and a star at each chosen step.

LINES = ("-", "--", ":", "-.")
FEW = 30  # points that are marked one by one
MANY = 20_000  # points in a panel; more are drawn as pixels, so that the page stays small


def panels_of(metrics: Sequence[str]) -> dict[str, str]:
    """Titles by the names of curves. `metrics`: those that chose the checkpoints."""
    titles = {"train/loss": "training loss", "eval/loss": "development loss"}
    return titles | {f"eval/{metric}": f"development {drawable(spoken(metric))}" for metric in metrics}


def draw_file(path: Path, groups: Sequence[SeedGroup], curves: Mapping[str, Curves], metrics: Sequence[str]) -> None:
    """All panels side by side, with a legend."""
    panels = panels_of(metrics)
    picture, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.6), layout="constrained", squeeze=False)
    for place, name in zip(axes[0], panels, strict=True):
        draw_panel(place, name, groups, curves)
        place.set_title(panels[name])
    lines, labels = axes[0][0].get_legend_handles_labels()
    star = Line2D([], [], marker="*", markersize=12, color="grey", linestyle="")
    picture.legend([*lines, star], [*labels, "chosen step"], loc="outside lower center", ncols=min(4, len(labels) + 1), frameon=False)
    picture.savefig(path, dpi=120)
    plt.close(picture)


def pictures(groups: Sequence[SeedGroup], curves: Mapping[str, Curves], metrics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The panels by their titles, each in both themes."""
    drawn = panels_of(metrics).items()
    return {title: in_both_themes(partial(draw_panel, name=name, groups=groups, curves=curves)) for name, title in drawn}


def draw_panel(axes: Axes, name: str, groups: Sequence[SeedGroup], curves: Mapping[str, Curves]) -> None:
    for number, group in enumerate(groups):
        colour, line = f"C{number % len(COLOURS)}", LINES[number // len(COLOURS) % len(LINES)]
        several = [dict(curves[member["run"]].get(name, [])) for member in group["members"]]
        draw_configuration(axes, several, colour, line, drawable(group["run"]))
        if name.startswith("eval/"):
            mark_chosen(axes, group["members"], several, colour)
    if sum(np.size(line.get_xdata()) for line in axes.get_lines()) > MANY:
        for drawn in (*axes.get_lines(), *axes.collections):
            drawn.set_rasterized(True)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw_configuration(axes: Axes, several: list[dict[int, float]], colour: str, line: str, label: str) -> None:
    """The mean over the seeds, at the steps that all have reached, and a band from the lowest to the highest."""
    shared = sorted(set.intersection(*map(set, several)))
    steps = [step for step in shared if all(is_number(curve[step]) for curve in several)]
    values = [[curve[step] for curve in several] for step in steps]
    means, marker = list(map(statistics.fmean, values)), "o" if len(steps) < FEW else ""
    axes.plot(steps, means, color=colour, linestyle=line, linewidth=1.6, marker=marker, markersize=3, label=label)
    if len(several) > 1:
        axes.fill_between(steps, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2, linewidth=0)


def mark_chosen(axes: Axes, members: Sequence[Row], several: list[dict[int, float]], colour: str) -> None:
    chosen = [member["selected_step"] for member in members]
    points = [(step, curve[step]) for step, curve in zip(chosen, several, strict=True) if is_number(curve.get(step))]
    steps, values = [step for step, _ in points], [value for _, value in points]
    axes.scatter(steps, values, marker="*", s=160, color=colour, edgecolors=axes.get_facecolor(), linewidths=0.8, zorder=4)


# --- Shared steps: a line for each training, from the step at which it branches off another one to its end.

WIDTH, ROW, LEFT, TOP = 460.0, 24.0, 8.0, 12.0
LABEL_GAP, CHARACTER = 8.0, 7.5  # between a line and its label, and of a wide font
JOURNAL = "journal.jsonl"


@dataclass
class Branch:
    """The steps that a training took itself, and where its line is in the picture."""

    name: str
    first: int  # the step after which it began; 0: from the start
    last: int
    is_run: bool = True
    branches: list["Branch"] = field(default_factory=list)
    x1: float = 0.0
    x2: float = 0.0
    y: float = 0.0
    above: float = 0.0  # where the line that it leaves is

    @property
    def steps(self) -> str:
        return f"{self.first} to {self.last}"


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
    # the run or trunk that the training is of
    name = f"{folder.parents[1].name}, before" if folder.parent.name == "superseded" else folder.parent.name
    return Branch(name, first, last, is_run), parent


def drawn(roots: list[Branch]) -> list[Branch]:
    """All trainings, each below the one that it leaves."""
    lines: list[Branch] = []

    def place(branch: Branch, above: float | None) -> None:
        branch.y = TOP + ROW * len(lines)
        branch.above = branch.y if above is None else above
        lines.append(branch)
        for each in sorted(branch.branches, key=lambda each: (-each.first, each.name)):
            place(each, branch.y)

    for root in roots:
        place(root, None)
    longest = max((line.last for line in lines), default=0) or 1
    for line in lines:
        line.x1, line.x2 = (LEFT + WIDTH * step / longest for step in (line.first, line.last))
    return lines


def picture_of(roots: list[Branch]) -> str:
    """As an SVG of its own; empty where no training has taken over steps of another."""
    if not any(root.branches for root in roots):
        return ""
    lines = drawn(roots)
    width = max(line.x2 + LABEL_GAP + CHARACTER * len(f"{line.name} {line.steps}") for line in lines)
    template = templates().get_template("shared_steps.svg.jinja")
    return template.render(lines=lines, width=width, height=TOP + ROW * len(lines), gap=LABEL_GAP)


def templates(**options: Any) -> jinja2.Environment:
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True, **options)
