"""How MLflow's pages show an experiment: runs that differ only in the seed are one configuration, with one colour; our columns, best run first.

By default MLflow hides all metric columns. A view is a tag of the experiment, which its address names; MLflow 3.17's pages read it as JSON
(tests/pipeline/test_ui.py looks at them).
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from snaketrain.evaluation import colours_of_runs
from snaketrain.evaluation.comparing import differing_settings, group_name
from snaketrain.runtime.manifests import digest
from snaketrain.tracking.tracked import INTERVAL, MODE

CONFIGURATION, SWEEP, COLOUR = "configuration", "sweep", "mlflow.runColor"
SEED = "train.seed"


@dataclass(frozen=True)
class TrainingRow:
    """A training and, once its checkpoint is selected, the metric that selected it."""

    name: str
    run_id: str
    settings: Mapping[str, object]
    data: str  # digest of its content
    metric: str | None = None
    mode: str | None = None
    value: float | None = None

    @property
    def identity(self) -> str:
        """Equal for the runs of a configuration."""
        return json.dumps([{key: value for key, value in self.settings.items() if key != SEED}, self.data, self.metric], sort_keys=True)


def sweep_and_values(run: str) -> tuple[str | None, list[str]]:
    """`rate`, [`learning_rate=1e-05`, `seed=0`] of the sweep's run `rate-learning_rate=1e-05-seed=0`; None and its name for another."""
    sweep, *values = re.split(r"-(?=[A-Za-z_]\w*=)", run)
    return (sweep, values) if values else (None, [run])


def short_name(run: str) -> str:
    """`lr=1e-5-seed=0`: MLflow truncates long names, and the tag `sweep` has the rest."""
    return "-".join(map(_short, sweep_and_values(run)[1]))


def _short(value: str) -> str:
    return re.sub(r"(=\d+(?:\.\d+)?e[+-]?)0+(?=\d)", r"\1", re.sub(r"^learning_rate=", "lr=", value))


def configuration_name(runs: list[str]) -> str:
    names = {_without_seed(run) for run in runs}
    return names.pop() if len(names) == 1 else group_name(sorted(map(short_name, runs)))


def _without_seed(run: str) -> str:
    sweep, values = sweep_and_values(run)
    return "-".join(_short(value) for value in values if not value.startswith("seed=")) or sweep or run


def configurations(rows: Iterable[TrainingRow]) -> dict[str, list[TrainingRow]]:
    """The runs of each configuration by its name, best first; a digest distinguishes configurations of the same name."""
    groups: dict[str, list[TrainingRow]] = {}
    for row in sorted(rows, key=_rank):
        groups.setdefault(row.identity, []).append(row)
    names = {identity: configuration_name([row.name for row in members]) for identity, members in groups.items()}
    repeated = Counter(names.values())
    return {name if repeated[name] == 1 else f"{name} ({digest(identity)[:6]})": groups[identity] for identity, name in names.items()}


def _rank(row: TrainingRow) -> tuple[float, str]:
    """Best first; runs without a result last."""
    value = math.inf if row.value is None or math.isnan(row.value) else -row.value if row.mode == "max" else row.value
    return value, row.name


def labels(rows: Iterable[TrainingRow]) -> dict[str, dict[str, str]]:
    groups = configurations(rows)
    colours = colours_of_runs([[row.name for row in members] for members in groups.values()])
    return {
        row.run_id: {CONFIGURATION: name, "pipeline.run": row.name, COLOUR: colours[row.name]}
        | ({SWEEP: sweep} if (sweep := sweep_and_values(row.name)[0]) else {})
        for name, members in groups.items()
        for row in members
    }


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
