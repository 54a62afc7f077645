"""The stages of the core: for each result its settings, its own code, and what it reads; and all stages that there are."""

from collections.abc import Collection, Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

from snaketrain.config.schema import Compute, Data, Examples, Source
from snaketrain.config.schema.data import TEST_SET
from snaketrain.config.schema.of_extras import hooks, modules
from snaketrain.labels import label_kind_file
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.named_code import train_settings
from snaketrain.orchestration.names import initial, set_name, source_name
from snaketrain.orchestration.own_files import class_files, code_of_run, code_of_training, dataset_classes
from snaketrain.orchestration.stage import ModelStage, Reads, Stage, fetched
from snaketrain.orchestration.strategy_declarations import compared_strategy
from snaketrain.runtime.stages import JobSettings
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.slurm.jobs import Work

# --- fetch: copy data and models from where their sources say, on the machine that runs the workflow


class FetchOne(Stage):
    """The files of a source."""

    fetches = is_reproducible = True

    @property
    def script(self) -> Path:
        return SCRIPTS / "fetch_source.py"

    def settings(self, job: str) -> JsonObject:
        return {"source": self.sources(job)["source"].as_json}


class FetchData(Stage):
    name, folder, works_on = "fetch_data", "raw/{}", "data set"
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
    """Of what some stages read besides the training data, such as a test set in files of its own."""

    name, folder, works_on = "fetch_input", "inputs/{}", "files of an evaluation set or another input"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.inputs

    def sources(self, job: str) -> dict[str, Source]:
        return {"source": self.pipeline.inputs[job]}


# --- prepare: tokenize and index data


class Prepare(Stage):
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


class PreparedSet(NamedTuple):
    """An evaluation set that is prepared on its own; runs with the same data share it."""

    place: str  # in the configuration
    job: str  # of `prepare_set`
    data: str  # the name of the prepared training data
    reading: Data  # its only split is `test`


class PrepareSet(Prepare):
    name, folder, works_on = "prepare_set", "sets/{}", "evaluation set"

    @cached_property
    def prepared(self) -> dict[str, PreparedSet]:
        evaluations = (stage for stage in self.pipeline.stages.values() if isinstance(stage, Evaluation))
        return {each.job: each for stage in evaluations for each in stage.sets.values()}

    @property
    def jobs(self) -> Collection[str]:
        return self.prepared

    def files(self, job: str) -> Examples | None:
        """None for a dataset class."""
        examples = self.reading(job).test
        return examples if examples and examples.use is None else None

    def inputs_to_fetch(self) -> Iterable[Source]:
        return [files.source for job in self.jobs if (files := self.files(job))]

    def reading(self, job: str) -> Data:
        return self.prepared[job].reading

    def reads(self, job: str) -> Reads:
        data: Reads = {"data": ("prepare_data", self.prepared[job].data)}
        return data | ({"files": ("fetch_input", source_name(files.source))} if (files := self.files(job)) else {})


# --- train


class Training(ModelStage):
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
        ranking = run.select.model_copy(update={"average": 1, "step": None})  # which checkpoint is taken in the end decides no step
        return {"model": run.model.as_json, "train": train.as_json} | ({"select": ranking.as_json} if train.depends_on_selection else {})


class TrainModel(Training):
    name, folder = "train_model", "runs/{}/training"

    def _planned(self, job: str) -> JobSettings:
        planned, made = super()._planned(job), Path(self.manifest(job)).parent
        return next(filter(None, (as_certified(made, planned) for as_certified in hooks("certificates", "as_certified"))), planned)

    def jobs_of(self, run: str) -> Sequence[str]:
        return [run]


# --- select a checkpoint, evaluate it, compare the runs


class SelectCheckpoint(Stage):
    name, folder = "select_checkpoint", "runs/{}/selection"

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
    """On the development and test set, or on a further set, whose job is `run/set` and works in `sets/` of the run. Its results are compared
    with those of other runs, and shown on the model card and in MLflow."""

    label_classes = ("Head", "Report", "Panel")

    def prepared_alone(self, job: str) -> tuple[str, Data] | None:
        """The set that is not prepared with the training data: its place in the configuration, and how it is read."""
        raise NotImplementedError

    @cached_property
    def sets(self) -> dict[str, PreparedSet]:
        """By job."""
        found: dict[str, PreparedSet] = {}
        for job in self.jobs:
            if alone := self.prepared_alone(job):
                place, reading = alone
                name = set_name(place.rpartition(".")[2], reading, self.settings_of(job).data)
                found[job] = PreparedSet(place, name, self.pipeline.data_names[self.run(job)], reading)
        return found

    def reads(self, job: str) -> Reads:
        return self.data(job) | self.selection(job) | ({"set": ("prepare_set", self.sets[job].job)} if job in self.sets else {})

    def settings(self, job: str) -> JsonObject:
        return {"evaluate": self.settings_of(job).evaluate.as_json}

    def own_code(self, job: str) -> list[Path]:
        run = self.settings_of(job)
        reading = self.sets[job].reading if job in self.sets else run.data
        return [*code_of_run(run, "evaluate.metrics"), *class_files(dataset_classes(reading))]


class EvaluateModel(Evaluation):
    name, folder = "evaluate_model", "runs/{}/evaluation"

    def jobs_of(self, run: str) -> Sequence[str]:
        return [run]

    def prepared_alone(self, job: str) -> tuple[str, Data] | None:
        reading = self.settings_of(job).data.own_test_set
        return (TEST_SET, reading) if reading else None


class CompareRuns(Stage):
    name, folder, works_on = "compare_runs", "comparison", ""

    @property
    def jobs(self) -> Collection[str]:
        return [""]

    def reads(self, job: str) -> Reads:
        compared = self.pipeline.finishing()
        decisions: Reads = {f"{stage} {name}": (stage, name) for stage, name in self.pipeline.decisions}
        return {job: (stage, job) for run in compared for stage, job in self.pipeline.evaluations(run)} | decisions


CORE: tuple[type[Stage], ...] = (
    FetchData, FetchModel, FetchInput, PrepareData, PrepareSet, TrainModel, SelectCheckpoint, EvaluateModel, CompareRuns,
)  # fmt: skip


@cache
def classes() -> dict[str, type[Stage]]:
    """All stages, of the core and of each extra that is there."""
    return {stage.name: stage for stage in (*CORE, *(stage for extra in modules("stages") for stage in extra.STAGES))}


# --- what a rule's name tells of its jobs, where no configuration is at hand


def trains(rule: str) -> bool:
    """Whether its jobs write the journal of a training."""
    return issubclass(classes().get(rule, Stage), Training)


def evaluates(rule: str) -> bool:
    return issubclass(classes().get(rule, Stage), Evaluation)


def whole_of(rule: str) -> str:
    """The rule of whose jobs its own are parts, in the same folder; itself, if they are no parts."""
    return classes().get(rule, Stage).part_of or rule


def parts_of(rule: str) -> list[str]:
    """The rules that do a part of its jobs."""
    return [name for name, stage in classes().items() if stage.part_of == rule]


def folder_of_job(rule: str, output: str | Path) -> Path:
    """Where a job works, given its first output."""
    folder = Path(output).parent
    if (whole := whole_of(rule)) == rule:
        return folder
    own = Path(classes()[rule].folder)
    run = folder.parts[-len(own.parts) :][own.parts.index("{}")]
    return folder.parents[len(own.parts) - 1] / classes()[whole].folder.format(run)


# --- what SLURM's jobs do


def run_of_work(work: Work) -> str:
    """The run, where the job works on one: of a part, whose name is `<run>_<part>`, too."""
    return work.name if whole_of(work.stage) == work.stage else work.name.rpartition("_")[0]


def results_of_work(work: Work) -> set[tuple[str, str]]:
    """What it writes: a run has one training folder, whether it is trained in parts or at once."""
    return {(whole_of(stage), run_of_work(work)) for stage in work.stages}
