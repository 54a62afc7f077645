"""Ranks checkpoints by the metrics stored in them: one rule decides which are kept and which is selected.

Not by the journal, which may hold an evaluation whose checkpoint was never saved.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from snaketrain.runtime import strict_json
from snaketrain.runtime.json_types import JsonObject
from snaketrain.tasks.metric_modes import rank_key
from snaketrain.training.trajectory import Record


class CheckpointState(TypedDict):
    """`state.json` of a checkpoint."""

    step: int
    metrics: dict[str, float] | None  # none: saved without an evaluation
    scaler: JsonObject  # of the gradient scaler
    settings: NotRequired[list[str]]  # under which it was trained; none: taken over from another training
    ended: NotRequired[str]  # why a callback has ended the training here
    trajectory: NotRequired[Record]  # none: the weights follow from more than the settings and code of one training


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint and its metrics on the development set."""

    step: int
    metrics: dict[str, float]
    path: Path


def read_state(checkpoint: Path) -> CheckpointState:
    try:
        state: CheckpointState = strict_json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{checkpoint}/state.json: cannot be read ({error}). Delete this checkpoint, and train the run again.") from None
    return state


def evaluated(checkpoints: Path) -> list[Evaluated]:
    """The checkpoints in a folder that were evaluated, in the order of their steps."""
    states = ((path, read_state(path)) for path in sorted(checkpoints.glob("step-*")))
    return [Evaluated(state["step"], state["metrics"], path) for path, state in states if state["metrics"]]


def best_first(found: Iterable[Evaluated], metric: str, mode: str) -> list[Evaluated]:
    """Of equal ones that of the lower loss comes first, then the earlier; those whose metric is not finite are left out."""
    finite = [each for each in found if math.isfinite(each.metrics.get(metric, math.nan))]
    return sorted(finite, key=lambda each: (*rank_key(each.metrics[metric], each.metrics.get("loss"), mode), each.step))
