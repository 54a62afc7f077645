"""The predictions that an evaluation saved, from which runs are tested against each other and their mistakes are listed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from snaketrain.runtime.strict_json import JsonObject


@dataclass(frozen=True)
class Predictions:
    """The labelled examples of a split, in their order."""

    form: str | None  # what the columns contain: `class`, `classes` or `number`; None: the task's own columns
    classes: list[str]
    metrics: dict[str, float]  # as the evaluation computed them
    table: pd.DataFrame  # of text

    def numbers(self, column: str) -> pd.Series:
        return pd.to_numeric(self.table[column], errors="coerce")


def read_predictions(folder: Path, split: str, results: JsonObject) -> Predictions | None:
    """The predictions in the folder of an evaluation. None if the task predicts nothing for single examples, or the split has no labels."""
    path = Path(folder) / f"{split}_predictions.csv"
    if not results["metrics"] or not path.is_file():
        return None
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    form = form_of(results)
    if form in ("class", "number"):  # of several classes, an empty cell is a label too
        table = table[table["label"] != ""]
    if len(table) != results["examples"]:
        return None
    return Predictions(form, list(results.get("classes", {})), results["metrics"], table.reset_index(drop=True))


def form_of(results: JsonObject) -> str | None:
    """Derived from what the label kind's report contains, since a user's own label kind has another name."""
    if results["kind"] is None:
        return None
    return "class" if results.keys() & {"confusion", "confused"} else "classes" if "classes" in results else "number"


def examples_of(results: JsonObject) -> str:
    """What the metrics were measured on: a digest of the examples in their order; empty in results of an earlier version."""
    return str(results.get("examples_digest") or "")


def of_the_same_examples(several: Sequence[Predictions]) -> bool:
    """Whether their rows belong together: texts and labels are equal, as far as they were saved."""
    first, *others = (each.table for each in several)
    columns = [column for column in ("text", "text_pair", "label") if column in first]
    return all(
        len(other) == len(first) and all(column in other and other[column].equals(first[column]) for column in columns) for other in others
    )
