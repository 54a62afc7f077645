"""How MLflow's pages show an experiment: our columns, best run first. By default MLflow hides all metric columns.

A view is a tag of the experiment, which its address names; MLflow 3.17's pages read it as JSON (tests/pipeline/test_ui.py looks at them).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from snaketrain.evaluation.differences import differing_settings

NAME = "snaketrain"
TAG = f"mlflow.sharedViewState.{NAME}"
MOST_PARAMS, MOST_COMPARED = 8, 10
ALSO = ("test/accuracy_low", "train/examples_per_second", "goodput", "time/wall")
BESIDE_THE_POINT = (".sha256", ".hub_type", ".path", ".package")  # too long for a column


@dataclass(frozen=True)
class TrainingRow:
    """A training, and the metric that selected its checkpoint, once one is selected."""

    run_id: str
    settings: Mapping[str, object]
    metric: str | None
    mode: str | None


def view(rows: list[TrainingRow]) -> dict[str, object]:
    """Trainings only, with the metric that selected most checkpoints, and the settings that differ."""
    chosen = Counter((row.metric, row.mode) for row in rows if row.metric).most_common(1)
    metric, mode = chosen[0][0] if chosen else ("loss", "min")
    differing = differing_settings([row.settings for row in rows], left_out=BESIDE_THE_POINT)
    metrics = dict.fromkeys((f"best/{metric}", f"test/{metric}", "test/loss", *ALSO))
    columns = [f"metrics.`{name}`" for name in metrics] + [f"params.`{name}`" for name in differing[:MOST_PARAMS]]
    return {
        "searchFilter": "tags.`pipeline.stage` = 'train'",
        "orderByKey": columns[0],
        "orderByAsc": mode == "min",
        "selectedColumns": columns,
        "runsHiddenMode": "FIRST_20_RUNS",
        "chartsSearchFilter": f"^(train/loss|eval/loss|eval/{re.escape(metric)})$",
    }


def tags(rows: list[TrainingRow]) -> dict[str, str]:
    """Tags of the experiment; the second makes MLflow show its pages for trainings."""
    return {TAG: json.dumps(view(rows)), "mlflow.experimentKind": "custom_model_development"}


def view_address(ui: str, experiment_id: str) -> str:
    return f"{ui}/#/experiments/{experiment_id}/runs?viewStateShareKey={NAME}"


def curves_address(ui: str, experiment_id: str) -> str:
    return f"{view_address(ui, experiment_id)}&compareRunsMode=CHART"


def compare_address(ui: str, experiment_id: str, rows: list[TrainingRow]) -> str:
    runs = quote(json.dumps([row.run_id for row in rows[:MOST_COMPARED]], separators=(",", ":")))
    return f"{ui}/#/compare-runs?runs={runs}&experiments={quote(json.dumps([experiment_id], separators=(',', ':')))}"


def run_address(ui: str, experiment_id: str, run_id: str) -> str:
    return f"{ui}/#/experiments/{experiment_id}/runs/{run_id}"
