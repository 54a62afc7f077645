"""Writes what is known of a model's work on one split: figures, a table of predictions, and a picture. For every task."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from snaketrain.evaluation.plots import draw
from snaketrain.evaluation.scoring import KINDS, OneClass, Rows
from snaketrain.runtime.manifests import write_json

NOT_SHOWN = ("ids", "label", "loss", "probabilities", "predicted")  # of the rows: told otherwise where the kind of label is known


def write_results(
    folder: Path, run: str, split: str, measured: dict[str, Any], rows: Rows, table: dict[str, list], facts: dict[str, Any],
    confidence: float, bins: int,
) -> dict[str, Any]:  # fmt: skip
    """Writes `<split>_results.json`, `<split>_plots.png` and, where there are rows, `<split>_predictions.csv`; returns the results.

    `measured` holds the number of `examples`, the task's `metrics`, none for examples without labels, and its `baselines`; `rows` what
    the task predicts for each example, and `table` the columns of the prepared data, both in the order of the examples. Labels that are
    not among these columns may be among the rows, as `label`.
    """
    table = {"label": rows["label"].tolist()} | table if "label" in rows else table
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = kind_of(rows, table, facts)
    results = {"run": run, "split": split, "examples": measured["examples"], "labelled": bool(measured["metrics"]), "kind": None}
    results |= {"metrics": measured["metrics"], "baselines": measured.get("baselines", {})}
    labels = kind.labels(table["label"]) if kind else None
    (folder / f"{split}_predictions.csv").unlink(missing_ok=True)  # of another task before this one
    if len(rows) > ("ids" in rows):
        shown = {name: table[name] for name in ("text", "text_pair") if name in table}
        shown |= kind.columns(labels, rows) if kind else {}
        write_predictions(folder / f"{split}_predictions.csv", rows, shown, () if kind is None else NOT_SHOWN)
    if kind and (known := kind.known(labels)).any():
        labels, rows = labels[known], {name: values[known] for name, values in rows.items()}
        results |= {"kind": facts["label_kind"], "examples": len(labels), "baselines": results["baselines"] | kind.baselines(labels)}
        results |= kind.score(labels, rows, confidence, bins)
    draw(folder / f"{split}_plots.png", results, labels, rows)
    write_json(folder / f"{split}_results.json", results)
    return results


def kind_of(rows: Rows, table: dict[str, list], facts: dict[str, Any]) -> OneClass | None:
    """How predictions and labels belong together; None for a task that predicts something else."""
    if facts.get("label_kind") not in KINDS or "label" not in table:
        return None
    kind = KINDS[facts["label_kind"]](facts)
    return kind if kind.fits(rows) else None


def write_predictions(path: Path, rows: Rows, columns: dict[str, list], left_out: tuple[str, ...]) -> None:
    """One line for each example: the columns, then the task's own rows; of those with several values a column for each."""
    examples = len(next(iter(rows.values())))
    columns = {"id": list(range(examples))} | columns
    for name, values in rows.items():
        if name not in (*left_out, "ids"):
            flat = np.asarray(values).reshape(examples, -1)
            names = [name] if values.ndim == 1 else [f"{name}_{number}" for number in range(flat.shape[1])]
            written = "{:.9g}" if flat.dtype.kind == "f" else "{}"  # a large whole number has more digits
            columns |= {key: [written.format(value) for value in column] for key, column in zip(names, flat.T, strict=True)}
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))
