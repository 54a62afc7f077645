"""The stage that evaluates the model of a run on one of its `evaluation_sets`."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from snaketrain.config.schema import Data
from snaketrain.extras.evaluation_sets.settings import EvaluationSet, sets_of
from snaketrain.orchestration.stage import Reads
from snaketrain.orchestration.stages import Evaluation
from snaketrain.runtime.strict_json import JsonObject


class EvaluateSet(Evaluation):
    name, folder, works_on = "evaluate_set", "runs/{}/sets/{}", "run with that evaluation set"

    @cached_property
    def jobs(self) -> Collection[str]:
        return [job for run in self.pipeline.runs for job in self.jobs_of(run)]

    def jobs_of(self, run: str) -> Sequence[str]:
        return [f"{run}/{name}" for name in sets_of(self.pipeline.runs[run])]

    def set_of(self, job: str) -> EvaluationSet:
        return sets_of(self.settings_of(job))[job.partition("/")[2]]

    def prepared_alone(self, job: str) -> tuple[str, Data]:
        return f"evaluation_sets.{job.partition('/')[2]}", self.set_of(job).reading(self.settings_of(job).data)

    def reads(self, job: str) -> Reads:
        return super().reads(job) | ({"training": ("train_model", self.run(job))} if self.set_of(job).checkpoints == "all" else {})

    def settings(self, job: str) -> JsonObject:
        return super().settings(job) | {"set": {"checkpoints": self.set_of(job).checkpoints}}

    @property
    def script(self) -> Path:
        return Path(__file__).with_name("evaluate_set.py")


STAGES = (EvaluateSet,)
