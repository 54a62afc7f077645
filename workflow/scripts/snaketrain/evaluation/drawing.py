"""Matplotlib's configuration for all plots: no display, names drawn literally, and light and dark versions for pages."""

import base64
import io
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from snaketrain.evaluation.colours import COLOURS, COLOURS_ON_DARK

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
