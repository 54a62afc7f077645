"""The stage that prepares shards, and what it adds to `prepare_data`. A job is named after its data set and its shard: `data set/00003-of-00008`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema import Data, Settings
from snaketrain.extras.shards.settings import shards_of
from snaketrain.orchestration.names import data_name
from snaketrain.orchestration.rule_values import TAKES_WILDCARDS, with_parameters
from snaketrain.orchestration.stage import Reads, fetched
from snaketrain.orchestration.stages import Prepare

if TYPE_CHECKING:
    from snakemake.workflow import Workflow

HERE = Path(__file__).parent


def dataset_of(name: str) -> str:
    """The data set of a job's name, `data set` or `data set/shard`."""
    return name.partition("/")[0]


class Shards:
    def __init__(self, runs: Iterable[Settings]):
        self.counts: dict[str, int] = {}  # of the data sets that have any; the largest that a run asks for
        for run in runs:
            if count := shards_of(run.data):
                name = data_name(run.data)
                self.counts[name] = max(count, self.counts.get(name, 0))

    @property
    def names(self) -> list[str]:
        return [shard for dataset in self.counts for shard in self.of(dataset)]

    def of(self, dataset: str) -> list[str]:
        count = self.counts.get(dataset, 0)
        return [f"{dataset}/{number:05}-of-{count:05}" for number in range(count)]


class PrepareShard(Prepare):
    name, folder, works_on = "prepare_shard", "data/{}/shards/{}", "shard"
    script = HERE / "prepare_shard.py"

    @cached_property
    def shards(self) -> Shards:
        return Shards(self.pipeline.runs.values())

    @property
    def jobs(self) -> Collection[str]:
        return self.shards.names

    def reading(self, job: str) -> Data:
        return super().reading(dataset_of(job))

    def reads(self, job: str) -> Reads:
        return self.raw(dataset_of(job)) | fetched(tokenizer=self.reading(job).tokenizer)

    def adds(self, stage: str, job: str) -> Mapping[str, list[str]]:
        """The shards that `prepare_data` joins. They are no input of its manifest: another number of them leaves it as it is."""
        return {"shards": [self.pipeline.as_input(self.name, shard) for shard in self.shards.of(job)]} if stage == "prepare_data" else {}

    def adds_code(self, stage: str, job: str) -> list[Path]:
        return [HERE / "joining.py"] if stage == "prepare_data" and job in self.shards.counts else []


STAGES = (PrepareShard,)


# --- shards that are submitted together


def group_of_shards(workflow: "Workflow") -> Callable[[Sequence[str]], str | None]:
    """For the `group` of the rule: with `--group-components shards=4`, four neighbouring shards are one submission."""

    def of_job(wildcards: Sequence[str]) -> str | None:
        size = workflow.group_settings.group_components.get("shards", 1)
        if size == 1:
            return None
        dataset, shard = wildcards
        name = f"{dataset}-prepare_shard-{int(shard.partition('-')[0]) // size}"
        workflow.parent_groupids[name] = "shards"  # by which Snakemake looks up how many unconnected jobs it may join
        return name

    return with_parameters(TAKES_WILDCARDS, of_job)
