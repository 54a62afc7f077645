"""One picture for a run's predictions on one split, whatever the task: two panels that show where the model errs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from snaketrain.evaluation.drawing import plt, shown

BLUE, GREY = "#1f5fa8", "#767676"
MOST_NUMBERS, MOST_BARS, MOST_POINTS, MOST_CHARACTERS = 20, 40, 5000, 40  # more would not be readable
Results = dict[str, Any]
Rows = dict[str, np.ndarray]


def draw(path: Path, results: Results, labels: np.ndarray | None, rows: Rows) -> None:
    """`labels` and `rows` are those of the examples that have a label; of other tasks there are figures only."""
    panels = PANELS.get(results["kind"], ())
    if not panels:
        return draw_figures(path, results)
    sizes = [size(results) for size, _ in panels]
    picture, axes = plt.subplots(
        1, len(panels), figsize=(sum(width for width, _ in sizes), max(height for _, height in sizes)), layout="constrained",
        width_ratios=[width for width, _ in sizes],
    )  # fmt: skip
    for plot, (_, panel) in zip(axes, panels, strict=True):
        panel(plot, results, labels, rows)
    picture.suptitle(title(results))
    _save(picture, path)


def title(results: Results) -> str:
    return f"{shown(results['run'])}, {results['split']}: {results['examples']} examples"


# --- one class


def confusion(axes: Any, results: Results, labels: Any, rows: Rows) -> None:
    names, counts = [shown(name, MOST_CHARACTERS) for name in results["classes"]], np.array(results["confusion"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title="what was taken for what")
    crowded = len(names) > 3
    axes.set_xticks(range(len(names)), names, rotation=45 if crowded else 0, ha="right" if crowded else "center")
    axes.set_yticks(range(len(names)), names)
    if len(names) <= MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            share = shares[row, column]
            text = f"{count}\n{share:.0%}"
            axes.text(column, row, text, ha="center", va="center", color="white" if share > 0.7 else "black", fontsize=9)
    axes.figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)


def reliability(axes: Any, results: Results, labels: Any, rows: Rows) -> None:
    points = results["reliability"]
    probabilities, shares, counts = ([point[key] for point in points] for key in ("probability", "accuracy", "examples"))
    axes.plot([0, 1], [0, 1], "--", color=GREY, label="as sure as right")
    axes.plot(probabilities, shares, "-", color=BLUE, linewidth=1)
    axes.scatter(probabilities, shares, s=[20 + 200 * count / sum(counts) for count in counts], color=BLUE, zorder=3)
    several = results["kind"] == "classes"
    axes.set(
        xlim=(-0.02 if several else 0, 1.02),
        ylim=(-0.02, 1.02),
        xlabel="probability of a class" if several else "probability of the predicted class",
        ylabel="share that is of it" if several else "share that is right",
        title=f"calibration error {results['calibration_error']:.3f}",
    )
    axes.plot([], [], "o-", color=BLUE, label="predictions (larger: more of them)")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)


# --- several classes


def class_bars(axes: Any, results: Results, labels: Any, rows: Rows) -> None:
    """Precision, recall and F1 of the most frequent classes."""
    most = sorted(results["classes"].items(), key=lambda item: -item[1]["examples"])[:MOST_BARS]
    places = np.arange(len(most))
    for offset, key, colour in ((-0.27, "precision", "#9dbfe3"), (0, "recall", "#5b93cf"), (0.27, "f1", BLUE)):
        axes.barh(places + offset, [cells[key] for _, cells in most], height=0.25, color=colour, label=key.replace("f1", "F1"))
    axes.set_yticks(places, [f"{shown(name, MOST_CHARACTERS)} ({cells['examples']})" for name, cells in most])
    axes.invert_yaxis()
    more = len(results["classes"]) - len(most)
    axes.set(xlim=(0, 1.02), title=f"by class (examples){f', without {more} rarer ones' if more else ''}")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(loc="lower right")


# --- numbers


def against_each_other(axes: Any, results: Results, labels: np.ndarray, rows: Rows) -> None:
    true, predicted = (values[:MOST_POINTS] for values in (labels, rows["predicted"]))
    ends = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
    axes.plot(ends, ends, "--", color=GREY, label="exactly right")
    axes.axhline(predicted.mean(), color=GREY, linewidth=0.8, linestyle=":", label="mean prediction")
    axes.scatter(true, predicted, s=12, alpha=0.4, color=BLUE, edgecolors="none")
    first = f", the first {MOST_POINTS} examples" if len(labels) > MOST_POINTS else ""
    axes.set(xlabel="true", ylabel="predicted", title=f"Pearson {results['metrics'].get('pearson', float('nan')):.3f}{first}")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)


def errors(axes: Any, results: Results, labels: np.ndarray, rows: Rows) -> None:
    missed = rows["predicted"] - labels
    axes.hist(missed[np.isfinite(missed)], bins=min(40, max(5, len(missed) // 5)), color=BLUE)
    axes.axvline(0, color=GREY, linestyle="--")
    axes.set(xlabel="predicted minus true", ylabel="examples", title=f"mean absolute error {np.abs(missed).mean():.4g}")
    axes.grid(alpha=0.3)


# --- any other task, and no labels


def draw_figures(path: Path, results: Results) -> None:
    """The workflow expects a picture; where there is nothing to draw, it tells the figures, or why there are none."""
    beside = results["baselines"].get("constant", {})
    lines = [
        f"{shown(name).replace('_', ' ')}: {value:.4g}" + (f" (a constant answer: {beside[name]:.4g})" if name in beside else "")
        for name, value in results["metrics"].items()
    ]
    if not lines:
        lines = ["no labels:", "there may be predictions, but nothing to score."]
    text = "\n".join([title(results), "", *lines])
    picture, axes = plt.subplots(figsize=(5, 1 + 0.25 * len(lines)))
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center")
    _save(picture, path)


def _save(picture: Any, path: Path) -> None:
    picture.savefig(path, dpi=120)
    plt.close(picture)


def _by_classes(results: Results) -> tuple[float, float]:
    side = max(4.0, 1.6 + 0.7 * min(len(results["classes"]), 60))
    return side + 0.8, side


def _by_bars(results: Results) -> tuple[float, float]:
    return 5.5, max(4.6, 1 + 0.45 * min(len(results["classes"]), MOST_BARS))


def _usual(results: Results) -> tuple[float, float]:
    return 5.0, 4.6


# for each kind of label its panels, with what says how wide and high they are
PANELS: dict[str | None, tuple[tuple[Callable, Callable], ...]] = {
    "class": ((_by_classes, confusion), (_usual, reliability)),
    "classes": ((_by_bars, class_bars), (_usual, reliability)),
    "number": ((_usual, against_each_other), (_usual, errors)),
}
