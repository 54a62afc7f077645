"""The figure of a run's predictions on one split, for any task: panels that show the model's errors, or a list of its metrics."""

from pathlib import Path

import numpy as np

from snaketrain.evaluation.drawing import Figure, plt
from snaketrain.labels import label_kinds
from snaketrain.labels.base import drawable
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.rounding import rounded


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
