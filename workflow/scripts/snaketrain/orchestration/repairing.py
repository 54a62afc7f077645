"""Results that are no longer what their manifests promise: the stage that made them runs again at the next start.

Snakemake by itself sees only that declared files are missing. What a deleted or changed file makes necessary is no more than its
own stage where that comes out the same: data that are fetched or prepared again train nothing again.
"""

from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from snaketrain.config.schema import Source
from snaketrain.orchestration.own_files import file_digests, of_splits
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.runtime.integrity import MISSING, damage, described
from snaketrain.runtime.manifests import Manifest, digest, read_manifest

PREPARING = ("fetch_data", "fetch_model", "prepare_data")
LATER = ("train_model", "select_checkpoint", "evaluate_model")


class Repairs:
    """Looks at earlier results, and changes nothing; each is told of once."""

    def __init__(self, pipeline: Pipeline, tell: Callable[[str], None], written_unseen: Collection[str] = ()):
        """`written_unseen`: manifests that jobs wrote while no workflow ran, so that Snakemake does not know with which settings."""
        self.pipeline, self.tell, self.written_unseen = pipeline, tell, written_unseen
        self.needed, self.current = cache(self._needed), cache(self._current)

    def _needed(self, stage: str, name: str) -> bool:
        """Whether a stage is to run again for what lies in its folder, whatever Snakemake thinks of it."""
        path = self.pipeline.manifest(stage, name)
        if not Path(path).exists():  # Snakemake sees that by itself
            return False
        try:
            manifest = read_manifest(path)
        except SystemExit as error:
            self.tell(str(error))
            return True
        if path in self.written_unseen and not self.current(stage, name):
            self.tell(f"{path}: was written while no workflow ran, with other settings, code or inputs than now. {stage} runs again.")
            return True
        found = damage(manifest)
        if not found or self._source_changed(stage, name, manifest):
            return False
        if stage == "train_model" and set(found.values()) == {MISSING} and self._selected(name, manifest):
            self.tell(f"{described(manifest, found)} What was selected is whole, so that nothing is trained again for it.")
            return False
        self.tell(f"{described(manifest, found)} {stage} runs again.")
        return True

    def is_done(self, stage: str, name: str) -> bool:
        """Whether the results are those of now, whatever Snakemake thinks of them."""
        path = self.pipeline.manifest(stage, name)
        return self.current(stage, name) and not damage(read_manifest(path))

    def comes_out_the_same(self, stage: str, name: str) -> bool:
        """Whether a stage runs again without making anything new, so that its readers need not.

        Only if nothing else is to be done: Snakemake does not ask whether a stage is stale that is below one which runs.
        """
        return stage in PREPARING and self.needed(stage, name) and self.current(stage, name) and self._all_is_done()

    def _all_is_done(self) -> bool:
        stages = [("compare_runs", ""), *((stage, run) for stage in LATER for run in self.pipeline.runs)]
        return self.current("compare_runs", "") and not any(self.needed(*each) for each in stages)

    def _current(self, stage: str, name: str) -> bool:
        """Whether settings, code and all that is read, from the first stage on, are those by which the stage ran."""
        path, strings = self.pipeline.manifest(stage, name), self.pipeline.strings(stage, name)
        try:
            manifest = read_manifest(path)
        except SystemExit:
            return False
        settings, code = (sorted(s for s in strings if s.startswith("code.") == wanted) for wanted in (False, True))
        above = self.pipeline.reads(stage, name)
        return (
            manifest.identity == digest(stage, settings, code, manifest.inputs)
            and (not stage.startswith("fetch") or self._same_files(stage, name, manifest))
            and all(self.current(*each) for each in above.values())
            and manifest.inputs == {role: read_manifest(self.pipeline.manifest(*each)).content for role, each in above.items()}
        )

    def _source_changed(self, stage: str, name: str, manifest: Manifest) -> bool:
        """Whether the user's own files are not those that were fetched: that is compared as a param, and shown as such."""
        sources = self._sources(stage, name).values()
        return any(source.is_local for source in sources) and not self._same_files(stage, name, manifest)

    def _same_files(self, stage: str, name: str, manifest: Manifest) -> bool:
        found: dict[str, str] = {}
        for folder, source in self._sources(stage, name).items():
            if source.hub:  # at a commit, whose files do not change
                found |= {file: sha for file, sha in manifest.files.items() if file.startswith(f"{folder}/")}
            else:
                found |= {f"{folder}/{file}": sha for file, sha in file_digests(source).items()}
        return found == manifest.files

    def _sources(self, stage: str, name: str) -> dict[str, Source]:
        """By the folder that the stage puts their files in."""
        if stage == "fetch_model":
            return {"files": self.pipeline.models[name]}
        if stage != "fetch_data":
            return {}
        return {split: source for split, source in of_splits(self.pipeline.datasets[name]).items() if not source.use}

    def _selected(self, run: str, training: Manifest) -> bool:
        """Whether what was selected from a training is there: its checkpoints may be gone, to save space."""
        path = self.pipeline.manifest("select_checkpoint", run)
        if not Path(path).exists():
            return False
        selection = read_manifest(path)
        return not damage(selection) and selection.inputs["training"] == training.content
