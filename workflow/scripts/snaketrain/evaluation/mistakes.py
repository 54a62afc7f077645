"""What a model gets wrong: figures for each class, the confusion matrix, the reliability plot, and the hardest examples."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from snaketrain.evaluation.drawing import in_both_themes
from snaketrain.evaluation.predictions import Predictions
from snaketrain.evaluation.weighted_metrics import errors, named
from snaketrain.labels import label_kinds
from snaketrain.labels.classes import ClassReport
from snaketrain.runtime.strict_json import JsonObject, rounded

MOST_EXAMPLES, MOST_CHARACTERS = 8, 300
MOST_CLASSES, MOST_IN_MATRIX = 40, 12


@dataclass(frozen=True)
class Mistakes:
    run: str
    split: str
    classes: dict[str, JsonObject]  # the most frequent ones
    rarer: int  # number of the others
    confusion: list[list[int]] | None  # None: too many classes
    confusion_names: list[str]
    confused: list[tuple[str, str, int]]  # instead of the matrix: true, predicted, examples
    reliability: dict[str, str] | None  # a picture in both themes
    ece: float | None
    hardest: list[dict[str, str]]  # cells by the names of their columns
    order: str  # of the hardest examples, in words

    @property
    def hardest_columns(self) -> list[str]:
        return [column for column in self.hardest[0] if column != "id"]


def mistakes_of(run: str, results: JsonObject, predictions: Predictions | None) -> Mistakes | None:
    """None if there is nothing to show beyond the metrics."""
    classes, confusion = results.get("classes") or {}, results.get("confusion")
    most = sorted(classes.items(), key=lambda item: -item[1]["examples"])[:MOST_CLASSES]
    fits = confusion is not None and len(confusion) <= MOST_IN_MATRIX
    found, order = hardest(predictions) if predictions else ([], "")
    made = Mistakes(
        run=run,
        split=results["split"],
        classes=dict(most),
        rarer=len(classes) - len(most),
        confusion=confusion if fits else None,
        confusion_names=list(classes),
        confused=most_confused(list(classes), np.array(confusion)) if confusion is not None and not fits else most_frequent(results),
        reliability=reliability_plot(results),
        ece=results.get("calibration_error"),
        hardest=found,
        order=order,
    )
    return made if made.classes or made.reliability or made.hardest else None


def reliability_plot(results: JsonObject) -> dict[str, str] | None:
    kind = label_kinds().get(results["kind"])
    if kind is None or not issubclass(kind.report, ClassReport) or not results.get("reliability"):
        return None
    return in_both_themes(partial(kind.report.draw_reliability, results=results))


def most_confused(names: list[str], confusion: np.ndarray) -> list[tuple[str, str, int]]:
    wrong = confusion * (1 - np.eye(len(names), dtype=int))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_IN_MATRIX]
    cells = (np.unravel_index(place, wrong.shape) for place in order)
    return [(names[true], names[predicted], int(wrong[true, predicted])) for true, predicted in cells if wrong[true, predicted]]


def most_frequent(results: JsonObject) -> list[tuple[str, str, int]]:
    """Of classes that are too many for a matrix in the results."""
    most = results["confused"]["most_frequent"] if "confused" in results else []
    return [(pair["true"], pair["predicted"], pair["examples"]) for pair in most[:MOST_IN_MATRIX]]


def hardest(predictions: Predictions) -> tuple[list[dict[str, str]], str]:
    """The examples that the model gets most wrong, and what orders them."""
    sizes, column, order = how_wrong(predictions)
    table = predictions.table
    shown = [name for name in ("id", "text", "text_pair", "label", "predicted") if name in table]
    rows = [row for row in np.argsort(-sizes, kind="stable")[:MOST_EXAMPLES].tolist() if sizes[row] > 0]
    names = {"label": "true", "text_pair": "text pair"}
    cells = [{names.get(name, name): shortened(table[name][row]) for name in shown} | {column: rounded(sizes[row])} for row in rows]
    return cells, order


def how_wrong(predictions: Predictions) -> tuple[np.ndarray, str, str]:
    """How wrong each prediction is, 0 if it is right; what that number is called; and the order of the examples, in words."""
    table = predictions.table
    if predictions.form == "class":
        wrong = table["label"] != table["predicted"]
        return (predictions.numbers("probability") * wrong).to_numpy(float), "probability", "Confident mistakes: the most probable first"
    if predictions.form == "classes":
        missed = largest_error(predictions)
        return np.where(missed > 0.5, missed, 0), "error", "By the largest error of a class's probability"
    if predictions.form == "number":
        return np.nan_to_num(np.abs(errors(predictions))), "error", "The largest errors first"
    losses = predictions.numbers("loss") if "loss" in table else pd.Series(0.0, table.index)
    return np.nan_to_num(losses.to_numpy(float)), "loss", "The highest losses first"


def largest_error(predictions: Predictions) -> np.ndarray:
    if "largest_error" in predictions.table:  # of too many classes, whose probabilities were not saved
        return predictions.numbers("largest_error").to_numpy(float)
    probabilities = predictions.table[[f"p_{name}" for name in predictions.classes]].to_numpy(float)
    missed: np.ndarray = np.abs(probabilities - named(predictions, "label").toarray()).max(1)
    return missed


def shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
