"""The stages, each with what the workflow must know of it."""

from typing import TYPE_CHECKING

from snaketrain.orchestration.stages.base import ModelStage as ModelStage
from snaketrain.orchestration.stages.base import Reads as Reads
from snaketrain.orchestration.stages.base import Stage as Stage
from snaketrain.orchestration.stages.evaluating import CompareRuns, EvaluateModel, EvaluateSet, PredictInputs, SelectCheckpoint
from snaketrain.orchestration.stages.fetching import FetchData, FetchInput, FetchModel
from snaketrain.orchestration.stages.preparing import DecideClasses, PrepareData, PrepareSet, PrepareShard, SurveyShard
from snaketrain.orchestration.stages.training import DecideRung, TrainModel, TrainRung, TrainTrunk

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline

STAGES: dict[str, type[Stage]] = {
    stage.name: stage
    for stage in (
        FetchData, FetchModel, FetchInput, SurveyShard, DecideClasses, PrepareShard, PrepareData, PrepareSet, TrainTrunk, TrainRung,
        DecideRung, TrainModel, SelectCheckpoint, EvaluateModel, EvaluateSet, PredictInputs, CompareRuns,
    )
}  # fmt: skip


def stages_of(pipeline: "Pipeline") -> dict[str, Stage]:
    return {name: stage(pipeline) for name, stage in STAGES.items()}
