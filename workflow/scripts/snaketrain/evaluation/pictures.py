"""The pictures of the comparison: learning curves, and the metric by each setting that was varied."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from snaketrain.evaluation import COLOURS
from snaketrain.evaluation.comparing import Row, SeedGroup, differing_settings
from snaketrain.evaluation.journals import Curves
from snaketrain.evaluation.results import Axes, Line2D, LineCollection, as_address, plt
from snaketrain.labels.base import drawable
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.strict_json import JsonObject, is_number, spoken, unquoted

# --- Learning curves: a colour for each of the best configurations, a band over its seeds, and a star at each chosen step.

LINES = ("-", "--")
LONGEST_NAME = 32  # in the legend of a picture, of which nothing can be scrolled
FEW = 30  # points that are marked one by one
NAMED = len(LINES) * len(COLOURS)  # the best configurations, which a reader can tell apart; the others are grey lines
GREY = "#b0b0b0"
MOST_POINTS = 500  # of a curve on the page


def panels_of(metrics: Sequence[str]) -> dict[str, str]:
    """Titles by the names of curves. `metrics`: those that chose the checkpoints."""
    titles = {"train/loss": "training loss", "eval/loss": "development loss"}
    return titles | {f"eval/{metric}": f"development {drawable(spoken(metric))}" for metric in metrics}


def draw_curves(path: Path, groups: Sequence[SeedGroup], curves: Mapping[str, Curves], metrics: Sequence[str]) -> None:
    """All panels side by side, with a legend."""
    panels = panels_of(metrics)
    picture, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.6), layout="constrained", squeeze=False)
    for place, name in zip(axes[0], panels, strict=True):
        draw_panel(place, name, groups, curves)
        place.set_title(panels[name])
    lines, labels = axes[0][0].get_legend_handles_labels()
    star = Line2D([], [], marker="*", markersize=12, color="grey", linestyle="")
    columns = min(3 * len(panels) // 2, len(labels) + 1)
    picture.legend([*lines, star], [*labels, "chosen step"], loc="outside lower center", ncols=columns, frameon=False)
    picture.savefig(path, dpi=120)
    plt.close(picture)


def curves_of_page(groups: Sequence[SeedGroup], curves: Mapping[str, Curves], metrics: Sequence[str]) -> dict[str, list[JsonObject]]:
    """By the titles of the panels, the lines that the page's script draws: points as (step, mean) or (step, mean, lowest, highest)."""
    return {
        title: [line_of_page(number, group, curves, name) for number, group in enumerate(groups)]
        for name, title in panels_of(metrics).items()
    }


def line_of_page(number: int, group: SeedGroup, curves: Mapping[str, Curves], name: str) -> JsonObject:
    named, several = number < NAMED, [dict(curves[member["run"]].get(name, [])) for member in group["members"]]
    band = named and len(several) > 1
    points = [[step, statistics.fmean(values), *([min(values), max(values)] if band else [])] for step, values in by_step(several)]
    return {
        "name": hidden(group["run"]),
        "colour": COLOURS[number % len(COLOURS)] if named else GREY,
        "dashed": named and LINES[number // len(COLOURS)] == "--",
        "points": [[step, *(float(f"{value:.6g}") for value in values)] for step, *values in thinned(points)],
        "chosen": chosen_points(group["members"], several) if named and name.startswith("eval/") else [],
    }


def thinned(points: list[list[float]]) -> list[list[float]]:
    """Of each stretch the lowest and the highest point, so that the page stays small and no spike is lost."""
    size = -(-2 * len(points) // MOST_POINTS)
    if len(points) <= MOST_POINTS:
        return points
    stretches = [range(first, min(first + size, len(points))) for first in range(0, len(points), size)]
    kept = {end(stretch, key=lambda place: points[place][1]) for stretch in stretches for end in (min, max)}
    return [points[place] for place in sorted(kept | {0, len(points) - 1})]


def draw_panel(axes: Axes, name: str, groups: Sequence[SeedGroup], curves: Mapping[str, Curves]) -> None:
    seeds = [[dict(curves[member["run"]].get(name, [])) for member in group["members"]] for group in groups]
    for number, (group, several) in enumerate(zip(groups[:NAMED], seeds, strict=False)):
        colour, line = f"C{number % len(COLOURS)}", LINES[number // len(COLOURS)]
        draw_configuration(axes, several, colour, line, drawable(group["run"], LONGEST_NAME))
        if name.startswith("eval/"):
            mark_chosen(axes, group["members"], several, colour)
    grey = [points for several in seeds[NAMED:] if (points := [(step, statistics.fmean(values)) for step, values in by_step(several)])]
    if len(groups) > NAMED:
        others = LineCollection(grey, colors=GREY, linewidths=0.8, zorder=1, label=f"{len(groups) - NAMED} others")
        axes.add_collection(others)
        axes.autoscale_view()
    axes.set_xlabel("step")
    plain(axes, "both")


def by_step(several: list[dict[int, float]]) -> list[tuple[int, list[float]]]:
    """What all seeds have logged, at the steps that all have reached."""
    shared = sorted(set.intersection(*map(set, several)))
    return [(step, [curve[step] for curve in several]) for step in shared if all(is_number(curve[step]) for curve in several)]


def draw_configuration(axes: Axes, several: list[dict[int, float]], colour: str, line: str, label: str) -> None:
    """The mean over the seeds, and a band from the lowest to the highest."""
    found = by_step(several)
    steps, values = [step for step, _ in found], [of_step for _, of_step in found]
    means, marker = list(map(statistics.fmean, values)), "o" if len(steps) < FEW else ""
    axes.plot(steps, means, color=colour, linestyle=line, linewidth=1.6, marker=marker, markersize=3, label=label)
    if len(several) > 1:
        axes.fill_between(steps, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2, linewidth=0)


def chosen_points(members: Sequence[Row], several: list[dict[int, float]]) -> list[tuple[int, float]]:
    chosen = [member["selected_step"] for member in members]
    return [(step, curve[step]) for step, curve in zip(chosen, several, strict=True) if is_number(curve.get(step))]


def mark_chosen(axes: Axes, members: Sequence[Row], several: list[dict[int, float]], colour: str) -> None:
    points = chosen_points(members, several)
    steps, values = [step for step, _ in points], [value for _, value in points]
    axes.scatter(steps, values, marker="*", s=160, color=colour, edgecolors=axes.get_facecolor(), linewidths=0.8, zorder=4)


# --- The metric that chose the checkpoints, of each configuration: the mean over its seeds, from the lowest to the highest.

MOST_CONFIGURATIONS, MOST_SETTINGS = 30, 6
LOG_FROM = 10.0  # times the smallest value: rates are tried in steps of about this size
LONGEST_SETTING = 60  # characters


def setting(value: object) -> str:
    text = "–" if value is None or value == {} else hidden(unquoted(value))  # half a secret would not be recognised
    if all(part.isidentifier() for part in text.split(".")):
        text = text.rpartition(".")[2]  # of a class its name; the page shows the rest under the mouse
    return shortened(text, LONGEST_SETTING)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def pictures_of_settings(groups: Sequence[SeedGroup]) -> dict[str, str]:
    """By their titles: the best configurations one below the other, and a picture for each setting that was varied."""
    measured = [group for group in groups if is_number(group["selected_value"])]
    varied = differing_settings([group["settings"] for group in measured])
    if len(measured) < 3 or not varied:
        return {}
    metric = f"development {spoken(measured[0]['selected_by'])}"
    named = varied[:MOST_SETTINGS]
    colours = {group["run"]: COLOURS[number % len(COLOURS)] if number < NAMED else GREY for number, group in enumerate(groups)}
    best = measured[:MOST_CONFIGURATIONS]
    drawn = {f"{metric} by {', '.join(named)}": partial(draw_configurations, groups=best, settings=named, colours=colours)}
    drawn |= {f"{metric} by {name}": partial(draw_by_setting, groups=measured, name=name, colours=colours) for name in named}
    return {title: as_address(draw) for title, draw in drawn.items()}


def draw_configurations(axes: Axes, groups: Sequence[SeedGroup], settings: Sequence[str], colours: Mapping[str, str]) -> None:
    """Best first, from the top; each is named by what it has of these settings."""
    places = range(len(groups))
    for place, group in zip(places, groups, strict=True):
        draw_dot(axes, group, group["selected_value"], place, colours[group["run"]], across=True)
    axes.set_yticks(
        places, [drawable(", ".join(shown(group["settings"].get(name)) for name in settings), LONGEST_NAME) for group in groups]
    )
    axes.invert_yaxis()
    plain(axes, "x")


def draw_by_setting(axes: Axes, groups: Sequence[SeedGroup], name: str, colours: Mapping[str, str]) -> None:
    """Numbers where they are, on a logarithmic axis if they span a factor of ten; other values side by side."""
    values = [group["settings"].get(name) for group in groups]
    if all(map(is_number, values)):
        if min(values) > 0 and max(values) / min(values) >= LOG_FROM:
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks(sorted(set(values)), [shown(value) for value in sorted(set(values))])
        places = values
    else:
        labels = {str(value): shown(value) for value in values}  # two long ones may be shown alike
        places = [list(labels).index(str(value)) for value in values]
        axes.set_xticks(range(len(labels)), [drawable(label, LONGEST_NAME) for label in labels.values()])
    for group, place in zip(groups, places, strict=True):
        draw_dot(axes, group, place, group["selected_value"], colours[group["run"]], across=False)
    axes.set_xlabel(drawable(name))
    plain(axes, "y")


def shown(value: object) -> str:
    return f"{value:g}" if is_number(value) else setting(value)


def draw_dot(axes: Axes, group: SeedGroup, x: float, y: float, colour: str, across: bool) -> None:
    """A line through it from the lowest to the highest seed."""
    found = [member["selected_value"] for member in group["members"] if is_number(member["selected_value"])]
    (axes.hlines if across else axes.vlines)(y if across else x, min(found), max(found), colors=colour, linewidth=1.6)
    axes.plot(x, y, "o", color=colour, markersize=6)


def plain(axes: Axes, grid: Literal["both", "x", "y"]) -> None:
    axes.grid(alpha=0.3, axis=grid)
    axes.spines[["top", "right"]].set_visible(False)
