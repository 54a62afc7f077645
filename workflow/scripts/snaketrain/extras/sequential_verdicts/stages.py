"""The decisions whether a verdict needs more seeds. A job is `verdict/look`."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.extras.sequential_verdicts.top_level import SequentialVerdict, read_verdicts
from snaketrain.orchestration.stage import Decision, Reads
from snaketrain.runtime.manifests import read_manifest
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline


class DecideSeeds(Decision):
    name, folder, works_on = "decide_seeds", "verdicts/{}/{}", "look of a verdict"
    script = Path(__file__).with_name("decide_seeds.py")

    def __init__(self, pipeline: "Pipeline"):
        super().__init__(pipeline)
        self.verdicts = read_verdicts(pipeline.config)

    @property
    def jobs(self) -> Collection[str]:
        return [job for name in self.verdicts for job in self.looks_of(name)]

    def looks_of(self, name: str) -> list[str]:
        return [f"{name}/{look}" for look in range(1, len(self.verdicts[name].looks) + 1)]

    def of(self, job: str) -> tuple[SequentialVerdict, int]:
        name, _, look = job.partition("/")
        return self.verdicts[name], int(look)

    def before(self, job: str) -> list[str]:
        """The look before, if there is one."""
        name, _, look = job.partition("/")
        return [f"{name}/{int(look) - 1}"] if int(look) > 1 else []

    @property
    def runs(self) -> Collection[str]:
        """Those after the first look."""
        later = {run for each in self.verdicts.values() for run in each.at(len(each.looks))}
        return later - {run for each in self.verdicts.values() for run in each.at(1)}

    def finishing(self) -> list[str]:
        return sorted(set(self.runs) & {run for name in self.verdicts for run in self.needed(name)})

    def needed(self, name: str) -> list[str]:
        """The runs of a verdict, as far as it is decided that it needs them."""
        looks = [look for look, job in enumerate(self.looks_of(name), 1) if all(map(self.continues, self.before(job)))]
        return self.verdicts[name].at(looks[-1])

    def continues(self, job: str) -> bool:
        """Whether a look was taken, and asks for more seeds."""
        try:
            return bool(read_manifest(self.manifest(job)).facts["continues"])
        except SystemExit:
            return False

    def reads(self, job: str) -> Reads:
        """Once a look has decided, the later ones repeat what it said."""
        verdict, look = self.of(job)
        earlier: Reads = {f"decide_seeds {each}": ("decide_seeds", each) for each in self.before(job)}
        if not all(map(self.continues, self.before(job))):
            return earlier
        return earlier | {run: ("evaluate_model", run) for run in verdict.at(look)}

    def settings(self, job: str) -> JsonObject:
        return {"verdict": self.of(job)[0].as_json}


STAGES = (DecideSeeds,)
