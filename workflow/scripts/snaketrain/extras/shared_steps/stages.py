"""The stage `train_trunk`, and what it adds to the training of a run that continues a trunk."""

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path

from snaketrain.extras.shared_steps.trunks import Trunks
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.names import RESULTS
from snaketrain.orchestration.rule_values import options, training_options
from snaketrain.orchestration.stages import Training
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.stages import JobSettings
from snaketrain.runtime.strict_json import JsonObject


class TrainTrunk(Training):
    """The first steps of several runs, with the settings of one of them."""

    name, folder, works_on = "train_trunk", "trunks/{}/training", "trunk"

    @cached_property
    def trunks(self) -> Trunks:
        of = self.pipeline
        return Trunks(of.runs, of.undecided, of.data_names, of.stages["train_model"].planned, Path(RESULTS))

    @property
    def jobs(self) -> Collection[str]:
        return self.trunks.known

    @property
    def script(self) -> Path:
        return SCRIPTS / "train_model.py"

    def run(self, job: str) -> str:
        return self.trunks.known[job].run

    def settings(self, job: str) -> JsonObject:
        return self.trunks.settings(job)

    def job_settings(self, job: str) -> JobSettings:
        return self.pipeline.stages["train_model"].job_settings(self.run(job))

    def is_needed(self, job: str) -> bool:
        """Nobody reads it once all that continue it have begun."""
        return self.trunks.is_awaited(job)

    def has_same_settings(self, job: str, made: Manifest) -> bool:
        """Its name says its settings; the manifest has those of a run, which may be another one now."""
        return self.trunks.trunk_has_begun(job)

    # --- what the rules say about it

    def options(self, job: str) -> str:
        """A trunk is no run, so MLflow has it in an experiment of its own."""
        run = self.settings_of(job)
        tracking = run.tracking.model_copy(update={"experiment": f"{run.tracking.experiment}-trunks"})
        branches = options({"branch-steps": list(map(str, self.trunks.known[job].branch_steps))})
        return f"{training_options(run.model_copy(update={'tracking': tracking}))} {branches}"

    def parent(self, job: str) -> list[str]:
        """The trunk that another one continues."""
        return self._continued(self.trunks.parent_of(job), self.trunks.trunk_has_begun(job))

    def adds(self, stage: str, job: str) -> Mapping[str, list[str]]:
        """The trunk that a run continues."""
        return {"trunk": self._continued(self.trunks.continued_by(job), self.trunks.has_begun(job))} if stage == "train_model" else {}

    def _continued(self, trunk: str | None, has_begun: bool) -> list[str]:
        """A training that has begun does not repeat its steps where the trunk does."""
        mark = self.pipeline.ancient if has_begun else str
        return [mark(self.manifest(trunk))] if trunk else []


STAGES = (TrainTrunk,)
