"""The searches of a configuration: the stages that they need, and which runs their decisions have left.

A run is trained as far as a rung by the job `run/rung`; the decision `search/rung` chooses the runs that continue.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema import Settings
from snaketrain.extras.search.top_level import FOLDER, SearchedSweep, read_searches, sampled_searches
from snaketrain.orchestration.names import run_of
from snaketrain.orchestration.stage import Decision, Reads
from snaketrain.orchestration.stages import Training
from snaketrain.runtime.manifests import read_manifest
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline

HERE = Path(__file__).parent


class Searches:
    def __init__(self, searches: Mapping[str, SearchedSweep], runs: Mapping[str, Settings], manifest: Callable[[str], str]):
        """`manifest`: the path of that of a decision."""
        self.searches, self.runs, self.manifest = searches, runs, manifest

    @cached_property
    def of_runs(self) -> dict[str, str]:
        """The search that each run takes part in."""
        return {run: name for name, sweep in self.searches.items() for run in sweep.runs}

    @cached_property
    def rungs(self) -> list[str]:
        """`run/rung` for each rung that a run may reach."""
        return [f"{run}/{number}" for run, name in self.of_runs.items() for number in self._numbers(name)]

    @cached_property
    def decisions(self) -> list[str]:
        """`search/rung`, in their order."""
        return [f"{name}/{number}" for name in self.searches for number in self._numbers(name)]

    def _numbers(self, name: str) -> range:
        return range(1, len(self.searches[name].search.rungs) + 1)

    def last_of(self, name: str) -> str:
        """The decision after which the runs of a search train to their end."""
        return f"{name}/{len(self.searches[name].search.rungs)}"

    def decision_before(self, decision: str) -> str | None:
        search, _, number = decision.partition("/")
        return f"{search}/{int(number) - 1}" if int(number) > 1 else None

    def rungs_before(self, rung: str) -> list[str]:
        run, _, number = rung.rpartition("/")
        return [f"{run}/{int(number) - 1}"] if int(number) > 1 else []

    # --- what is decided so far

    def contenders(self, decision: str) -> list[str]:
        """The rungs that a decision compares, once the one before it has been made."""
        search, _, number = decision.partition("/")
        before = self.decision_before(decision)
        return [f"{run}/{number}" for run in (self.survivors(before) if before else self.searches[search].runs)]

    def survivors(self, decision: str) -> list[str]:
        """The runs that a decision lets continue; none before it has been made."""
        try:
            found: list[str] = read_manifest(self.manifest(decision)).facts["survivors"]
        except SystemExit:
            return []
        return [run for run in found if run in self.runs]

    def finalists(self) -> list[str]:
        """The runs that train to their end, as far as that is decided."""
        return [run for name in self.searches for run in self.survivors(self.last_of(name))]

    # --- settings

    def share(self, rung: str) -> float:
        run, _, number = rung.rpartition("/")
        return self.searches[self.of_runs[run]].search.rungs[int(number) - 1]

    def decision_settings(self, decision: str) -> JsonObject:
        search, runs = self.searches[decision.partition("/")[0]]
        select = self.runs[runs[0]].select  # that of all
        return {
            "search": {"keep": search.keep, "keep_tied": search.keep_tied},
            "select": {"metric": select.metric, "mode": select.mode},
        }


# --- the stages


class TrainRung(Training):
    """Continues the training of a run, in its folder, and predicts the development set."""

    name, folder, works_on = "train_rung", "runs/{}/rungs/{}", "rung of a search"
    part_of, script = "train_model", HERE / "train_rung.py"
    label_classes = ("Head", "Report", "Panel")

    @property
    def jobs(self) -> Collection[str]:
        return searches_of(self.pipeline).rungs

    def settings(self, job: str) -> JsonObject:
        return super().settings(job) | {"rung": {"share": searches_of(self.pipeline).share(job)}}


class DecideRung(Decision):
    name, folder, works_on = "decide_rung", "searches/{}/{}", "rung of a search"
    script = HERE / "decide_rung.py"

    def __init__(self, pipeline: "Pipeline"):
        super().__init__(pipeline)
        self.searches = Searches(read_searches(pipeline.config), pipeline.runs, self.manifest)

    @property
    def jobs(self) -> Collection[str]:
        return self.searches.decisions

    @property
    def runs(self) -> Collection[str]:
        return self.searches.of_runs

    @property
    def keeps(self) -> Collection[Path]:
        return [FOLDER / search for search in sampled_searches(self.pipeline.config)]

    def finishing(self) -> list[str]:
        return self.searches.finalists()

    def reads(self, job: str) -> Reads:
        return {run_of(rung): ("train_rung", rung) for rung in self.searches.contenders(job)}

    def settings(self, job: str) -> JsonObject:
        return self.searches.decision_settings(job)


def searches_of(pipeline: "Pipeline") -> Searches:
    stage = pipeline.stages["decide_rung"]
    assert isinstance(stage, DecideRung)
    return stage.searches


STAGES = (TrainRung, DecideRung)
