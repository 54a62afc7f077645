"""What each kind of stage says about its jobs: what their results depend on, and where they are. How its script is called is in its rule."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Compute, Settings, Source
from snaketrain.orchestration.code_digest import LABEL_CLASSES, SCRIPTS, code_digests
from snaketrain.orchestration.names import RESULTS, run_of, source_name
from snaketrain.orchestration.own_files import content
from snaketrain.runtime.loaded_code import changed_files, with_recorded
from snaketrain.runtime.manifests import Manifest, digest
from snaketrain.runtime.stages import JobSettings, previous_manifest
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline


Reads: TypeAlias = dict[str, tuple[str, str]]  # by role: the stage and the job that made what is read


class Stage:
    """A rule and its script. A job is named after the run, data set or model that it works on."""

    name: ClassVar[str]
    folder: ClassVar[str]  # of its results, below results/; {} is a part of the job's name
    works_on: ClassVar[str] = "run"  # for messages
    part_of: ClassVar[str] = ""  # the stage in whose folder its jobs work, `<run>/<part>`: they are parts of that one's job
    fetches: ClassVar[bool] = False  # whether it copies files, from this machine or elsewhere
    is_reproducible: ClassVar[bool] = False  # whether it makes the same files again, byte for byte
    label_classes: ClassVar[tuple[str, ...]] = LABEL_CLASSES  # that its script uses

    def __init__(self, pipeline: "Pipeline"):
        self.pipeline = pipeline
        self.planned = cache(self._planned)
        self._digests = cache(partial(code_digests, label_classes=self.label_classes))  # the points of a sweep run the same code

    @property
    def jobs(self) -> Collection[str]:
        """All that the configuration may need."""
        return self.pipeline.runs

    def jobs_of(self, run: str) -> Sequence[str]:
        """Those whose results a finished run consists of, besides what they read."""
        return []

    def inputs_to_fetch(self) -> Iterable[Source]:
        """What `fetch_input` fetches for its jobs."""
        return []

    @property
    def keeps(self) -> Collection[Path]:
        """Folders that the configuration needs besides those of its jobs."""
        return []

    def check(self, job: str) -> None:
        """Somebody may ask for the files of a job that the configuration does not have."""
        if job not in self.jobs:
            known = ", ".join(self.jobs)
            raise LookupError(f"The configuration has no {self.works_on} {job!r}{nearest(job, list(self.jobs))} It has: {known}.")

    def manifest(self, job: str = "") -> str:
        return f"{RESULTS}/{self.folder.format(*job.split('/'))}/manifest.json"

    def adds(self, stage: str, job: str) -> Mapping[str, list[str]]:
        """What the job of another stage reads besides what its own rule names, as for extras: manifests, by options of its script."""
        return {}

    def adds_code(self, stage: str, job: str) -> list[Path]:
        """What the job of another stage executes besides what its own script imports, if its result depends on that."""
        return []

    # --- what its results depend on

    def reads(self, job: str) -> Reads:
        """The inputs that the manifest records."""
        return {}

    def settings(self, job: str) -> JsonObject:
        """Sections of the configuration, or what else decides, by the names of the rule's params."""
        return {}

    def code(self, job: str) -> dict[str, str]:
        """Digests of the script, of own code, of what other stages add, and of all that these import."""
        return self._digests(self.script, *self.own_code(job), *self.pipeline.added_code(self.name, job))

    def has_same_settings(self, job: str, made: Manifest) -> bool:
        """Whether settings and code are those with which its results were made."""
        planned = self.planned(job)
        return made.identity == digest(self.name, planned.settings, planned.code | made.recorded, made.inputs)

    def is_needed(self, job: str) -> bool:
        """Whether somebody will read its results: otherwise it does not matter if they are damaged."""
        return True

    def sources(self, job: str) -> dict[str, Source]:
        """What it fetches."""
        return {}

    def own_code(self, job: str) -> list[Path]:
        """The user's files, and those of the library that only the settings name. The script and its imports always count."""
        return []

    def local_files(self, job: str) -> JsonObject:
        """A digest for each source of local files; files of a package or a pinned commit do not change.

        Snakemake compares large files by modification time alone: it changes when a file is copied, and does not when an older file
        takes its place.
        """
        return {setting: content(source) for setting, source in self.sources(job).items() if source.is_local}

    @property
    def script(self) -> Path:
        return SCRIPTS / f"{self.name}.py"

    # --- the file that its script reads

    def _planned(self, job: str) -> JobSettings:
        return JobSettings(self.name, self.settings(job), self.code(job))

    def job_settings(self, job: str) -> JobSettings:
        """As planned, with digests of what own code loaded or read when the stage ran before and has changed since."""
        planned, before = self.planned(job), previous_manifest(Path(self.manifest(job)).parent)
        if not before:
            return planned
        changed = [name for name in changed_files(before.loaded) if name not in planned.code]
        return replace(planned, code=planned.code | with_recorded(before.recorded, changed))

    def settings_file(self, job: str, store: bool = True) -> str:
        """Every process that executes a job parses the Snakefile, also on a compute node, and stores the settings that it compares."""
        settings = self.job_settings(job)
        return str(settings.store(job) if store else settings.path(job))


class ModelStage(Stage):
    """Runs a model, on the devices and with the processes that `compute` gives it."""

    def run(self, job: str) -> str:
        """The run whose settings a job has."""
        return run_of(job)

    def compute(self, job: str) -> Compute:
        return self.pipeline.evaluation_computes[self.run(job)]

    @property
    def computes(self) -> dict[str, Compute]:
        return {job: self.compute(job) for job in self.jobs}

    def settings_of(self, job: str) -> Settings:
        return self.pipeline.runs[self.run(job)]

    def data(self, job: str) -> Reads:
        return {"data": ("prepare_data", self.pipeline.data_names[self.run(job)])}


class Decision(Stage):
    """Decides, while the workflow runs, which runs are trained to their end.

    A job's manifest has the facts `decision`, the name of the job, and `stopped`: of each run that it stopped, where and why.
    """

    @property
    def runs(self) -> Collection[str]:
        """Those that it decides about; all others are trained to their end."""
        raise NotImplementedError

    def finishing(self) -> list[str]:
        """Those of them that are trained to their end, as far as that is decided."""
        raise NotImplementedError


def fetched(**sources: Source | None) -> Reads:
    """Models and tokenizers, by role."""
    return {role: made_by(source) for role, source in sources.items() if source}


def made_by(source: Source) -> tuple[str, str]:
    return ("select_checkpoint", source.from_run) if source.from_run else ("fetch_model", source_name(source))
