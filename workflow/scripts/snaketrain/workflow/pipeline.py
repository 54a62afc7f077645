"""What the rules ask for: which runs there are, where their results lie, and the strings that make a result stale.

Ground floor: every job parses the Snakefile again, so nothing heavy is imported here.
"""

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from snaketrain.configuration import read_runs, strings
from snaketrain.data.fetching import source_files
from snaketrain.loading import find
from snaketrain.manifests import digest
from snaketrain.settings import Compute, Data, Settings, Source, Tracking
from snaketrain.strategies import strategy_files
from snaketrain.workflow.meaning import SCRIPTS, code_strings
from snaketrain.workflow.rule_values import varying

RESULTS = "results"


class Pipeline:
    def __init__(self, config: dict[str, Any], in_slurm_job: bool = False, runs: dict[str, Settings] | None = None):
        """`runs`: those of the configuration, where they were read already."""
        self.in_slurm_job = in_slurm_job
        self.runs = dict(sorted((runs or read_runs(config)).items()))  # the order in the file means nothing
        self._tracked: dict[tuple[str, str], list[str]] = {}
        self._digests: dict[tuple, list[str]] = {}

    # --- what there is

    @cached_property
    def models(self) -> dict[str, Source]:
        sources = [s for run in self.runs.values() for s in (run.data.tokenizer, run.model.source, initial(run)) if s is not None]
        return {source_name(source): source for source in sources}

    @cached_property
    def datasets(self) -> dict[str, Data]:
        return {name: self.runs[run].data for run, name in self._data_names.items()}

    @cached_property
    def computes(self) -> dict[str, Compute]:
        return {name: run.compute for name, run in self.runs.items()}

    @property
    def tracking(self) -> Tracking:
        return next(iter(self.runs.values())).tracking

    @property
    def most_threads(self) -> int:
        return max(compute.threads for compute in self.computes.values())

    # --- where it is

    @cached_property
    def _data_names(self) -> dict[str, str]:
        return {run: data_name(settings.data) for run, settings in self.runs.items()}

    @cached_property
    def _data(self) -> dict[str, str]:
        return {run: f"{RESULTS}/data/{name}/manifest.json" for run, name in self._data_names.items()}

    @cached_property
    def _weights(self) -> dict[str, list[str]]:
        sources = {run: settings.model.source for run, settings in self.runs.items()}
        return {run: [f"{RESULTS}/models/{source_name(source)}/manifest.json"] if source else [] for run, source in sources.items()}

    def data(self, run: str) -> str:
        return self._data[run]

    def tokenizer(self, dataset: str) -> list[str]:
        source = self.datasets[dataset].tokenizer
        return [f"{RESULTS}/models/{source_name(source)}/manifest.json"] if source else []

    def weights(self, run: str) -> list[str]:
        return self._weights[run]

    def initial_weights(self, run: str) -> list[str]:
        source = initial(self.runs[run])
        return [f"{RESULTS}/models/{source_name(source)}/manifest.json"] if source else []

    def model_files(self, model: str) -> list[str]:
        return local_files(self.models[model])

    def raw_files(self, dataset: str) -> list[str]:
        data = self.datasets[dataset]
        return [file for source in (data.train, data.dev, data.test) if source and not source.use for file in local_files(source)]

    # --- what makes it stale

    def strings(self, stage: str, name: str) -> list[str]:
        """`key=json` for each setting and each piece of code that a stage's result depends on."""
        if (stage, name) not in self._tracked:
            self._tracked[stage, name] = self._settings(stage, name) + self._code(stage, name)
        return self._tracked[stage, name]

    def _settings(self, stage: str, name: str) -> list[str]:
        if stage == "compare_runs":
            return []
        if stage == "fetch_model":
            return strings("source", self.models[name])
        if stage == "fetch_data":
            data = self.datasets[name]
            return [s for split in ("train", "dev", "test") if getattr(data, split) for s in strings(f"data.{split}", getattr(data, split))]
        if stage == "prepare_data":
            return strings("data", self.datasets[name])
        run = self.runs[name]
        sections = {"train_model": ("model", "train"), "select_checkpoint": ("select",), "evaluate_model": ("evaluate",)}[stage]
        if stage == "train_model" and run.train.early_stopping:
            sections += ("select",)  # which decides when it stops
        return [s for section in sections for s in strings(section, getattr(run, section))]

    def _code(self, stage: str, name: str) -> list[str]:
        own = []
        if stage == "prepare_data":
            own = class_files(dataset_classes(self.datasets[name]))
        if stage in ("train_model", "evaluate_model"):
            run = self.runs[name]
            named = [(run.train.task.use, "tasks"), (run.model.use, None), *dataset_classes(run.data)]
            named += [(use, None) for use in uses_in(run.train.task.arguments)]  # losses, metrics
            if stage == "train_model":
                named += [(run.train.optimizer.use, None), (run.train.schedule.use, "schedules")]
            own = class_files(named) + strategy_files(run.train.strategy.use)
        key = (stage, *own)  # the points of a sweep run the same code
        if key not in self._digests:
            self._digests[key] = code_strings(SCRIPTS / f"{stage}.py", *own)
        return self._digests[key]

    def tracked(self, stage: str, names: Iterable[str]) -> list[str | Callable]:
        """The strings as params: one value each where all jobs of the rule share it, one function each where they differ.

        Snakemake compares params as a set of values, so that one value for each setting, with its name inside, is what
        makes it notice every change and show the old and the new one.
        """
        strings = {name: self.strings(stage, name) for name in names}
        everywhere = set.intersection(*map(set, strings.values())) if strings else set()
        shared = {string for string in everywhere if "{" not in string}  # Snakemake would look for wildcards in braces
        # who has fewer than others repeats one of its own, which a set does not notice
        differing = {name: [string for string in found if string not in shared] or found[:1] for name, found in strings.items()}

        def item(number: int) -> Callable:
            def string(name: str) -> str:
                own = differing[name]
                return own[min(number, len(own) - 1)]

            return varying(differing, string)

        return [*sorted(shared), *map(item, range(max(map(len, differing.values()), default=0)))]


def data_name(data: Data) -> str:
    return f"{data.name}-{digest(sorted(strings('data', data)))[:8]}"


def initial(run: Settings) -> Source | None:
    return run.model.initial_weights.source if run.model.initial_weights else None


def source_name(source: Source) -> str:
    """Of its folder, its log and its jobs."""
    readable = (source.hub or source.package or Path(str(source.path)).name).rpartition("/")[2]
    return f"{plain_name(readable)}-{digest(sorted(strings('source', source)))[:8]}"


def plain_name(text: str) -> str:
    """What of a text may stand in paths, shells and job names; a digest beside it tells apart what looks the same here."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("*", "all")).strip(".-")[:40] or "files"


def class_files(named: Iterable[tuple[str, str | None]]) -> list[Path]:
    """The files of named code that may change; installed packages do not."""
    return [file for use, place in named if (file := find(use, place)[0])]


def dataset_classes(data: Data) -> list[tuple[str, None]]:
    return [(source.use, None) for source in (data.train, data.dev, data.test) if source and source.use]


def uses_in(value: Any) -> list[str]:
    """The names of code in nested arguments: every full name in a `{use, arguments}`, and of a file wherever it stands."""
    if isinstance(value, str):
        return [value] if ".py:" in value else []
    if isinstance(value, list):
        return [use for each in value for use in uses_in(each)]
    if not isinstance(value, dict):
        return []
    use = value.get("use")
    of_a_package = isinstance(use, str) and "." in use and ".py:" not in use
    return [use] * of_a_package + uses_in(list(value.values()))


def local_files(source: Source) -> list[str]:
    """The user's own files, which Snakemake watches; those of a package or a pinned commit do not change."""
    if source.hub or source.package:
        return []
    # relative where they can be, so that a project that was moved or copied is not stale
    here = Path.cwd()
    return [str(path.relative_to(here)) if path.is_relative_to(here) else str(path) for path in source_files(source)]
