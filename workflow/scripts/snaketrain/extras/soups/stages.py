"""The stage that averages the weights of runs, from which the run of the same name starts. A job is a soup."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.extras.soups.top_level import read_soups
from snaketrain.orchestration.own_files import class_files, code_of_run, dataset_classes
from snaketrain.orchestration.stage import ModelStage, Reads
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline


class MakeSoup(ModelStage):
    name, folder, works_on = "make_soup", "soups/{}", "soup"
    label_classes = ("Head", "Report", "Panel")  # as of an evaluation
    script = Path(__file__).with_name("make_soup.py")

    def __init__(self, pipeline: "Pipeline"):
        super().__init__(pipeline)
        self.soups = read_soups(pipeline.config)[1]

    @property
    def jobs(self) -> Collection[str]:
        return self.soups

    def reads(self, job: str) -> Reads:
        return self.data(job) | {f"evaluate_model {run}": ("evaluate_model", run) for run in self.soups[job]}

    def gives(self, stage: str, job: str) -> Reads:
        return {"initial": (self.name, job)} if stage == "train_model" and job in self.soups else {}

    def settings(self, job: str) -> JsonObject:
        return {"evaluate": self.settings_of(job).evaluate.as_json}

    def own_code(self, job: str) -> list[Path]:
        run = self.settings_of(job)
        return [*code_of_run(run, "evaluate.metrics"), *class_files(dataset_classes(run.data))]


STAGES = (MakeSoup,)
