"""Detects results that are missing or damaged according to their manifests: the stage that made them reruns at the next start.

Snakemake by itself notices only missing declared files. If rerunning a stage reproduces its results, later stages do not rerun:
restoring deleted data does not retrain anything.
"""

import base64
import json
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from snaketrain.config.schema import Source
from snaketrain.orchestration.names import run_of
from snaketrain.orchestration.own_files import file_digests, own_digests
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.runtime.loaded_code import changed_files
from snaketrain.runtime.manifests import MISSING, Manifest, damage, described, read_if_intact, read_manifest
from snaketrain.runtime.provenance import described as described_versions
from snaketrain.runtime.provenance import differing
from snaketrain.runtime.run_folder import damaged_log
from snaketrain.runtime.stages import versions_of


class Repairs:
    """Checks earlier results without changing anything, and reports each problem once."""

    def __init__(self, pipeline: Pipeline, report: Callable[[str], None], written_unseen: Collection[str] = ()):
        """`written_unseen`: manifests that jobs wrote while no workflow ran, so that Snakemake does not know with which settings."""
        self.pipeline, self.report, self.written_unseen = pipeline, report, written_unseen
        self.needed, self.current = cache(self._needed), cache(self._current)

    def _needed(self, stage: str, name: str) -> bool:
        """Whether a stage has to rerun because its results are damaged, even if they are up to date for Snakemake."""
        if not Path(self.pipeline.manifest(stage, name)).exists():  # Snakemake notices that by itself
            return False
        if not self.pipeline.stages[stage].is_needed(name):
            return False
        if why := self._why_again(stage, name):
            self.report(f"{why} {stage} runs again.")
        return why is not None

    def _why_again(self, stage: str, name: str) -> str | None:
        path = self.pipeline.manifest(stage, name)
        try:
            manifest = read_manifest(path)
        except SystemExit as error:
            return str(error)
        if (path in self.written_unseen or not is_recorded(path)) and not self.current(stage, name):
            return f"{path}: was written while no workflow ran, or put there, with other settings, code or inputs than now."
        if changed := self._changed(stage, name, manifest):
            file, how = next(iter(changed.items()))
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            return f"{file} {how}{more} since {f'{stage}/{name}'.rstrip('/')} ran."
        of_run = manifest.facts.get("run")
        if of_run not in (None, run_of(name)):
            return f"{path}: is of run {of_run}."
        if stage == "train_model":
            if message := damaged_log(manifest):
                raise SystemExit(message)
            about = read_if_intact(manifest.folder / "run.json", "train_model writes it again")
            if about is None or (about["identity"], about["run"]) != (manifest.identity, name):
                return f"{manifest.folder}/run.json: is missing, damaged or of another training."
        if self.pipeline.rerun_on_upgrade and (upgraded := differing(versions_of(manifest))):
            return f"{path}: was made with {described_versions(upgraded)} (compute.rerun_on_upgrade)."
        found = damage(manifest)
        if not found or self._source_changed(stage, name, manifest):
            return None
        if stage == "train_model" and set(found.values()) == {MISSING} and self._selected(name, manifest):
            self.report(f"{described(manifest, found)} The selected checkpoint is intact, so the training does not rerun.")
            return None
        return described(manifest, found)

    def tell_of_upgrades(self) -> None:
        """A line about results that were made with other versions of packages than those installed now."""
        paths = (self.pipeline.manifest(name, job) for name, stage in self.pipeline.stages.items() for job in stage.jobs)
        upgraded = [found for path in paths if Path(path).exists() and (found := upgrades(path))]
        if upgraded and not self.pipeline.rerun_on_upgrade:
            packages = {name: versions for each in upgraded for name, versions in each.items()}
            results = "finished result was" if len(upgraded) == 1 else "finished results were"
            self.report(
                f"note: {len(upgraded)} {results} made with {described_versions(packages)}. Nothing reruns for that; "
                "--config 'compute={rerun_on_upgrade: true}' makes them again."
            )

    def _changed(self, stage: str, name: str, manifest: Manifest) -> dict[str, str]:
        """What has happened to the own code that the stage loaded, unless it is certified, and to the files and variables that it read."""
        cache = own_digests()
        found = changed_files(manifest.loaded, cache)
        cache.save()
        return (
            {file: how for file, how in found.items() if file not in self.pipeline.stages[stage].planned(name).changed_code}
            if found
            else {}
        )

    def is_done(self, stage: str, name: str) -> bool:
        """Whether the results are up to date and intact, whether or not Snakemake considers them so."""
        path = self.pipeline.manifest(stage, name)
        return self.current(stage, name) and not damage(read_manifest(path))

    def reproduces_its_results(self, stage: str, name: str) -> bool:
        """Whether a stage reruns and reproduces the same results, so that stages that read them need not rerun.

        Only if no other stage has to run: Snakemake does not check whether a stage is stale if it depends on one that runs.
        """
        return (
            self.pipeline.stages[stage].is_reproducible and self.needed(stage, name) and self.current(stage, name) and self._all_is_done()
        )

    def _all_is_done(self) -> bool:
        runs, decisions = self.pipeline.finishing(), self.pipeline.decisions
        stages = [("compare_runs", ""), *decisions]
        stages += [(stage.name, job) for stage in self.pipeline.stages.values() for run in runs for job in stage.jobs_of(run)]
        stages += [each for stage, job in decisions for each in self.pipeline.stages[stage].reads(job).values()]
        # what only runs that have not begun need is not among them: the comparison is not up to date then either
        return self.current("compare_runs", "") and not any(self.needed(*each) for each in stages)

    def _current(self, stage: str, name: str) -> bool:
        """Whether settings, code and inputs of this and all earlier stages are unchanged since the stage ran."""
        try:
            manifest = read_manifest(self.pipeline.manifest(stage, name))
        except SystemExit:
            return False
        above = self.pipeline.stages[stage].reads(name)
        return (
            self.pipeline.stages[stage].has_same_settings(name, manifest)
            and not self._changed(stage, name, manifest)
            and (not self.pipeline.stages[stage].fetches or self._same_files(stage, name, manifest))
            and all(self.current(*each) for each in above.values())
            and manifest.inputs == {role: read_manifest(self.pipeline.manifest(*each)).content for role, each in above.items()}
        )

    def _source_changed(self, stage: str, name: str, manifest: Manifest) -> bool:
        """Whether the user's own files have changed since they were fetched: Snakemake compares and reports that as a param."""
        sources = self._sources(stage, name).values()
        return any(source.is_local for source in sources) and not self._same_files(stage, name, manifest)

    def _same_files(self, stage: str, name: str, manifest: Manifest) -> bool:
        found: dict[str, str] = {}
        for folder, source in self._sources(stage, name).items():
            if source.is_remote:  # of a pinned commit, which does not change, or of a store, which is not asked again
                found |= {file: sha for file, sha in manifest.files.items() if file.startswith(f"{folder}/")}
            else:
                found |= {f"{folder}/{file}": sha for file, sha in file_digests(source).items()}
        return found == manifest.files

    def _sources(self, stage: str, name: str) -> dict[str, Source]:
        """The stage's sources, by the folder that it puts their files in."""
        sources = self.pipeline.stages[stage].sources(name)
        return {"files" if setting == "source" else setting: source for setting, source in sources.items()}

    def _selected(self, run: str, training: Manifest) -> bool:
        """Whether the checkpoint selected from a training is intact: the training's own may have been deleted to save space."""
        path = self.pipeline.manifest("select_checkpoint", run)
        if not Path(path).exists():
            return False
        selection = read_manifest(path)
        return not damage(selection) and selection.inputs["training"] == training.content


def is_recorded(path: str) -> bool:
    """Whether Snakemake knows with which settings this very file was made: not if it is a copy, or if the records were deleted.

    Snakemake's own `metadata` takes the output of a job, and here is none yet. Where its records are in a database, no file counts as recorded,
    which only makes a start compare more.
    """
    record = Path(".snakemake/metadata", base64.urlsafe_b64encode(path.encode()).decode())
    try:
        return bool(json.loads(record.read_bytes())["endtime"] == Path(path).stat().st_mtime)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def upgrades(path: str) -> dict[str, tuple[str, str]]:
    """Since a result was made, by package; none where its manifest is damaged, which is reported when its job is planned."""
    try:
        return differing(versions_of(read_manifest(path)))
    except SystemExit:
        return {}
