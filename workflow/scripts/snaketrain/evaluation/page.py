"""The page that compares all runs: one file, which needs neither network nor server."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from snaketrain.evaluation import learning_curves
from snaketrain.evaluation.colours import COLOURS, COLOURS_ON_DARK
from snaketrain.evaluation.comparing import FinishedRun, Row, SeedGroup, checkpoint_rows, chosen_by, comparable, metrics_of, sets_of
from snaketrain.evaluation.differences import differing_settings
from snaketrain.evaluation.mistakes import Mistakes
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.strict_json import rounded, spoken

VERSIONS = "versions of packages"
PICTURE = "data:image/"
MOST_CHARACTERS = 60  # of a setting


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
    stopped: dict[str, str]  # why a search stopped runs
    shared_steps: str = ""  # an SVG


def page(made: Comparison) -> str:
    conceal = functools.cache(hidden)  # many cells have the same text
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: conceal(value) if type(value) is str and not value.startswith(PICTURE) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": rounded, "setting": setting, "spoken": spoken}
    chosen, rows, runs = chosen_by(made.rows), made.rows, made.runs
    metrics, scored = metrics_of(runs), "test" if any(run["test"]["metrics"] for run in runs) else "dev"
    checkpoints = checkpoint_rows(runs)
    settings = differing_settings([run["settings"] for run in runs])
    if different := differing_settings([run["versions"] for run in runs if run["versions"]]):
        versions = {run["run"]: ", ".join(f"{name} {run['versions'].get(name, 'unknown')}" for name in different) for run in runs}
        rows, settings = [row | {VERSIONS: versions[row["run"]]} for row in rows], [*settings, VERSIONS]
    return environment.get_template("comparison.html.jinja").render(
        made=made,
        rows=rows,
        several_seeds=[group for group in made.groups if len(group["runs"]) > 1],
        settings=settings,
        settings_below_each_other=len(settings) > len(rows),
        comparable=len(comparable(rows)) == 1,
        chosen_by=chosen,
        metrics=metrics,
        scored=scored,
        columns={"test": metrics if scored == "test" else [], "dev": chosen if scored == "test" else metrics},
        sets={name: metrics_on(name, rows, metrics) for name in sets_of(runs)},
        mean_keys=[*(f"test_{name}" for name in metrics), *(f"test.{each}_{name}" for each in sets_of(runs) for name in chosen)],
        checkpoints=checkpoints,
        checkpoint_metrics=[name for name in metrics if any(name in each for each in checkpoints)],
        confidence=next((run["test"]["confidence"] for run in runs if "confidence" in run["test"]), 0.95),
        curves=learning_curves.pictures(made.groups, {run["run"]: run["curves"] for run in runs}, chosen),
        colours=list(zip(COLOURS, COLOURS_ON_DARK, strict=True)),
    )


def metrics_on(name: str, rows: list[Row], metrics: list[str]) -> list[str]:
    """The metrics that any run has on an evaluation set."""
    return [metric for metric in metrics if any(row.get(f"test.{name}_{metric}") is not None for row in rows)]


def setting(value: object) -> str:
    text = "–" if value is None or value == {} else hidden(str(value))  # half a secret would not be recognised
    if all(part.isidentifier() for part in text.split(".")):
        text = text.rpartition(".")[2]  # of a class its name; the page shows the rest under the mouse
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
