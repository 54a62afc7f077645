"""The page that compares all runs and shows what their models get wrong: one file, which needs neither network nor server."""

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np
import pandas as pd

from snaketrain.config.schema.of_extras import hooks
from snaketrain.evaluation import COLOURS, comparing
from snaketrain.evaluation.comparing import FinishedRun, Row, SeedGroup, differing_settings
from snaketrain.evaluation.pictures import MOST_POINTS, NAMED, curves_of_page, pictures_of_settings, setting, shortened
from snaketrain.evaluation.predictions import Predictions, labels_and_guesses, named
from snaketrain.evaluation.results import as_address
from snaketrain.evaluation.slices import Slice, slices_of
from snaketrain.labels import label_kinds
from snaketrain.labels.classes import ClassReport
from snaketrain.labels.number import NumberReport
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.strict_json import JsonObject, rounded, spoken, unquoted

VERSIONS = "versions of packages"
PICTURE, THUMBNAIL = "data:image/", "thumbnail"
LONGEST_EXAMPLE = 300  # characters
CONFIDENCE = 0.95  # where no interval was computed by another one
MOST_EXAMPLES, MOST_CLASSES, MOST_IN_MATRIX = 8, 40, 12


@dataclass(frozen=True)
class Mistakes:
    """Figures for each class, the confusion matrix, the reliability plot, and the hardest examples."""

    run: str
    split: str
    classes: dict[str, JsonObject]  # the most frequent ones
    rarer: int  # number of the others
    confusion: list[list[int]] | None  # None: too many classes
    confusion_names: list[str]
    confused: list[tuple[str, str, int]]  # instead of the matrix: true, predicted, examples
    reliability: str | None  # a picture
    ece: float | None
    against_true: str | None  # a picture, of predicted numbers
    metric: str  # that chose the checkpoint
    slices: list[Slice]  # that metric by values of `data.slices`
    hardest: list[dict[str, str]]  # cells by the names of their columns, and maybe a picture as a `data:` address
    order: str  # of the hardest examples, in words

    @property
    def hardest_columns(self) -> list[str]:
        return [column for column in self.hardest[0] if column not in ("id", THUMBNAIL)]


@dataclass(frozen=True)
class Comparison:
    runs: list[FinishedRun]
    rows: list[Row]  # best first
    groups: list[SeedGroup]
    verdict: str
    warnings: Sequence[str]
    below_baseline: Sequence[str]  # names of runs
    mistakes: Sequence[Mistakes]  # of the best runs
    unfinished: dict[str, str]  # why runs have no result
    stopped: dict[str, str]  # why runs were stopped early


def page(made: Comparison) -> str:
    conceal = functools.cache(hidden)  # many cells have the same text
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: conceal(value) if type(value) is str and not value.startswith(PICTURE) else value,
    )
    environment.filters |= {"figure": rounded, "setting": setting, "spoken": spoken, "unquoted": unquoted}
    chosen, rows, runs = comparing.chosen_by(made.rows), made.rows, made.runs
    metrics, scored = comparing.metrics_of(runs), "test" if any(run["test"]["metrics"] for run in runs) else "dev"
    checkpoints, sets = comparing.checkpoint_rows(runs), comparing.sets_of(runs)
    settings = differing_settings([run["settings"] for run in runs])
    if different := differing_settings([run["versions"] for run in runs if run["versions"]]):
        versions = {run["run"]: ", ".join(f"{name} {run['versions'].get(name, 'unknown')}" for name in different) for run in runs}
        rows, settings = [row | {VERSIONS: versions[row["run"]]} for row in rows], [*settings, VERSIONS]
    return environment.get_template("comparison.html.jinja").render(
        made=made,
        runs=runs,
        rows=rows,
        several_seeds=[group for group in made.groups if len(group["runs"]) > 1],
        cost=comparing.cost(made.rows),
        settings=settings,
        settings_below_each_other=len(settings) > len(rows),
        comparable=len(comparing.comparable(rows)) == 1,
        chosen_by=chosen,
        metrics=metrics,
        scored=scored,
        columns={"test": metrics if scored == "test" else [], "dev": chosen if scored == "test" else metrics},
        sets=sets,
        on_sets=comparing.on_sets(sets, chosen),
        mean_keys=[*(f"test_{name}" for name in metrics), *(f"test.{each}_{name}" for each, name in comparing.on_sets(sets, chosen))],
        checkpoints=checkpoints,
        checkpoint_metrics=[name for name in metrics if any(name in each for each in checkpoints)],
        confidence=next((run["test"]["confidence"] for run in runs if "confidence" in run["test"]), CONFIDENCE),
        curves=curves_of_page(made.groups, {run["run"]: run["curves"] for run in runs}, chosen),
        thinned=MOST_POINTS if any(len(found) > MOST_POINTS for run in runs for found in run["curves"].values()) else None,
        spikes=[spike for run in runs for spike in spikes_of(run)],
        before=BEFORE,
        swept=pictures_of_settings(made.groups) if len(comparing.comparable(made.rows)) == len(chosen) == 1 else {},
        colours=COLOURS,
        named=NAMED,
    )


# --- Spikes

BEFORE = 20  # lines of the journal, with whose losses one is compared
FAR = 5.0  # times the range of their middle half, above their median
MOST_SPIKES = 3  # of a run


class Spike(NamedTuple):
    run: str
    step: int
    loss: float | None = None  # None of a step without an update
    usual: float | None = None

    @property
    def command(self) -> str:
        return f"snaketrain inspect {shlex.quote(self.run)} --step {self.step}"


def spikes_of(run: FinishedRun) -> list[Spike]:
    """The highest losses beside those before them, and the first steps without an update."""
    losses = pd.Series(dict(run["curves"].get("train/loss", [])), dtype=float)
    before = losses.rolling(BEFORE)
    usual, spread = before.median().shift(), (before.quantile(0.75) - before.quantile(0.25)).shift()
    height = ((losses - usual) / spread.where(spread > 0)).loc[lambda each: each > FAR].nlargest(MOST_SPIKES)
    skipped = sorted({event["step"] for event in run["events"] if event.get("event") == "bad_step"})
    highest = [Spike(run["run"], step, losses[step], usual[step]) for step in height.index]
    return [*highest, *(Spike(run["run"], step) for step in skipped[:MOST_SPIKES])]


# --- Mistakes


def mistakes_of(run: str, results: JsonObject, predictions: Predictions | None, metric: str = "accuracy") -> Mistakes | None:
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
        against_true=predicted_against_true(results, predictions),
        metric=metric,
        slices=slices_of(predictions, metric, results.get("confidence", CONFIDENCE)) if predictions else [],
        hardest=found,
        order=order,
    )
    return made if made.classes or made.reliability or made.hardest or made.slices else None


def reliability_plot(results: JsonObject) -> str | None:
    kind = label_kinds().get(results["kind"])
    if kind is None or not issubclass(kind.report, ClassReport) or not results.get("reliability"):
        return None
    return as_address(partial(kind.report.draw_reliability, results=results))


def predicted_against_true(results: JsonObject, predictions: Predictions | None) -> str | None:
    if predictions is None or predictions.form != "number":
        return None
    labels, guesses = labels_and_guesses(predictions)
    known = np.isfinite(labels)
    return as_address(partial(NumberReport.draw_predictions, results=results, labels=labels[known], rows={"predicted": guesses[known]}))


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
    titles = {name: {"label": "true", "text_pair": "text pair"}.get(name, name) for name in shown}
    if predictions.form == "number":  # of which nine digits were saved
        table = table.assign(**{name: [rounded(value) for value in predictions.numbers(name)] for name in ("label", "predicted")})
    cells = [{titles[name]: shortened(table[name][row], LONGEST_EXAMPLE) for name in shown} | {column: rounded(sizes[row])} for row in rows]
    for example, row in zip(cells, rows, strict=True):
        shown_as = (picture(table["text"][row]) for picture in hooks("thumbnails", "picture")) if "text" in table else ()
        if address := next(filter(None, shown_as), None):
            example[THUMBNAIL] = address
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
        labels, guesses = labels_and_guesses(predictions)
        return np.nan_to_num(np.abs(guesses - labels)), "error", "The largest errors first"
    losses = predictions.numbers("loss") if "loss" in table else pd.Series(0.0, table.index)
    return np.nan_to_num(losses.to_numpy(float)), "loss", "The highest losses first"


def largest_error(predictions: Predictions) -> np.ndarray:
    if "largest_error" in predictions.table:  # of too many classes, whose probabilities were not saved
        return predictions.numbers("largest_error").to_numpy(float)
    probabilities = predictions.table[[f"p_{name}" for name in predictions.classes]].to_numpy(float)
    missed: np.ndarray = np.abs(probabilities - named(predictions, "label").toarray()).max(1)
    return missed
