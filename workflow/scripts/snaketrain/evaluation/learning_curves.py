"""Draws learning curves: a colour for each configuration, a band over its seeds, and a star at each chosen step."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from snaketrain.evaluation.colours import COLOURS
from snaketrain.evaluation.comparing import Curves, Row, SeedGroup
from snaketrain.evaluation.drawing import Axes, Line2D, in_both_themes, plt
from snaketrain.labels.base import drawable
from snaketrain.runtime.strict_json import is_number, spoken

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
    marker = "o" if len(steps) < FEW else ""
    axes.plot(
        steps, list(map(statistics.fmean, values)), color=colour, linestyle=line, linewidth=1.6, marker=marker, markersize=3, label=label
    )
    if len(several) > 1:
        axes.fill_between(steps, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2, linewidth=0)


def mark_chosen(axes: Axes, members: Sequence[Row], several: list[dict[int, float]], colour: str) -> None:
    chosen = [member["selected_step"] for member in members]
    points = [(step, curve[step]) for step, curve in zip(chosen, several, strict=True) if is_number(curve.get(step))]
    steps = [step for step, _ in points]
    axes.scatter(
        steps, [value for _, value in points], marker="*", s=160, color=colour, edgecolors=axes.get_facecolor(), linewidths=0.8, zorder=4
    )
