"""What the rules need: the runs, where their results are, and the settings and code that make a result stale.

Every job parses the Snakefile again, so this imports nothing heavy.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from snaketrain.config.runs import read_runs
from snaketrain.config.schema import Compute, Data, Settings, Source, Tracking
from snaketrain.config.secrets import variables_in
from snaketrain.orchestration.names import data_name, initial, run_of, source_name
from snaketrain.orchestration.rule_values import varying
from snaketrain.orchestration.stage import Decision, ModelStage, Stage, made_by
from snaketrain.orchestration.stages import Evaluation, classes, folder_of_job
from snaketrain.orchestration.strategy_declarations import evaluation_compute, saves_shards
from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import USED_AS_SECRETS
from snaketrain.runtime.strict_json import Json, JsonObject
from snaketrain.slurm.jobs import Work

TextOfJob: TypeAlias = str | Callable[[Sequence[str]], str]


class Pipeline:
    def __init__(
        self,
        config: JsonObject,
        in_slurm_job: bool = False,
        reads_files: bool = True,
        runs: dict[str, Settings] | None = None,
    ):
        """`runs`: those of the configuration, if they have been read already.

        `reads_files`: whether local files are compared; jobs parse the Snakefile as well, but decide nothing.
        """
        self.config, self.in_slurm_job = config, in_slurm_job
        # the runs that are trained to their end, from functions that wait for the decision; rules of extras add theirs
        self.once_decided: list[Callable[[], list[str]]] = []
        self.as_input: Callable[[str, str], str] = self.manifest  # what a rule reads of a stage; see Snakefile
        self.ancient: Callable[[str], str] = str  # Snakemake's mark of an input whose changes make nothing stale
        self.runs = dict(sorted((runs or read_runs(config)).items()))  # the order in the file has no meaning
        self.stages: dict[str, Stage] = {name: stage(self) for name, stage in classes().items()}
        self.reads_files = reads_files
        os.environ[USED_AS_SECRETS] = ",".join(sorted(variables_in(config)))  # what is printed must not have their values

    # --- what there is

    @cached_property
    def models(self) -> dict[str, Source]:
        sources = [s for run in self.runs.values() for s in (run.data.tokenizer, run.model.source, initial(run)) if s is not None]
        return {source_name(source): source for source in sources if not source.from_run}

    @cached_property
    def inputs(self) -> dict[str, Source]:
        """The sources of all files that are fetched on their own, such as those of a separate test set."""
        return {source_name(source): source for stage in self.stages.values() for source in stage.inputs_to_fetch()}

    @cached_property
    def datasets(self) -> dict[str, Data]:
        return {name: self.runs[run].data.for_training for run, name in self.data_names.items()}

    @cached_property
    def computes(self) -> dict[str, Compute]:
        return {name: run.compute for name, run in self.runs.items()}

    @cached_property
    def evaluation_computes(self) -> dict[str, Compute]:
        return {name: evaluation_compute(run) for name, run in self.runs.items()}

    @property
    def selection_is_light(self) -> bool:
        """Whether selecting only copies files. Joining shards, merging adapters and averaging take torch and more memory."""
        return not any(saves_shards(run) or run.model.adapters or run.select.average > 1 for run in self.runs.values())

    @property
    def groups(self) -> str | Callable[[Sequence[str]], str | None] | None:
        """For the `group` of rules whose jobs Snakemake submits as one: training, selection and evaluation of a run, where that is asked for."""
        some = any(map(self.is_in_group, self.runs))
        return varying(self.runs, lambda run: run if self.is_in_group(run) else None) if some else None

    def is_in_group(self, run: str) -> bool:
        return self.computes[run].evaluated_in_training_job

    @property
    def tracking(self) -> Tracking:
        return next(iter(self.runs.values())).tracking

    @property
    def rerun_on_upgrade(self) -> bool:
        """Also what runs share, if one of them asks for it."""
        return any(compute.rerun_on_upgrade for compute in self.computes.values())

    @property
    def most_threads(self) -> int:
        return max(compute.threads for compute in self.computes.values())

    # --- which runs are trained to their end

    @cached_property
    def _deciding(self) -> list[Decision]:
        return [stage for stage in self.stages.values() if isinstance(stage, Decision)]

    @property
    def decisions(self) -> list[tuple[str, str]]:
        """The stage and the job of each."""
        return [(stage.name, job) for stage in self._deciding for job in stage.jobs]

    @cached_property
    def undecided(self) -> set[str]:
        """The runs of which decisions say, while the workflow runs, whether they are trained to their end."""
        return {run for stage in self._deciding for run in stage.runs}

    def finishing(self) -> list[str]:
        """The runs that are trained to their end, as far as that is decided."""
        decided = (run for stage in self._deciding for run in stage.finishing())
        return sorted([*(run for run in self.runs if run not in self.undecided), *decided])

    def of_finishing(self, files: Callable[[str], list[str]]) -> list[list[str] | Callable[[object], list[str]]]:
        """Inputs of a rule: files of each run that is trained to its end, by functions where a decision is awaited."""

        def awaited(runs: Callable[[], list[str]]) -> Callable[[object], list[str]]:
            return lambda wildcards: [file for run in runs() for file in files(run)]

        return [*(files(run) for run in self.runs if run not in self.undecided), *map(awaited, self.once_decided)]

    # --- where it is

    @cached_property
    def data_names(self) -> dict[str, str]:
        return {run: data_name(settings.data) for run, settings in self.runs.items()}

    def manifest(self, stage: str, name: str = "") -> str:
        return self.stages[stage].manifest(name)

    def data(self, name: str) -> str:
        return self.as_input("prepare_data", self.data_names[run_of(name)])

    def weights(self, name: str) -> list[str]:
        source = self.runs[run_of(name)].model.source
        return [self.as_input(*made_by(source))] if source else []

    def read(self, stage: str, *roles: str) -> list[str] | Callable[[Sequence[str]], list[str]]:
        """What each job of a stage reads in these roles, or in all, for the input of its rule."""
        reads = self.stages[stage].reads
        return varying(
            self.stages[stage].jobs, lambda job: [self.as_input(*each) for role, each in reads(job).items() if role in roles or not roles]
        )

    def added(self, stage: str, job: str) -> dict[str, list[str]]:
        """The manifests that other stages let a job read, by the options of its script."""
        return {option: paths for other in self.stages.values() for option, paths in other.adds(stage, job).items()}

    def added_code(self, stage: str, job: str) -> list[Path]:
        """The files that other stages let a job execute."""
        return [file for other in self.stages.values() for file in other.adds_code(stage, job)]

    def evaluations(self, run: str) -> list[tuple[str, str]]:
        """The stage and the job of each."""
        return [(stage.name, job) for stage in self.stages.values() if isinstance(stage, Evaluation) for job in stage.jobs_of(run)]

    def on_further_sets(self, runs: Iterable[str]) -> list[str]:
        """The names, `run/set`, of the evaluations besides those on the development and test set."""
        return [job for run in runs for _, job in self.evaluations(run) if job != run]

    def results(self, run: str) -> list[str]:
        return [stage.manifest(job) for stage in self.stages.values() for job in stage.jobs_of(run)]

    # --- params of rules, which make results stale: each is a text with its name, since Snakemake compares them as a set

    def section(self, stage: str, name: str) -> TextOfJob:
        """A part of the settings of each of a stage's jobs; `null` for those without it."""
        planned = self.stages[stage].planned
        return self._text(stage, name, lambda job: planned(job).settings.get(name))

    def code(self, stage: str) -> TextOfJob:
        """The digests of the code of each of its jobs."""
        planned = self.stages[stage].planned
        return self._text(stage, "code", lambda job: planned(job).code)

    def local_files(self, stage: str) -> TextOfJob:
        """The digests of the files that each of its jobs fetches from this machine."""
        return self._text(stage, "files", self.stages[stage].local_files) if self.reads_files else "files: null"

    def _text(self, stage: str, name: str, value: Callable[[str], Json]) -> TextOfJob:
        return varying(self.stages[stage].jobs, lambda job: f"{name}: {strict_json.dumps(value(job), sort_keys=True, ensure_ascii=False)}")


def ranges_and_folders(pipeline: Pipeline) -> tuple[dict[str, Compute], dict[str, Path]]:
    """By stage and name, of all that may become a job: Snakemake plans those behind a decision later."""
    ranges, folders = {}, {}
    for stage in (stage for stage in pipeline.stages.values() if isinstance(stage, ModelStage)):
        for name, compute in stage.computes.items():
            work = str(Work((stage.name,), name.replace("/", "_")))
            folders[work] = folder_of_job(stage.name, pipeline.manifest(stage.name, name))
            if compute.counts.varies:
                ranges[work] = compute
    return ranges, folders
