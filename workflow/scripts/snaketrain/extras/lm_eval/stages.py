"""The stage that scores the model of a run on one task of the harness."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from snaketrain.config.schema import Compute, Data
from snaketrain.extras.lm_eval.settings import lm_eval_of
from snaketrain.extras.lm_eval.task_files import TaskFile, tasks_in
from snaketrain.orchestration.own_files import own_digests
from snaketrain.orchestration.stage import Reads
from snaketrain.orchestration.stages import Evaluation
from snaketrain.runtime.manifests import content_digest
from snaketrain.runtime.strict_json import JsonObject

PREFIX = "lm_eval."  # of the names of sets: no evaluation set has a name with a dot


class RunLmEval(Evaluation):
    name, folder, works_on = "run_lm_eval", "runs/{}/sets/{}", "run with that task of lm_eval"

    @cached_property
    def jobs(self) -> Collection[str]:
        return [job for run in self.pipeline.runs for job in self.jobs_of(run)]

    def jobs_of(self, run: str) -> Sequence[str]:
        return [f"{run}/{PREFIX}{task}" for task in lm_eval_of(self.pipeline.runs[run]).tasks]

    def compute(self, job: str) -> Compute:
        """One process, whatever the training's strategy: the selected model is a whole one."""
        compute = super().compute(job)
        return compute.model_copy(update={"nodes": "1", "processes": 1, "gpus": min(1, compute.gpus), "bind": "none"})

    def prepared_alone(self, job: str) -> tuple[str, Data] | None:
        return None

    def reads(self, job: str) -> Reads:
        return self.selection(job)

    def task(self, job: str) -> TaskFile | None:
        """Its file may have disappeared since the workflow began."""
        return tasks_in(lm_eval_of(self.settings_of(job)).folder).by_name.get(job.partition(f"/{PREFIX}")[2])

    def settings(self, job: str) -> JsonObject:
        digests, task = own_digests(), self.task(job)
        found = {str(file): str(digests.of(file, content_digest)) for file in (task.files if task else ())}
        digests.save()
        how = lm_eval_of(self.settings_of(job)).model_dump(mode="json", exclude={"tasks"})
        return {"lm_eval": {"task": job.partition(f"/{PREFIX}")[2]} | how | {"files": found}}

    def own_code(self, job: str) -> list[Path]:
        task = self.task(job)
        return task.code if task else []

    @property
    def script(self) -> Path:
        return Path(__file__).with_name("run_lm_eval.py")


STAGES = (RunLmEval,)
