"""Writes the results of an evaluation on one split, for any task: metrics, a table of predictions, and a figure."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from snaketrain.evaluation.drawing import draw
from snaketrain.labels import label_kinds
from snaketrain.labels.base import Report
from snaketrain.runtime.manifests import digest, write_json
from snaketrain.runtime.strict_json import Json, JsonObject

Rows = dict[str, np.ndarray]  # what the task predicts, by name; a row for each example
Table = dict[str, list[Json]]  # columns of the prepared data
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

    `files`: the prepared ones of the split, with their digests. `rows` and `table` are in the order of the examples. Labels that are not among the columns of the prepared data may be among the
    rows, as `label`.
    """
    table = {"label": rows["label"].tolist()} | table if "label" in rows else table
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    report = report_for(rows, table, facts)
    labels = report.labels(table["label"]) if report else np.empty(0)
    (folder / f"{split}_predictions.csv").unlink(missing_ok=True)  # of an earlier evaluation with another task
    if report and (shortened := report.shortened(bool(measured["metrics"]))):
        print(f"{split}: {shortened}", flush=True)
    if len(rows) > ("ids" in rows):
        columns = {name: table[name] for name in ("text", "text_pair", "target") if name in table} | (
            report.columns(labels, rows) if report else {}
        )
        write_predictions(folder / f"{split}_predictions.csv", rows, columns, NOT_SHOWN if report else ())
    results: JsonObject = {"run": run, "split": split, "examples": measured["examples"], "labelled": bool(measured["metrics"])}
    results |= {"kind": None, "metrics": measured["metrics"], "baselines": measured["baselines"]}
    texts = {name: table[name] for name in ("text", "text_pair", "target", "label") if name in table}
    # equal sets have equal digests, whatever the tokenizer made of them; blocks of a running text have no texts of their own
    results["examples_digest"] = digest(measured["examples"], texts if texts.keys() - {"label"} else [texts, files])
    if report and (known := report.known(labels)).any():
        labels, rows = labels[known], {name: values[known] for name, values in rows.items()}
        results |= {
            "kind": facts["label_kind"],
            "examples": len(labels),
            "baselines": merged(results["baselines"], report.baselines(labels)),
        }
        results |= report.score(labels, rows, confidence, bins)
    draw(folder / f"{split}_plots.png", results, labels, rows)
    write_json(folder / f"{split}_results.json", results)
    return results


def merged(measured: dict[str, JsonObject], reported: dict[str, JsonObject]) -> dict[str, JsonObject]:
    """The metrics of constant answers: those that the task measured, replaced by those of the same name that the label kind reports."""
    return {name: {**measured.get(name, {}), **reported.get(name, {})} for name in dict.fromkeys([*reported, *measured])}


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
