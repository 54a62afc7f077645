"""Writes predictions of unlabelled data as Parquet and CSV: a row for each text, its columns named as in `test_predictions.csv`."""

import csv
from pathlib import Path

import pyarrow
import pyarrow.parquet

from snaketrain.evaluation.results import NOT_SHOWN, Rows, flat, report_for
from snaketrain.labels import label_kind
from snaketrain.runtime.strict_json import Json, JsonObject

TEXTS = ("text", "text_pair")


def write_predictions(folder: Path, name: str, ids: list[str], table: pyarrow.Table, rows: Rows, facts: JsonObject) -> list[str]:
    """`table` has the texts in the order of `rows`. Returns the names of the files."""
    columns: dict[str, list[Json]] = {"id": list(ids)} | {text: table[text].to_pylist() for text in TEXTS if text in table.column_names}
    columns |= answers(rows, table["label"].to_pylist(), facts)
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return [f"{name}.parquet", f"{name}.csv"]


def answers(rows: Rows, missing: list[Json], facts: JsonObject) -> dict[str, list[Json]]:
    """What the task predicted, as texts and numbers; `missing`: the column of labels, which is empty."""
    report = report_for(rows, {"label": missing}, facts)
    columns: dict[str, list[Json]] = {}
    if report:
        written = report.columns(report.labels(missing), rows)
        classes = "predicted" if label_kind(facts["label_kind"]).has_classes else None  # how columns of names of classes begin
        columns = {
            name: [*cells] if classes and name.startswith(classes) else numbers(cells) for name, cells in written.items() if name != "label"
        }
        if shortened := report.shortened(scored=False):
            print(shortened, flush=True)
    left_out = NOT_SHOWN if report else ("ids", "label")
    return columns | {name: values.tolist() for name, values in flat(rows, left_out).items()}


def numbers(cells: list[str]) -> list[Json]:
    """As numbers, if all are."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return [*cells]
