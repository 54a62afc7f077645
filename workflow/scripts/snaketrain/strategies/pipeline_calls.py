"""A task's call of its model, recorded before a pipeline runs and answered when the last stage has its outputs.

So a task need not know that its model is elsewhere: every process of the pipeline has the whole batch, and learns from the recording
what its stage of the model is called with.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from snaketrain.models.call_types import Args, Kwargs, Value
from snaketrain.strategies.gradients import Objective
from snaketrain.strategies.pipeline_stages import INPUT
from snaketrain.tasks.base import Batch, Returned

Output = Value  # of a model: any type that its task knows


@dataclass(frozen=True)
class Call:
    arguments: Args  # as the task gives them
    named: Kwargs

    @property
    def tokens(self) -> int:
        """How many hidden states are exchanged."""
        ids = self.named.get(INPUT, self.arguments[0] if self.arguments else None)
        if not isinstance(ids, Tensor):
            raise SystemExit(f"train.task.use: calls its model without `{INPUT}`, by which a pipeline cuts it. Use `fsdp`.")
        return ids.numel()


class Recorded(BaseException):
    """The task has called its model, whose outputs are not known yet."""

    def __init__(self, call: Call):
        self.call = call


class Stand(nn.Module):
    """Stands in for the model when the loss is computed: records the call, or returns the outputs."""

    def __init__(self, model: nn.Module, outputs: Output = None):
        super().__init__()
        object.__setattr__(self, "_model", model)  # not as a part of this module
        self.outputs = outputs
        self.train(model.training)

    def forward(self, *arguments: object, **named: object) -> Output:
        if self.outputs is None:
            raise Recorded(Call(arguments, named))
        outputs, self.outputs = self.outputs, None
        return outputs

    def __getattr__(self, name: str) -> Value:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = getattr(self._model, name)
        if isinstance(found, nn.Module | Tensor) or callable(found):
            raise SystemExit(f"train.task.use: uses `{name}` of its model, whose parts are on several processes in a pipeline. Use `fsdp`.")
        return found


def record(objective: Objective, batch: Batch) -> Call:
    """What the task calls its model with."""
    ((name, model),) = objective.modules.items()
    try:
        objective.loss({name: Stand(model)}, batch)
    except Recorded as recorded:
        return recorded.call
    raise SystemExit("train.task.use: computes a loss without calling its model, which a pipeline cannot train. Use `fsdp`.")


def answer(objective: Objective, batch: Batch, outputs: Output) -> Returned:
    """The task's losses, of the outputs of the recorded call."""
    ((name, model),) = objective.modules.items()
    try:
        return objective.loss({name: Stand(model, outputs)}, batch)
    except Recorded:
        raise SystemExit("train.task.use: calls its model more than once for a loss, which a pipeline cannot train. Use `fsdp`.") from None
