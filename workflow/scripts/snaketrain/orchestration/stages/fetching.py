"""Stages that copy data and models from where their sources say, on the machine that runs the workflow."""

from collections.abc import Collection

from snaketrain.config.runs import strings
from snaketrain.config.schema import Source
from snaketrain.orchestration.own_files import of_splits
from snaketrain.orchestration.stages.base import Stage


class FetchOne(Stage):
    """The files of a source."""

    def settings(self, job: str) -> list[str]:
        return strings("source", self.sources(job)["source"])


class FetchData(Stage):
    name, folder, works_on = "fetch_data", "raw/{}", "data set"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.datasets

    def sources(self, job: str) -> dict[str, Source]:
        return {split: source for split, source in of_splits(self.pipeline.datasets[job]).items() if not source.use}

    def settings(self, job: str) -> list[str]:
        splits = of_splits(self.pipeline.datasets[job])
        return [string for split, source in splits.items() for string in strings(f"data.{split}", source)]


class FetchModel(FetchOne):
    name, folder, works_on = "fetch_model", "models/{}", "model"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.models

    def sources(self, job: str) -> dict[str, Source]:
        return {"source": self.pipeline.models[job]}


class FetchInput(FetchOne):
    """Of evaluation sets, and of unlabelled data."""

    name, folder, works_on = "fetch_input", "inputs/{}", "files of an evaluation set or to predict"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.inputs

    def sources(self, job: str) -> dict[str, Source]:
        return {"source": self.pipeline.inputs[job]}
