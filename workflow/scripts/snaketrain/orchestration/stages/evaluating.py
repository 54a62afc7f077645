"""Stages after the training: select a checkpoint, evaluate it, predict with it, compare the runs."""

from collections.abc import Collection
from pathlib import Path

from snaketrain.config.runs import strings
from snaketrain.config.schema import Inputs, Settings
from snaketrain.orchestration.evaluation_sets import set_of
from snaketrain.orchestration.names import source_name
from snaketrain.orchestration.stages.base import ModelStage, Reads, Stage, fetched
from snaketrain.orchestration.stages.code_of_runs import code_of_evaluation, code_of_run


class SelectCheckpoint(Stage):
    name, folder = "select_checkpoint", "runs/{}/selection"

    def reads(self, job: str) -> Reads:
        model = self.pipeline.runs[job].model
        return {"training": ("train_model", job)} | fetched(model=model.source if model.adapters else None)

    def settings(self, job: str) -> list[str]:
        return strings("select", self.pipeline.runs[job].select)


class Inference(ModelStage):
    """With the selected checkpoint."""

    def selection(self, job: str) -> Reads:
        return {"selection": ("select_checkpoint", self.run(job))}


class Evaluation(Inference):
    def reads(self, job: str) -> Reads:
        return self.data(job) | self.selection(job) | self.pipeline.sets.reads(job)

    def own_code(self, job: str) -> list[Path]:
        return code_of_evaluation(self.settings_of(job), set_of(job))


class EvaluateModel(Evaluation):
    name, folder = "evaluate_model", "runs/{}/evaluation"

    def settings(self, job: str) -> list[str]:
        return strings("evaluate", self.settings_of(job).evaluate)


class EvaluateSet(Evaluation):
    name, folder, works_on = "evaluate_set", "runs/{}/sets/{}", "run with that evaluation set"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.sets.evaluations

    def settings(self, job: str) -> list[str]:
        return self.pipeline.sets.settings(job)


class PredictInputs(Inference):
    name, folder, works_on = "predict_inputs", "runs/{}/predictions", "run with data to predict"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.predicting

    def reads(self, job: str) -> Reads:
        inputs = self.settings_of(job).predict
        return self.selection(job) | {name: ("fetch_input", source_name(each.source)) for name, each in inputs.items()}

    def settings(self, job: str) -> list[str]:
        inputs = sorted(predicted(self.settings_of(job)).items())
        return [string for name, each in inputs for string in strings(f"predict.{name}", each)]

    def own_code(self, job: str) -> list[Path]:
        return code_of_run(self.settings_of(job))


class CompareRuns(Stage):
    name, folder, works_on = "compare_runs", "comparison", ""

    @property
    def jobs(self) -> Collection[str]:
        return [""]

    def reads(self, job: str) -> Reads:
        compared = self.pipeline.searches.finishing()
        decisions: Reads = {f"search {name}": ("decide_rung", name) for name in self.pipeline.searches.decisions}
        evaluations: Reads = {name: ("evaluate_set", name) for name in self.pipeline.evaluations_of(compared)}
        return {run: ("evaluate_model", run) for run in compared} | evaluations | decisions


def predicted(run: Settings) -> dict[str, Inputs]:
    """The inputs of `predict`, of which those that do not say how text is generated follow the evaluation."""
    by_evaluation = {"generate": run.evaluate.generate}
    return {
        name: inputs.model_copy(update=by_evaluation) if inputs.generate is None and inputs.asks_for_text(run.data) else inputs
        for name, inputs in run.predict.items()
    }
