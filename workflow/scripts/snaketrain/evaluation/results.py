"""Writes the results of an evaluation on one split, for any task: metrics, a table of predictions, and a figure.

Also configures matplotlib for all plots: no display, names drawn literally, and pictures for pages.
"""

import base64
import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from snaketrain.config.schema.data import SLICE
from snaketrain.evaluation import COLOURS
from snaketrain.labels import label_kinds
from snaketrain.labels.base import Report, drawable
from snaketrain.runtime.manifests import digest, write_json
from snaketrain.runtime.strict_json import Json, JsonObject, rounded

__all__ = ["Axes", "Line2D", "LineCollection", "as_address", "plt"]

Rows = dict[str, np.ndarray]  # what the task predicts, by name; a row for each example
Table = dict[str, list[Json]]  # columns of the prepared data
TEXTS = ("text", "text_pair", "target")
NOT_SHOWN = ("ids", "label", "loss", "probabilities", "predicted")  # the label kind's report has its own columns for them


class Measured(TypedDict):
    examples: int
    metrics: dict[str, float]  # the task's own; empty if the examples have no labels
    baselines: dict[str, JsonObject]


def write_results(
    folder: Path,
    run: str,
    split: str,
    measured: Measured,
    rows: Rows,
    table: Table,
    facts: JsonObject,
    confidence: float,
    bins: int,
    files: Mapping[str, str] | None = None,
) -> JsonObject:
    """Writes `<split>_results.json`, `<split>_plots.png` and, if there are rows, `<split>_predictions.csv`; returns the results.

    `files`: the prepared ones of the split, with their digests. `rows` and `table` are in the order of the examples. Labels that are not
    among the columns of the prepared data may be among the rows, as `label`.
    """
    table = {"label": rows["label"].tolist()} | table if "label" in rows else table
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    report = report_for(rows, table, facts)
    labels = report.labels(table["label"]) if report else np.empty(0)
    (folder / f"{split}_predictions.csv").unlink(missing_ok=True)  # of an earlier evaluation with another task
    if report and (left_out := report.left_out(bool(measured["metrics"]))):
        print(f"{split}: {left_out}", flush=True)
    texts = {name: table[name] for name in TEXTS if name in table}
    if len(rows) > ("ids" in rows):
        slices = {name: values for name, values in table.items() if name.startswith(SLICE)}
        columns = texts | slices | (report.columns(labels, rows) if report else {})
        write_predictions(folder / f"{split}_predictions.csv", rows, columns, NOT_SHOWN if report else ())
    results: JsonObject = {"run": run, "split": split, "examples": measured["examples"], "labelled": bool(measured["metrics"])}
    results |= {"kind": None, "metrics": measured["metrics"], "baselines": measured["baselines"]}
    # equal sets have equal digests, whatever the tokenizer made of them; blocks of a running text have no texts of their own
    with_label = texts | ({"label": table["label"]} if "label" in table else {})
    results["examples_digest"] = digest(measured["examples"], with_label if texts else [with_label, files])
    if report and (known := report.known(labels)).any():
        labels, rows = labels[known], {name: values[known] for name, values in rows.items()}
        # the constant answers that the label kind reports replace those of the same name that the task measured
        ours, theirs = report.baselines(labels), results["baselines"]
        baselines = {name: {**theirs.get(name, {}), **ours.get(name, {})} for name in dict.fromkeys([*ours, *theirs])}
        results |= {"kind": facts["label_kind"], "examples": len(labels), "baselines": baselines}
        results |= report.score(labels, rows, confidence, bins)
    draw(folder / f"{split}_plots.png", results, labels, rows)
    write_json(folder / f"{split}_results.json", results)
    return results


def report_for(rows: Rows, table: Table, facts: JsonObject) -> Report | None:
    """The report for the data's label kind; None if the task does not predict the labels."""
    kind = label_kinds().get(facts.get("label_kind", ""))
    if kind is None or "label" not in table:
        return None
    report = kind.report(facts)
    return report if report.fits(rows) else None


def write_predictions(path: Path, rows: Rows, columns: Table, left_out: tuple[str, ...]) -> None:
    """One line for each example: the columns, then the task's own rows; those with several values have a column for each."""
    examples = len(next(iter(rows.values())))
    columns = {"id": [str(example) for example in range(examples)]} | columns
    for name, values in flat(rows, (*left_out, "ids")).items():
        written = "{:.9g}" if values.dtype.kind == "f" else "{}"  # a large whole number has more digits
        columns |= {name: [written.format(value) for value in values]}
    write_csv(path, columns)


def write_csv(path: Path, columns: Table) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def flat(rows: Rows, left_out: tuple[str, ...]) -> Rows:
    """The rows with one value for each example; those with several values become `name_0`, `name_1` and so on."""
    found: Rows = {}
    for name, values in rows.items():
        if name not in left_out:
            columns = np.asarray(values).reshape(len(values), -1).T
            names = [name] if values.ndim == 1 else [f"{name}_{number}" for number in range(len(columns))]
            found |= dict(zip(names, columns, strict=True))
    return found


# --- Matplotlib

matplotlib.use("Agg")
# it would parse a label such as `$_{bad$` as a formula, and fail
plt.rcParams.update({"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False})
plt.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#1a1a1a"))
plt.rcParams.update({"axes.prop_cycle": cycler(color=COLOURS), "svg.hashsalt": "snaketrain"})


def as_address(draw: Callable[[Axes], None]) -> str:
    """A drawing as SVG, as a `data:` address. `C0`, `C1` ... are the colours."""
    figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
    draw(axes)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, dpi=150, transparent=True)
    plt.close(figure)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def draw(path: Path, results: JsonObject, labels: np.ndarray, rows: Rows) -> None:
    """The figure of a run's predictions on one split: panels that show the model's errors, or a list of its metrics.

    `labels` and `rows` are those of the labelled examples; other tasks have only metrics.
    """
    kind = label_kinds().get(results["kind"])
    panels = kind.report.panels(results) if kind else []
    title = f"{drawable(results['run'])}, {results['split']}: {results['examples']} examples"
    if panels:
        widths = [panel.width for panel in panels]
        size = sum(widths), max(panel.height for panel in panels)
        figure, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", width_ratios=widths, squeeze=False)
        for panel, place in zip(panels, axes[0], strict=True):
            panel.draw(place, results, labels, rows)
        figure.suptitle(title)
    else:
        figure = listed(title, metrics_in_words(results))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def listed(title: str, lines: list[str]) -> Figure:
    figure, axes = plt.subplots(figsize=(5, 1 + 0.25 * len(lines)))
    axes.axis("off")
    axes.text(0.5, 0.5, "\n".join([title, "", *lines]), ha="center", va="center")
    return figure


def metrics_in_words(results: JsonObject) -> list[str]:
    """Or why there are none: the workflow expects a file."""
    if not results["examples"]:
        return ["this set is empty"]
    constant = results["baselines"].get("constant", {})
    lines = [
        f"{drawable(name).replace('_', ' ')}: {rounded(value)}"
        + (f" (a constant answer: {rounded(constant[name])})" if name in constant else "")
        for name, value in results["metrics"].items()
    ]
    return lines or ["no labels:", "there may be predictions, but nothing to score."]
