"""The stages of the core: for each result its settings, its own code, and what it reads."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from snaketrain.config.schema import Compute, Data, Source
from snaketrain.labels import label_kind_file
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.evaluation_sets import set_of
from snaketrain.orchestration.named_code import train_settings
from snaketrain.orchestration.names import initial
from snaketrain.orchestration.own_files import class_files, code_of_evaluation, code_of_training, dataset_classes
from snaketrain.orchestration.stage import ModelStage, Reads, Stage, fetched
from snaketrain.orchestration.strategy_declarations import compared_strategy
from snaketrain.runtime.strict_json import JsonObject

# --- fetch: copy data and models from where their sources say, on the machine that runs the workflow


class FetchOne(Stage):
    """The files of a source."""

    sections = ("source",)
    fetches = is_reproducible = True

    @property
    def script(self) -> Path:
        return SCRIPTS / "fetch_source.py"

    def settings(self, job: str) -> JsonObject:
        return {"source": self.sources(job)["source"].as_json}


class FetchData(Stage):
    name, folder, works_on = "fetch_data", "raw/{}", "data set"
    sections = ("data",)
    fetches = is_reproducible = True

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.datasets

    def sources(self, job: str) -> dict[str, Source]:
        return {split: source for split, source in self.pipeline.datasets[job].sources.items() if not source.use}

    def settings(self, job: str) -> JsonObject:
        return {"data": {split: source.as_json for split, source in self.pipeline.datasets[job].sources.items()}}


class FetchModel(FetchOne):
    name, folder, works_on = "fetch_model", "models/{}", "model"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.models

    def sources(self, job: str) -> dict[str, Source]:
        return {"source": self.pipeline.models[job]}


class FetchInput(FetchOne):
    """Of what some stages read besides the training data, such as evaluation sets."""

    name, folder, works_on = "fetch_input", "inputs/{}", "files of an evaluation set or another input"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.inputs

    def sources(self, job: str) -> dict[str, Source]:
        return {"source": self.pipeline.inputs[job]}


# --- prepare: tokenize and index data


class Prepare(Stage):
    sections = ("data",)
    is_reproducible = True
    label_classes = ("Parser", "Tally")

    def reading(self, job: str) -> Data:
        """The settings by which examples are read."""
        return self.pipeline.datasets[job]

    def raw(self, job: str) -> Reads:
        return {"raw": ("fetch_data", job)}

    def settings(self, job: str) -> JsonObject:
        return {"data": self.reading(job).as_json}

    def own_code(self, job: str) -> list[Path]:
        reading = self.reading(job)
        return [*class_files(dataset_classes(reading)), label_kind_file(reading.label_kind)]


class PrepareData(Prepare):
    name, folder, works_on = "prepare_data", "data/{}", "data set"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.datasets

    def reads(self, job: str) -> Reads:
        return self.raw(job) | fetched(tokenizer=self.reading(job).tokenizer)


class PrepareSet(Prepare):
    name, folder, works_on = "prepare_set", "sets/{}", "evaluation set"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.sets.prepared

    def inputs_to_fetch(self) -> Iterable[Source]:
        return self.pipeline.sets.sources

    def reading(self, job: str) -> Data:
        return self.pipeline.sets.prepared[job].reading

    def reads(self, job: str) -> Reads:
        return self.pipeline.sets.prepared[job].reads()


# --- train


class Training(ModelStage):
    sections: ClassVar[tuple[str, ...]] = ("model", "train", "select")
    label_classes: ClassVar[tuple[str, ...]] = ("Head",)

    def compute(self, job: str) -> Compute:
        return self.pipeline.computes[self.run(job)]

    def reads(self, job: str) -> Reads:
        run = self.settings_of(job)
        return self.data(job) | fetched(model=run.model.source, initial=initial(run))

    def own_code(self, job: str) -> list[Path]:
        return code_of_training(self.settings_of(job))

    def settings(self, job: str) -> JsonObject:
        run = self.settings_of(job)
        train = train_settings(run).model_copy(update={"strategy": compared_strategy(run.train.strategy)})
        return {"model": run.model.as_json, "train": train.as_json} | ({"select": run.select.as_json} if train.depends_on_selection else {})


class TrainModel(Training):
    name, folder = "train_model", "runs/{}/training"

    def jobs_of(self, run: str) -> Sequence[str]:
        return [run]


# --- select a checkpoint, evaluate it, compare the runs


class SelectCheckpoint(Stage):
    name, folder = "select_checkpoint", "runs/{}/selection"
    sections = ("select",)

    def jobs_of(self, run: str) -> Sequence[str]:
        return [run]

    def reads(self, job: str) -> Reads:
        model = self.pipeline.runs[job].model
        return {"training": ("train_model", job)} | fetched(model=model.source if model.adapters else None)

    def settings(self, job: str) -> JsonObject:
        return {"select": self.pipeline.runs[job].select.as_json}


class Inference(ModelStage):
    """With the selected checkpoint."""

    def selection(self, job: str) -> Reads:
        return {"selection": ("select_checkpoint", self.run(job))}


class Evaluation(Inference):
    label_classes = ("Head", "Report", "Panel")

    def reads(self, job: str) -> Reads:
        return self.data(job) | self.selection(job) | self.pipeline.sets.reads(job)

    def own_code(self, job: str) -> list[Path]:
        return code_of_evaluation(self.settings_of(job), set_of(job))


class EvaluateModel(Evaluation):
    name, folder = "evaluate_model", "runs/{}/evaluation"
    sections = ("evaluate",)

    def jobs_of(self, run: str) -> Sequence[str]:
        return [run]

    def settings(self, job: str) -> JsonObject:
        return {"evaluate": self.settings_of(job).evaluate.as_json}


class EvaluateSet(Evaluation):
    name, folder, works_on = "evaluate_set", "runs/{}/sets/{}", "run with that evaluation set"
    sections = ("evaluate", "set")

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.sets.evaluations

    def jobs_of(self, run: str) -> Sequence[str]:
        return self.pipeline.evaluations_of([run])

    def settings(self, job: str) -> JsonObject:
        return self.pipeline.sets.settings(job)


class CompareRuns(Stage):
    name, folder, works_on = "compare_runs", "comparison", ""

    @property
    def jobs(self) -> Collection[str]:
        return [""]

    def reads(self, job: str) -> Reads:
        compared = self.pipeline.finishing()
        decisions: Reads = {f"{stage} {name}": (stage, name) for stage, name in self.pipeline.decisions}
        evaluations: Reads = {name: ("evaluate_set", name) for name in self.pipeline.evaluations_of(compared)}
        return {run: ("evaluate_model", run) for run in compared} | evaluations | decisions


CORE: tuple[type[Stage], ...] = (
    FetchData, FetchModel, FetchInput, PrepareData, PrepareSet, TrainModel, SelectCheckpoint, EvaluateModel, EvaluateSet, CompareRuns,
)  # fmt: skip
