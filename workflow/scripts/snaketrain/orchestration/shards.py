"""The shards in which data sets are prepared: how many, and the names of their jobs, `data set/00003-of-00008`."""

from collections.abc import Callable, Iterable

from snaketrain.config.schema import Data, Settings
from snaketrain.orchestration.names import data_name
from snaketrain.orchestration.rule_values import TAKES_WILDCARDS, Wildcards, Workflow, with_signature


def dataset_of(name: str) -> str:
    """The data set of a job's name, `data set` or `data set/shard`."""
    return name.partition("/")[0]


def shard_of(name: str) -> str:
    return name.partition("/")[2]


class Shards:
    def __init__(self, runs: Iterable[Settings]):
        self.counts: dict[str, int] = {}  # of the data sets that have any; the largest that a run asks for
        self.data: dict[str, Data] = {}
        for run in runs:
            if run.data.shards:
                name = data_name(run.data)
                self.counts[name] = max(run.data.shards, self.counts.get(name, 0))
                self.data[name] = run.data.for_training

    @property
    def names(self) -> list[str]:
        return [shard for dataset in self.counts for shard in self.of(dataset)]

    @property
    def surveyed(self) -> list[str]:
        """Those whose labels are surveyed."""
        return [shard for dataset in self.deciding for shard in self.of(dataset)]

    @property
    def deciding(self) -> list[str]:
        """The data sets whose classes are not listed."""
        return [name for name, data in self.data.items() if data.finds_classes]

    def of(self, dataset: str) -> list[str]:
        count = self.counts.get(dataset, 0)
        return [f"{dataset}/{number:05}-of-{count:05}" for number in range(count)]

    @staticmethod
    def group(workflow: Workflow, stage: str) -> Callable[[Wildcards], str | None]:
        """For the `group` of a stage's rule: with `--group-components shards=4`, four neighbouring shards are one submission."""

        def of_job(wildcards: Wildcards) -> str | None:
            size = workflow.group_settings.group_components.get("shards", 1)
            if size == 1:
                return None
            dataset, shard = wildcards
            group = f"{dataset}-{stage}-{int(shard.partition('-')[0]) // size}"
            workflow.parent_groupids[group] = "shards"  # by which Snakemake looks up how many unconnected jobs it may join
            return group

        return with_signature(TAKES_WILDCARDS, of_job)
