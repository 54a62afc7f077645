"""Hooks to watch a training, or end it early, without changing the loop."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.state import StateDict, StepOutcome, TrainState

if TYPE_CHECKING:
    from snaketrain.training.trainer import Trainer


class Callback:
    """Derive from this, name it in `train.callbacks`, and override the hooks that you need.

    Every rank calls every hook but `on_checkpoint`, in the same order; `state.rank == 0` is the one to write files. A hook must not call
    collectives: when ranks exchange something is decided by the trainer alone, which passes on what `exchange` returns.
    """

    observes_only = False  # True: it neither changes weights nor ends the training, so that adding or changing it repeats no step

    def on_train_start(self, state: TrainState) -> None:
        """After the last checkpoint was restored, if there is one: `state.step` is its step."""

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        """After each step. Reading `outcome.losses` or its norm waits for the device: use the figures of `on_log` instead."""

    def on_log(self, state: TrainState, figures: dict[str, float]) -> None:
        """Every `tracking.log_every_steps` steps: mean loss over all ranks, speed, learning rate, gradient norm. What rank 0 adds to them is recorded, too."""

    def on_evaluation_step(self, state: TrainState) -> None:
        """After each batch of an evaluation."""

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        """After an evaluation of the development set; before the checkpoint, which holds this callback's `state_dict()`."""

    def on_checkpoint(self, state: TrainState, step: int) -> None:
        """On rank 0, when the checkpoint of a step is complete on disk, which may be some steps later."""

    def on_train_end(self, state: TrainState) -> None:
        """When the training ends, or stops to be resumed later."""

    def on_error(self, state: TrainState, error: BaseException) -> None:
        """When an exception ends the training."""

    def exchange(self, state: TrainState) -> Sequence[float]:
        """Numbers to be added up over all ranks with those of the next step, so that no rank waits for it; always as many."""
        return ()

    def on_exchange(self, state: TrainState, sums: list[float]) -> None:
        """After each step but the last: the sums of what `exchange` has returned on all ranks, before `on_step_end`."""

    def state_dict(self) -> Mapping[str, object]:
        """What a resumed training needs: numbers, strings, tensors."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """The inverse of `state_dict`."""

    def facts(self, trainer: "Trainer") -> JsonObject:
        """What `state.json` of a checkpoint says under `callbacks` and the name of this class, to whoever reads it without torch."""
        return {}


class Callbacks:
    """Several callbacks; the state of each is kept under the name of its class."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = callbacks
        self.exchanging = [callback for callback in callbacks if type(callback).exchange is not Callback.exchange]
        self.lengths: list[int] = []

    def call(self, hook: str, state: TrainState, *given: object) -> None:
        """The hook of this name, of each."""
        for callback in self.callbacks:
            before = state.finished_early, state.rate_scale
            getattr(callback, hook)(state, *given)
            if callback.observes_only and (state.finished_early, state.rate_scale) != before:
                raise SystemExit(
                    f"train.callbacks: {type(callback).__name__} declares `observes_only`, but has ended the training or changed the learning rate "
                    f"in `{hook}`. Remove the declaration from it."
                )

    def exchange(self, state: TrainState) -> list[float]:
        shares = [callback.exchange(state) for callback in self.exchanging]
        self.lengths = [len(share) for share in shares]
        return [number for share in shares for number in share]

    def on_exchange(self, state: TrainState, sums: list[float]) -> None:
        for callback, length in zip(self.exchanging, self.lengths, strict=True):
            callback.on_exchange(state, sums[:length])
            sums = sums[length:]

    def state_dict(self) -> Mapping[str, object]:
        return {key: saved for key, callback in self._by_name().items() if (saved := callback.state_dict())}

    def load_state_dict(self, state: StateDict) -> None:
        for key, callback in self._by_name().items():
            if key in state:
                callback.load_state_dict(state[key])

    def facts(self, trainer: "Trainer") -> dict[str, JsonObject]:
        return {key: said for key, callback in self._by_name().items() if (said := callback.facts(trainer))}

    def _by_name(self) -> dict[str, Callback]:
        names = [type(callback).__name__ for callback in self.callbacks]
        return {f"{name}-{names[:i].count(name)}" if name in names[:i] else name: self.callbacks[i] for i, name in enumerate(names)}
