"""How MLflow's pages show an experiment: our columns, best run first. MLflow hides metrics until somebody asks for them.

A view is a tag of the experiment, which its address names; MLflow 3.17's pages read it as JSON (tests/pipeline/test_ui.py looks at them).
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

NAME = "snaketrain"
TAG = f"mlflow.sharedViewState.{NAME}"
MOST_PARAMS, MOST_COMPARED = 8, 10
ALSO = ("test/accuracy_low", "train/examples_per_second", "goodput", "time/wall")
BESIDE_THE_POINT = (".sha256", ".hub_type", ".path", ".package")


@dataclass(frozen=True)
class Row:
    """A training, and the metric that chose its checkpoint, if one is chosen already."""

    run_id: str
    settings: dict[str, Any]
    metric: str | None
    mode: str | None


def view(rows: list[Row]) -> dict[str, Any]:
    """Trainings only, with the metric that chose most of the checkpoints, and the settings in which they differ."""
    chosen = Counter((row.metric, row.mode) for row in rows if row.metric).most_common(1)
    metric, mode = chosen[0][0] if chosen else ("loss", "min")
    metrics = dict.fromkeys((f"best/{metric}", f"test/{metric}", "test/loss", *ALSO))
    columns = [f"metrics.`{name}`" for name in metrics] + [f"params.`{name}`" for name in differing(rows)[:MOST_PARAMS]]
    return {
        "searchFilter": "tags.`pipeline.stage` = 'train'",
        "orderByKey": columns[0],
        "orderByAsc": mode == "min",
        "selectedColumns": columns,
        "runsHiddenMode": "FIRST_20_RUNS",
        "chartsSearchFilter": f"^(train/loss|eval/loss|eval/{re.escape(metric)})$",
    }


def differing(rows: list[Row]) -> list[str]:
    """Names of the settings in which the runs differ."""
    names = dict.fromkeys(name for row in rows for name in row.settings if not name.endswith(BESIDE_THE_POINT))
    return [name for name in names if len({json.dumps(row.settings.get(name)) for row in rows}) > 1]


def tags(rows: list[Row]) -> dict[str, str]:
    """Of the experiment; the second one has MLflow show its pages for trainings."""
    return {TAG: json.dumps(view(rows)), "mlflow.experimentKind": "custom_model_development"}


def view_address(ui: str, experiment_id: str) -> str:
    return f"{ui}/#/experiments/{experiment_id}/runs?viewStateShareKey={NAME}"


def curves_address(ui: str, experiment_id: str) -> str:
    return f"{view_address(ui, experiment_id)}&compareRunsMode=CHART"


def compare_address(ui: str, experiment_id: str, rows: list[Row]) -> str:
    runs = quote(json.dumps([row.run_id for row in rows[:MOST_COMPARED]], separators=(",", ":")))
    return f"{ui}/#/compare-runs?runs={runs}&experiments={quote(json.dumps([experiment_id], separators=(',', ':')))}"


def run_address(ui: str, experiment_id: str, run_id: str) -> str:
    return f"{ui}/#/experiments/{experiment_id}/runs/{run_id}"
