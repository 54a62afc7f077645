"""Stages that train: a run, the first steps of several runs, a run as far as a rung of its search; and the decisions of a search."""

from collections.abc import Collection
from pathlib import Path

from snaketrain.config.runs import strings
from snaketrain.config.schema import Compute
from snaketrain.orchestration.evaluation_sets import run_of
from snaketrain.orchestration.inspection.strategy_declarations import compared_strategy
from snaketrain.orchestration.inspection.task_metrics import train_settings
from snaketrain.orchestration.names import initial
from snaketrain.orchestration.stages.base import ModelStage, Reads, Stage, fetched
from snaketrain.orchestration.stages.code_of_runs import code_of_training
from snaketrain.runtime.job_settings import JobSettings


class Training(ModelStage):
    def compute(self, job: str) -> Compute:
        return self.pipeline.computes[self.run(job)]

    def reads(self, job: str) -> Reads:
        run = self.settings_of(job)
        return self.data(job) | fetched(model=run.model.source, initial=initial(run))

    def own_code(self, job: str) -> list[Path]:
        return code_of_training(self.settings_of(job))

    def settings(self, job: str) -> list[str]:
        run = self.settings_of(job)
        selection = strings("select", run.select) if run.train.depends_on_selection else []
        train = train_settings(run).model_copy(update={"strategy": compared_strategy(run.train.strategy)})
        return [*strings("model", run.model), *strings("train", train), *selection]


class TrainModel(Training):
    name, folder = "train_model", "runs/{}/training"


class TrainTrunk(Training):
    """The first steps of several runs, with the settings of one of them."""

    name, folder, works_on = "train_trunk", "trunks/{}/training", "trunk"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.trunks.known

    @property
    def script(self) -> str:
        return "train_model"

    def run(self, job: str) -> str:
        return self.pipeline.trunks.known[job].run

    def settings(self, job: str) -> list[str]:
        return self.pipeline.trunks.settings(job)

    def job_settings(self, job: str) -> JobSettings:
        return self.pipeline.stages["train_model"].job_settings(self.run(job))


class TrainRung(Training):
    """Continues the training of a run, in its folder."""

    name, folder, works_on = "train_rung", "runs/{}/rungs/{}", "rung of a search"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.searches.rungs

    def settings(self, job: str) -> list[str]:
        return [*super().settings(job), *self.pipeline.searches.rung_settings(job)]


class DecideRung(Stage):
    name, folder, works_on = "decide_rung", "searches/{}/{}", "rung of a search"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.searches.decisions

    def reads(self, job: str) -> Reads:
        return {run_of(rung): ("train_rung", rung) for rung in self.pipeline.searches.contenders(job)}

    def settings(self, job: str) -> list[str]:
        return self.pipeline.searches.decision_settings(job)
