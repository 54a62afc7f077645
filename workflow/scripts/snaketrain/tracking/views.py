"""How MLflow's pages show an experiment: our columns, best run first. By default MLflow hides all metric columns.

A view is a tag of the experiment, which its address names; MLflow 3.17's pages read it as JSON (tests/pipeline/test_ui.py looks at them).
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

from snaketrain.evaluation.comparing import differing_settings
from snaketrain.tracking.configurations import CONFIGURATION, TrainingRow, configurations
from snaketrain.tracking.tracked import INTERVAL, MODE

NAME, GROUPED = "snaketrain", "snaketrain-configurations"
TAG, GROUPED_TAG = f"mlflow.sharedViewState.{NAME}", f"mlflow.sharedViewState.{GROUPED}"
MOST_COLUMNS, MOST_COMPARED = 6, 10
FIRST = ("train.learning_rate", "train.seed")
BESIDE_THE_POINT = (".sha256", ".hub_type", ".path", ".package")  # too long for a column


def tags(rows: Sequence[TrainingRow]) -> dict[str, str]:
    """Tags of the experiment; pages of MLflow before 3.17 choose their mode by the last one."""
    return {TAG: json.dumps(view(rows)), GROUPED_TAG: json.dumps(grouped(rows)), "mlflow.experimentKind": "custom_model_development"}


def view(rows: Sequence[TrainingRow]) -> dict[str, object]:
    """Trainings only, with the metric that selected most checkpoints, and the settings that differ."""
    chosen = Counter((row.metric, row.mode) for row in rows if row.metric).most_common(1)
    metric, mode = chosen[0][0] if chosen else ("loss", "min")
    results = [f"metrics.`dev/{metric}`", f"metrics.`test/{metric}`", f"tags.`{INTERVAL}`"]
    columns = [*results, *(f"params.`{name}`" for name in shown_settings(rows)[: MOST_COLUMNS - len(results)])]
    return {
        "searchFilter": "tags.`pipeline.stage` = 'train'",
        "orderByKey": columns[0],
        "orderByAsc": mode == "min",
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {column: 50 + 8 * len(column.partition("`")[2]) for column in columns},
        "runsHiddenMode": "FIRST_20_RUNS",
        "chartsSearchFilter": f"^(train/loss|eval/loss|eval/{re.escape(metric)})$",
    }


def shown_settings(rows: Sequence[TrainingRow]) -> list[str]:
    """Learning rate and seed, then the other settings that differ."""
    known = [name for name in FIRST if any(name in row.settings for row in rows)]
    return list(dict.fromkeys([*known, *differing_settings([row.settings for row in rows], left_out=BESIDE_THE_POINT)]))


def grouped(rows: Sequence[TrainingRow]) -> dict[str, object]:
    """The same with a line for each configuration: the mean over its seeds, and in the curves a band from the lowest to the highest."""
    by_configuration = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": CONFIGURATION}]}
    return view(rows) | {"groupBy": by_configuration, "useGroupedValuesInCharts": True}


def addresses(ui: str, experiment_id: str, rows: Sequence[TrainingRow]) -> list[str]:
    """Of the views and of a comparison of the runs, each with what it shows."""
    found = [f"all runs   {view_address(ui, experiment_id)}", f"curves     {curves_address(ui, experiment_id)}"]
    if any(len(members) > 1 for members in configurations(rows).values()):
        found.append(f"seeds      {curves_address(ui, experiment_id, GROUPED)}")
    return [*found, f"compared   {compare_address(ui, experiment_id, rows)}"]


def view_address(ui: str, experiment_id: str, name: str = NAME) -> str:
    return f"{ui}/#/experiments/{experiment_id}/runs?viewStateShareKey={name}&{MODE}"


def curves_address(ui: str, experiment_id: str, name: str = NAME) -> str:
    return f"{view_address(ui, experiment_id, name)}&compareRunsMode=CHART"


def compare_address(ui: str, experiment_id: str, rows: Sequence[TrainingRow]) -> str:
    runs = quote(json.dumps([row.run_id for row in rows[:MOST_COMPARED]], separators=(",", ":")))
    experiments = quote(json.dumps([experiment_id], separators=(",", ":")))
    return f"{ui}/#/compare-runs?runs={runs}&experiments={experiments}&{MODE}"
