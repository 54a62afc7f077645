"""The parts of Snakemake's objects that are used here; Snakemake has no type annotations."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol


class Wildcards(Protocol):
    run: str  # only for jobs of one run
    evaluation_set: str  # only for an evaluation on one of `evaluation_sets`

    def __iter__(self) -> Iterator[str]: ...
    def items(self) -> Iterable[tuple[str, str]]: ...


class Rule(Protocol):
    name: str


class Job(Protocol):
    rule: Rule
    wildcards: Wildcards
    output: Sequence[str]
    log: Sequence[str]


class Inputs(Protocol):
    def items(self) -> Iterable[tuple[str, str | list[str]]]: ...


class GroupJob(Protocol):
    """Jobs that are submitted as one."""

    jobs: Iterable[Job]


class Dag(Protocol):
    dependencies: Mapping[Job, Iterable[Job]]
    finished_jobs: Iterable[Job]

    def needrun_jobs(self) -> Iterable[Job]: ...
    def get_job_group(self, job: Job) -> GroupJob | None: ...


class Scheduler(Protocol):
    failed: Container[Job | GroupJob]
    running: Container[Job | GroupJob]


class GroupSettings(Protocol):
    group_components: Mapping[str, int]  # how many unconnected jobs make up a group, by its name


class Workflow(Protocol):
    group_settings: GroupSettings
    parent_groupids: dict[str, str]
