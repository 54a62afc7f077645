"""The stage that predicts the unlabelled data of `predict` with the selected model of a run."""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from snaketrain.config.schema import Settings, Source
from snaketrain.extras.prediction.settings import Inputs, inputs_of
from snaketrain.orchestration.names import source_name
from snaketrain.orchestration.own_files import code_of_run
from snaketrain.orchestration.stage import Reads
from snaketrain.orchestration.stages import Inference
from snaketrain.runtime.strict_json import JsonObject


class PredictInputs(Inference):
    name, folder, works_on = "predict_inputs", "runs/{}/predictions", "run with data to predict"
    label_classes = ("Parser", "Tally", "Head", "Report")

    @cached_property
    def inputs(self) -> dict[str, dict[str, Inputs]]:
        """What each run predicts, of those that predict something."""
        return {name: found for name, run in self.pipeline.runs.items() if (found := inputs_of(run))}

    @property
    def jobs(self) -> Collection[str]:
        return self.inputs

    def jobs_of(self, run: str) -> Sequence[str]:
        return [run] if run in self.inputs else []

    def inputs_to_fetch(self) -> Iterable[Source]:
        return [inputs.source for of_run in self.inputs.values() for inputs in of_run.values()]

    def reads(self, job: str) -> Reads:
        return self.selection(job) | {name: ("fetch_input", source_name(each.source)) for name, each in self.inputs[job].items()}

    def settings(self, job: str) -> JsonObject:
        return {"predict": {name: each.as_json for name, each in sorted(generating(self.settings_of(job)).items())}}

    def own_code(self, job: str) -> list[Path]:
        return code_of_run(self.settings_of(job))

    @property
    def script(self) -> Path:
        return Path(__file__).with_name("predict_inputs.py")

    def fetched(self, job: str) -> list[str]:
        """What the rule reads besides the selected model, in the order of the inputs' names."""
        inputs = sorted(self.inputs[job].items())
        return [self.pipeline.as_input("fetch_input", source_name(each.source)) for _, each in inputs]


def generating(run: Settings) -> dict[str, Inputs]:
    """The inputs, of which those that do not say how text is generated follow the evaluation."""
    by_evaluation = {"generate": run.evaluate.generate}
    return {
        name: inputs.model_copy(update=by_evaluation) if inputs.generate is None and inputs.asks_for_text(run.data) else inputs
        for name, inputs in inputs_of(run).items()
    }


STAGES = (PredictInputs,)
