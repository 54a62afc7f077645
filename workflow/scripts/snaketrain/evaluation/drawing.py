"""Matplotlib's configuration for all plots: no display, names drawn literally, and light and dark versions for pages."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from snaketrain.evaluation.colours import COLOURS, COLOURS_ON_DARK
from snaketrain.labels import label_kinds
from snaketrain.labels.base import drawable
from snaketrain.runtime.strict_json import JsonObject, rounded

matplotlib.use("Agg")


__all__ = ["Axes", "Figure", "Line2D", "in_both_themes", "plt", "theme"]

# matplotlib would parse a label such as `$_{bad$` as a formula, and fail
plt.rcParams.update({"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False})


def theme(ink: str, paper: str, grey: str, colours: tuple[str, ...]) -> dict[Any, Any]:  # matplotlib lists all names as the type
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    papers = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    return {**dict.fromkeys(inked, ink), **dict.fromkeys(papers, paper), "grid.color": grey, "axes.prop_cycle": cycler(color=colours)}


THEMES = {"light": theme("#1a1a1a", "#ffffff", "#b0b0b0", COLOURS), "dark": theme("#e6e6e6", "#15181c", "#767676", COLOURS_ON_DARK)}
plt.rcParams.update(THEMES["light"])


def in_both_themes(draw: Callable[[Axes], None], width: float = 5.0, height: float = 4.0) -> dict[str, str]:
    """A drawing as SVG for a light and for a dark page, as `data:` addresses. `C0`, `C1` ... are the colours of either."""
    found = {}
    for name, colours in THEMES.items():
        with plt.rc_context({**colours, "svg.hashsalt": "snaketrain"}):
            figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
            draw(axes)
            file = io.BytesIO()
            figure.savefig(file, format="svg", metadata={"Date": None}, dpi=150)
            plt.close(figure)
        found[name] = f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
    return found


# --- The figure of a run's predictions on one split, for any task: panels that show the model's errors, or a list of its metrics.


def draw(path: Path, results: JsonObject, labels: np.ndarray, rows: dict[str, np.ndarray]) -> None:
    """`labels` and `rows` are those of the labelled examples; other tasks have only metrics."""
    kind = label_kinds().get(results["kind"])
    panels = kind.report.panels(results) if kind else []
    if not panels:
        return draw_metrics(path, results)
    size = sum(panel.width for panel in panels), max(panel.height for panel in panels)
    figure, axes = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", width_ratios=[panel.width for panel in panels], squeeze=False
    )
    for panel, place in zip(panels, axes[0], strict=True):
        panel.draw(place, results, labels, rows)
    figure.suptitle(title(results))
    _save(figure, path)


def title(results: JsonObject) -> str:
    return f"{drawable(results['run'])}, {results['split']}: {results['examples']} examples"


def draw_metrics(path: Path, results: JsonObject) -> None:
    """A figure that lists the metrics, or says why there are none: the workflow expects a file."""
    constant = results["baselines"].get("constant", {})
    lines = [
        f"{drawable(name).replace('_', ' ')}: {rounded(value)}"
        + (f" (a constant answer: {rounded(constant[name])})" if name in constant else "")
        for name, value in results["metrics"].items()
    ]
    if not results["examples"]:
        lines = ["this set is empty"]
    elif not lines:
        lines = ["no labels:", "there may be predictions, but nothing to score."]
    text = "\n".join([title(results), "", *lines])
    figure, axes = plt.subplots(figsize=(5, 1 + 0.25 * len(lines)))
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)
