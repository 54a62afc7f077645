"""How MLflow names, groups and colours runs: those that differ only in the seed are one configuration."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from snaketrain.evaluation import colours_of_runs
from snaketrain.evaluation.comparing import group_name
from snaketrain.runtime.manifests import digest

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
    """Of runs that differ only in the seed."""
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
    """The tags of each run, by its id."""
    groups = configurations(rows)
    colours = colours_of_runs([[row.name for row in members] for members in groups.values()])
    return {
        row.run_id: {CONFIGURATION: name, "pipeline.run": row.name, COLOUR: colours[row.name]}
        | ({SWEEP: sweep} if (sweep := sweep_and_values(row.name)[0]) else {})
        for name, members in groups.items()
        for row in members
    }
