"""What a checkpoint says of itself, read without torch: its metrics, by which checkpoints are ranked, and which of its files are the model.

One rule decides which are kept and which is selected; not by the journal, which may hold an evaluation whose checkpoint was never saved.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from snaketrain.runtime import strict_json
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.metric_names import rank_key

WEIGHTS, AVERAGES = "weights", "averages"  # folders of a checkpoint in shards
AVERAGED = ".averaged.safetensors"  # ends the names of whole averaged weights
STATE = "state.json"

# --- The metric by which checkpoints are selected, and its best value so far.


@dataclass(frozen=True)
class Selection:
    """The metric by which checkpoints are ranked; `mode` is max or min."""

    metric: str
    mode: str

    @property
    def sign(self) -> int:
        """What makes more of the metric better."""
        return 1 if self.mode == "max" else -1


BY_LOSS = Selection("loss", "min")


class BestMetric:
    """So far; a resumed training finds it in its journal."""

    def __init__(self, selection: Selection):
        self.metric, self.sign = selection.metric, selection.sign
        self.best, self.loss = -math.inf, math.inf

    def improved(self, metrics: dict[str, float]) -> bool:
        """Also by an equal value with a lower loss: `best_first` would select its checkpoint, which must be saved for that."""
        value = self.sign * metrics.get(self.metric, math.nan)
        loss = loss if math.isfinite(loss := metrics.get("loss", math.inf)) else math.inf
        if not math.isfinite(value) or (-value, loss) >= (-self.best, self.loss):  # nothing would be better than an infinity
            return False
        self.best, self.loss = value, loss
        return True


class CheckpointState(TypedDict):
    """`state.json` of a checkpoint."""

    step: int
    metrics: dict[str, float] | None  # none: saved without an evaluation
    scaler: JsonObject  # of the gradient scaler
    settings: NotRequired[JsonObject]  # under which it was trained; none: taken over from another training
    ended: NotRequired[str]  # why a callback has ended the training here
    callbacks: NotRequired[dict[str, JsonObject]]  # what they say of it, by their names


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint and its metrics on the development set."""

    step: int
    metrics: dict[str, float]
    path: Path


def read_state(checkpoint: Path) -> CheckpointState:
    try:
        state: CheckpointState = strict_json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{checkpoint}/{STATE}: cannot be read ({error}). Delete this checkpoint, and train the run again.") from None
    return state


def is_sharded(checkpoint: Path) -> bool:
    return (checkpoint / WEIGHTS).is_dir()


def exported_files(checkpoint: Path) -> dict[str, Path]:
    """The files of whole weights, by the names that they are exported under: averages, where there are any, replace what was trained."""
    files = {path.name: path for path in checkpoint.glob("*.safetensors") if not path.name.endswith(AVERAGED)}
    return files | {path.name.replace(AVERAGED, ".safetensors"): path for path in checkpoint.glob(f"*{AVERAGED}")}


def evaluated(checkpoints: Path) -> list[Evaluated]:
    """The checkpoints in a folder that were evaluated, in the order of their steps."""
    states = ((path, read_state(path)) for path in sorted(checkpoints.glob("step-*")))
    return [Evaluated(state["step"], state["metrics"], path) for path, state in states if state["metrics"]]


def best_first(found: Iterable[Evaluated], metric: str, mode: str) -> list[Evaluated]:
    """Of equal ones that of the lower loss comes first, then the earlier; those whose metric is not finite are left out."""
    finite = [each for each in found if math.isfinite(each.metrics.get(metric, math.nan))]
    return sorted(finite, key=lambda each: (*rank_key(each.metrics[metric], each.metrics.get("loss"), mode), each.step))
