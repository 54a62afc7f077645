"""The trunks of a workspace: which of the planned ones are needed, and which ones trainings that have begun continue.

A training that has begun keeps its trunk, or none, whatever is planned now, since Snakemake repeats a job whose set of inputs changes.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path

from snaketrain.config.schema import Settings
from snaketrain.extras.shared_steps.planning import (
    Plan,
    Training,
    Trunk,
    is_shareable,
    plan_trunks,
    tracked_settings,
    training_of,
    trunk_of,
)
from snaketrain.runtime.manifests import read_if_intact, write_checked
from snaketrain.runtime.run_folder import of_training, read_about
from snaketrain.runtime.stages import JobSettings
from snaketrain.runtime.strict_json import JsonObject

MANIFEST = "manifest.json"
TRUNK = "trunk.json"  # the trunk that a training continues


class Trunks:
    def __init__(
        self,
        runs: Mapping[str, Settings],
        undecided: Container[str],
        data: Mapping[str, str],
        given: Callable[[str], JobSettings],
        results: Path,
    ):
        """`undecided`: runs that may stop early; `data`: of each run, its name; `given`: what makes its training stale."""
        self.runs, self.undecided, self.data, self.given, self.results = runs, undecided, data, given, results
        self.has_begun, self.trunk_has_begun, self.recorded = cache(self._has_begun), cache(self._trunk_has_begun), cache(self._recorded)

    @cached_property
    def plan(self) -> Plan:
        several = {name: run for name, run in self.runs.items() if name not in self.undecided}
        found = [self._training(name) for name, run in several.items() if is_shareable(run)] if len(several) > 1 else []
        return plan_trunks([each for each in found if each.rates], self.runs)

    @cached_property
    def known(self) -> dict[str, Trunk]:
        """What can be made: the planned trunks, and those that are neither planned any more nor there, but which Snakemake may look for."""
        found = dict(self.plan.trunks)
        continued = [(self.recorded("runs", run), run) for run in self.runs]
        continued += [(self.recorded("trunks", trunk.name), trunk.run) for trunk in found.values()]
        for name, run in continued:
            if name and name not in found and not self._is_finished("trunks", name):
                found[name] = trunk_of(self._training(run), (1,))._replace(name=name)
        return found

    def settings(self, name: str) -> JsonObject:
        """The settings by which a trunk becomes stale."""
        trunk = self.known[name]
        return tracked_settings(trunk, self.given(trunk.run).settings)

    def continued_by(self, run: str) -> str | None:
        """The trunk that a run continues."""
        recorded, planned = self.recorded("runs", run), self.plan.of_run.get(run)
        if not recorded and not planned:
            return None
        if not self.has_begun(run):
            return self._usable(planned)
        # an unfinished training resumes without its trunk
        return recorded if recorded and (self._is_finished("runs", run) or self._is_finished("trunks", recorded)) else None

    def parent_of(self, trunk: str) -> str | None:
        """The trunk that another one continues."""
        return self.recorded("trunks", trunk) if self.trunk_has_begun(trunk) else self._usable(self.known[trunk].parent)

    def is_awaited(self, trunk: str) -> bool:
        """Whether a training that has not begun yet continues it."""
        runs = (self.continued_by(run) for run in self.runs if not self.has_begun(run))
        trunks = (self.parent_of(each) for each in self.known if not self.trunk_has_begun(each))
        return trunk in (*runs, *trunks)

    # --- what is planned

    def _training(self, run: str) -> Training:
        return training_of(run, self.runs[run], self.data[run], self.given(run).settings)

    def _chain(self, trunk: str | None) -> Iterator[str]:
        """A trunk, and those that it continues."""
        while trunk:
            yield trunk
            trunk = self.plan.trunks[trunk].parent

    def _usable(self, trunk: str | None) -> str | None:
        """The nearest one that is there, or worth its steps: a single training would gain nothing. One that was deleted is not made again."""
        for each in self._chain(trunk):
            if self._is_finished("trunks", each) or (self._needed[each] > 1 and each not in self._used):
                return each
        return None

    @cached_property
    def _needed(self) -> Counter[str]:
        """By trunk, the number of runs that have not begun."""
        return Counter(each for run, trunk in self.plan.of_run.items() if not self.has_begun(run) for each in self._chain(trunk))

    # --- what has begun

    @cached_property
    def _used(self) -> set[str]:
        """By finished runs, which would run again with their trunk."""
        recorded = {run: name for run in self.runs if (name := self.recorded("runs", run))}
        return {name for run, name in recorded.items() if self._is_finished("runs", run) and self.has_begun(run)}

    def _folder(self, kind: str, name: str) -> Path:
        return self.results / kind / name / "training"

    def _is_finished(self, kind: str, name: str) -> bool:
        return (self._folder(kind, name) / MANIFEST).exists()

    def _has_begun(self, run: str) -> bool:
        """Whether it only has to be finished. One whose code has changed begins again, unless its user asks to continue it."""
        if not (about := read_about(self._folder("runs", run))):
            return False
        given = self.given(run)
        same_settings = of_training(about["settings"]) == given.settings
        continues = self.runs[run].compute.resume_changed and not self._is_finished("runs", run)
        return same_settings and (continues or same_code(given, about))

    def _trunk_has_begun(self, name: str) -> bool:
        """Its name tells its settings."""
        about = read_about(self._folder("trunks", name))
        return about is not None and same_code(self.given(self.known[name].run), about)

    def _recorded(self, kind: str, name: str) -> str | None:
        """The trunk that a training has begun with."""
        recorded = read_if_intact(self._folder(kind, name) / TRUNK, "the training is taken as one without a trunk") or {}
        return recorded.get("trunk")


def same_code(given: JobSettings, about: JsonObject) -> bool:
    return given.code.items() <= dict(about["code"]).items()


def record_trunk(folder: Path, manifest: Path | None) -> None:
    """For later starts of the workflow: a training that has begun keeps its trunk, or none where it resumes without the one that it had."""
    if manifest:
        write_checked(folder / TRUNK, {"trunk": manifest.resolve().parents[1].name})
    else:
        (folder / TRUNK).unlink(missing_ok=True)
