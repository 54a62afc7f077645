"""What each kind of stage says about its jobs: what their results depend on, and where they are. How its script is called is in its rule."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Compute, Settings, Source
from snaketrain.orchestration.code_digest import LABEL_CLASSES, SCRIPTS
from snaketrain.orchestration.evaluation_sets import run_of
from snaketrain.orchestration.names import RESULTS, source_name
from snaketrain.orchestration.own_files import content
from snaketrain.runtime.loaded_code import changed_files, with_recorded
from snaketrain.runtime.stages import JobSettings, previous_manifest

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline


Reads: TypeAlias = dict[str, tuple[str, str]]  # by role: the stage and the job that made what is read


class Stage:
    """A rule and its script. A job is named after the run, data set or model that it works on."""

    name: ClassVar[str]
    folder: ClassVar[str]  # of its results, below results/; {} is a part of the job's name
    works_on: ClassVar[str] = "run"  # for messages
    label_classes: ClassVar[tuple[str, ...]] = LABEL_CLASSES  # that its script uses

    def __init__(self, pipeline: "Pipeline"):
        self.pipeline = pipeline

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

    def check(self, job: str) -> None:
        """Somebody may ask for the files of a job that the configuration does not have."""
        if job not in self.jobs:
            known = ", ".join(self.jobs)
            raise LookupError(f"The configuration has no {self.works_on} {job!r}{nearest(job, list(self.jobs))} It has: {known}.")

    def manifest(self, job: str = "") -> str:
        return f"{RESULTS}/{self.folder.format(*job.split('/'))}/manifest.json"

    # --- what its results depend on

    def reads(self, job: str) -> Reads:
        """The inputs that the manifest records."""
        return {}

    def settings(self, job: str) -> list[str]:
        """`key=json` for each."""
        return []

    def sources(self, job: str) -> dict[str, Source]:
        """What it fetches."""
        return {}

    def own_code(self, job: str) -> list[Path]:
        """The user's files, and those of the library that only the settings name. The script and its imports always count."""
        return []

    def local_files(self, job: str) -> list[str]:
        """A digest for each source of local files; files of a package or a pinned commit do not change.

        Snakemake compares large files by modification time alone: it changes when a file is copied, and does not when an older file
        takes its place.
        """
        return [f"files.{setting}={content(source)}" for setting, source in self.sources(job).items() if source.is_local]

    @property
    def script(self) -> Path:
        return SCRIPTS / f"{self.name}.py"

    # --- the file that its script reads

    def job_settings(self, job: str) -> JobSettings:
        strings = self.pipeline.strings(self.name, job)
        return JobSettings.of(self.name, [*strings, *self._recorded_code(job, {each.rpartition("=")[0] for each in strings})])

    def _recorded_code(self, job: str, planned: set[str]) -> list[str]:
        """Digests of what own code loaded or read when the stage ran before and has changed since, besides what is `planned` with."""
        before = previous_manifest(Path(self.manifest(job)).parent)
        if not before:
            return []
        return with_recorded(before.recorded, [name for name in changed_files(before.loaded) if f"code.{name}" not in planned])

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


def fetched(**sources: Source | None) -> Reads:
    """Models and tokenizers, by role."""
    return {role: ("fetch_model", source_name(source)) for role, source in sources.items() if source}
