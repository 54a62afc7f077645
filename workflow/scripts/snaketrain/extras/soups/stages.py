"""The stage that averages the weights of runs, from which the run of the same name starts. A job is a soup."""

from collections.abc import Collection
from functools import cached_property
from pathlib import Path

from snaketrain.extras.soups.top_level import other_runs, read_soups
from snaketrain.orchestration.own_files import class_files, code_of_run, dataset_classes
from snaketrain.orchestration.stage import ModelStage, Reads
from snaketrain.runtime.strict_json import JsonObject


class MakeSoup(ModelStage):
    name, folder, works_on = "make_soup", "soups/{}", "soup"
    label_classes = ("Head", "Report", "Panel")  # as of an evaluation
    script = Path(__file__).with_name("make_soup.py")

    @cached_property
    def members(self) -> dict[str, list[str]]:
        soups = read_soups(self.pipeline.config)
        known = other_runs(self.pipeline.config) if soups else {}
        return {name: soup.members(known) for name, soup in soups.items()}

    @property
    def jobs(self) -> Collection[str]:
        return self.members

    def reads(self, job: str) -> Reads:
        return self.data(job) | {f"evaluate_model {run}": ("evaluate_model", run) for run in self.members[job]}

    def gives(self, stage: str, job: str) -> Reads:
        return {"initial": (self.name, job)} if stage == "train_model" and job in self.jobs else {}

    def settings(self, job: str) -> JsonObject:
        return {"evaluate": self.settings_of(job).evaluate.as_json}

    def own_code(self, job: str) -> list[Path]:
        run = self.settings_of(job)
        return [*code_of_run(run, "evaluate.metrics"), *class_files(dataset_classes(run.data))]

    @property
    def undecided(self) -> list[str]:
        """Runs of soups whose training may be stopped, or not be needed."""
        return sorted(self.pipeline.undecided & {run for members in self.members.values() for run in members})


STAGES = (MakeSoup,)
