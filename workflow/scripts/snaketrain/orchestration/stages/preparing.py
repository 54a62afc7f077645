"""Stages that tokenize and index data, in one job or in shards."""

from collections.abc import Collection
from pathlib import Path

from snaketrain.config.runs import strings
from snaketrain.config.schema import Data
from snaketrain.labels import label_kind_file
from snaketrain.orchestration.own_files import class_files, dataset_classes
from snaketrain.orchestration.shards import dataset_of, shard_of
from snaketrain.orchestration.stages.base import Reads, Stage, fetched


class Prepare(Stage):
    def reading(self, job: str) -> Data:
        """The settings by which examples are read."""
        return self.pipeline.datasets[dataset_of(job)]

    def raw(self, job: str) -> Reads:
        return {"raw": ("fetch_data", dataset_of(job))}

    def settings(self, job: str) -> list[str]:
        return strings("data", self.reading(job))

    def own_code(self, job: str) -> list[Path]:
        reading = self.reading(job)
        return [*class_files(dataset_classes(reading)), label_kind_file(reading.label_kind)]


class SurveyShard(Prepare):
    name, folder, works_on = "survey_shard", "data/{}/surveys/{}", "shard to survey"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.shards.surveyed

    def reads(self, job: str) -> Reads:
        return self.raw(job)


class DecideClasses(Prepare):
    name, folder, works_on = "decide_classes", "data/{}/classes", "data set with shards and without `labels`"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.shards.deciding

    def reads(self, job: str) -> Reads:
        return {shard_of(shard): ("survey_shard", shard) for shard in self.pipeline.shards.of(job)}


class PrepareShard(Prepare):
    name, folder, works_on = "prepare_shard", "data/{}/shards/{}", "shard"

    @property
    def jobs(self) -> Collection[str]:
        return self.pipeline.shards.names

    def reads(self, job: str) -> Reads:
        decided = {"classes": ("decide_classes", dataset_of(job))} if dataset_of(job) in self.pipeline.shards.deciding else {}
        return self.raw(job) | fetched(tokenizer=self.reading(job).tokenizer) | decided


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

    def reading(self, job: str) -> Data:
        return self.pipeline.sets.prepared[job].reading

    def reads(self, job: str) -> Reads:
        return self.pipeline.sets.prepared[job].reads()
