"""One step of each optimizer, and what is done where it fails: smaller microbatches where memory runs out, a rollback where losses are not finite, or gradients spike."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from snaketrain.data.loading.training_data import Batch
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.ranks import WorthAnotherStart
from snaketrain.runtime.run_folder import MICROBATCHES, microbatches_that_fit
from snaketrain.strategies.base import Strategy, norm_of
from snaketrain.strategies.losses import LossSums, MicroBatches, Objective, add_up
from snaketrain.training.metric_window import is_loss
from snaketrain.training.optimizers import set_rate
from snaketrain.training.state import StateDict, StepOutcome, TrainState, seed_step

if TYPE_CHECKING:
    from snaketrain.runtime.journal import Journal
    from snaketrain.training.checkpoints.store import Checkpoints
    from snaketrain.training.plan import PlannedStep

ForwardBackward: TypeAlias = Callable[[int, Objective], LossSums]  # of an objective and its number


def train_step(
    state: TrainState, rate: float, forward_backward: ForwardBackward, of_groups: Mapping[int, float] = MappingProxyType({})
) -> tuple[LossSums, Tensor]:
    """Compute gradients and update for each of the task's objectives; return this rank's losses and the norm of all gradients.

    `of_groups`: the rates of parameter groups with a schedule of their own.
    """
    strategy, norms = state.strategy, list[Tensor]()
    losses: LossSums = {}
    for name, module in state.modules.items():
        if not module.training:  # after an evaluation; `train()` visits every submodule, which takes as long as a small step
            module.train()
        set_rate(state.optimizers[name], rate, of_groups)
    for number, objective in enumerate(state.objectives()):
        add_up(losses, forward_backward(number, objective))
        pairs = [(state.modules[name], state.optimizers[name]) for name in objective.learning]
        try:
            judge = partial(state.spikes.judge, number) if state.spikes else None
            norms.append(strategy.update(pairs, state.clip_norm, alike=state.task.wraps, judge=judge))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise SystemExit(explain_update(error)) from None
        state.clear_gradients()  # also those that the loss left in modules that do not learn from it
    return losses, norm_of(norms)


def take_step(state: TrainState, microbatches: MicroBatches, denominator: float, rate: float) -> tuple[LossSums, Tensor]:
    """`train_step` without a trainer around it, for benchmarks and tests."""
    return train_step(state, rate, lambda _, objective: state.strategy.forward_backward(objective, microbatches, denominator))


# --- Running out of memory in a step: an error that says what helps, or smaller microbatches if the settings allow that.


class Accumulation:
    """The number of microbatches in which a rank computes its share of a batch.

    With `may_grow` it is doubled when the memory runs out, and later attempts start with the new number.
    """

    def __init__(self, folder: Path, wanted: int, may_grow: bool, seed: int):
        self.path, self.may_grow, self.seed = folder / MICROBATCHES, may_grow, seed
        self.number = max(wanted, microbatches_that_fit(folder)) if may_grow else wanted

    def forward_backward(self, state: TrainState, planned: "PlannedStep", number: int, objective: Objective) -> LossSums:
        """Of one objective of a step. When the memory runs out, start over with smaller microbatches, which gives the same result."""
        microbatches = planned.microbatches
        while True:
            if 2 * len(microbatches) <= self.number:  # these were loaded before the memory ran out
                microbatches = planned.load_again()
            seed_step(self.seed, planned.step, number, state.strategy)
            before = Buffers(state.modules.values() if self.may_grow else ())
            try:
                return state.strategy.forward_backward(objective, microbatches, planned.denominator)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.grow(error, microbatches, state.strategy.tries_again)
            # outside of the handler, since the error's traceback keeps tensors alive
            state.clear_gradients()
            before.restore()

    def grow(self, error: RuntimeError, microbatches: MicroBatches, tries_again: bool) -> None:
        """Where peers would block in a collective, every rank exits, and the next attempt starts with smaller microbatches."""
        _, batch = microbatches[0]
        divisible = any(len(microbatch.ids) > 1 for microbatch, _ in microbatches)
        advice = explain(error, batch, self.number if divisible else None, self.may_grow)
        if not self.may_grow or not divisible:
            raise SystemExit(advice) from None
        self.number *= 2
        write_checked(self.path, {"microbatches": self.number})  # by each of several ranks, which are then ended: none may leave half of it
        advice = f"Out of memory: from now on each batch is computed in {self.number} microbatches. {advice}"
        if not tries_again:
            raise WorthAnotherStart(advice) from None
        logging.warning(advice)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def explain(error: BaseException, batch: Batch, microbatches: int | None, may_grow: bool) -> str:
    """`microbatches`: none if each has one example already."""
    smaller = [] if microbatches is None else [f"train.accumulate: {microbatches * 2}"]
    if smaller and not may_grow:
        smaller[0] += ", or compute.reduce_batch_on_oom: true, which finds the number itself"
    helps = [*smaller, "train.recompute_activations: true", "more processes", "train.strategy: fsdp"]
    return (
        f"Out of memory with a microbatch of {_shapes(batch)}: {_first_line(error)} These help, with the same result: {'; '.join(helps)}."
    )


def explain_evaluation(error: BaseException, batch: Batch) -> str:
    return (
        f"Out of memory in an evaluation with a batch of {_shapes(batch)}: {_first_line(error)} Make batches smaller: in a training by a larger "
        "train.accumulate, in a job that evaluates by a smaller evaluate.batch_size, or in `snaketrain predict` by --batch-size."
    )


def explain_update(error: BaseException) -> str:
    """Some weights may be updated and others not, so that the step cannot be repeated."""
    return (
        f"Out of memory while the weights were updated: {_first_line(error)} Smaller microbatches do not help here. These do: more "
        "processes with train.strategy: zero1 or fsdp; fewer trained parameters (train.freeze); an optimizer with less state."
    )


def _shapes(batch: Batch) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:300]


class Buffers:
    """Copies of what a forward pass updates, such as a batch norm's running mean: a repeated step must not count twice."""

    def __init__(self, modules: Iterable[nn.Module]):
        self._kept = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]

    @torch.no_grad()
    def restore(self) -> None:
        for buffer, kept in self._kept:
            buffer.copy_(kept)


# --- Steps whose loss or gradient is not finite, or a spike: they are skipped and recorded, and after too many in a row the training rolls back.


class Diverged(SystemExit):
    """A training whose loss is no longer finite, whatever is tried."""


class BadSteps:
    """Every rank counts the same, since a loss that is not finite on one rank makes the gradients of all not finite."""

    def __init__(self, allowed: int, rollbacks_allowed: int):
        self.allowed, self.rollbacks_allowed = allowed, rollbacks_allowed
        self.in_a_row: list[list[int]] = []  # the examples of each step
        self.rollbacks = 0
        self.longest = 0  # the most steps in a row so far

    def settle(self, outcome: StepOutcome, state: TrainState, checkpoints: "Checkpoints", journal: "Journal") -> None:
        """Record whether a step was applied; if not, the weights stayed as they were. Roll back after too many."""
        if outcome.applied:
            self.in_a_row = []
            return
        ranks, step, examples = bad_ranks(state.strategy, outcome), outcome.step, outcome.ids.tolist()
        if ranks is None:
            return
        norm = outcome.found_norm
        why = f"losses of ranks {ranks}, or gradients, are not finite"
        if state.spikes and not ranks and math.isfinite(norm):
            why = f"its gradient norm, {norm:.3g}, is above {state.spikes.factor:g} times the usual one"
        journal.write("bad_step", step=step, processes=ranks, examples=examples, why=why)
        logging.warning("step %d: %s; the update is skipped", step, why)
        if self.record(examples):
            checkpoints.finish()
            back = checkpoints.restore(state, {"task": state.task})
            if back == 0:
                raise Diverged(
                    f"step {step}: too many updates were skipped ({why}), and there is no checkpoint yet. Lower train.learning_rate."
                )
            journal.write("rollback", step=step, to=back)
            logging.warning("step %d: rolled back to the weights of step %d; training continues after the skipped steps", step, back)

    def record(self, examples: list[int]) -> bool:
        """Whether it is time to roll back."""
        self.in_a_row.append(examples)
        self.longest = max(self.longest, len(self.in_a_row))
        if len(self.in_a_row) <= self.allowed:
            return False
        if self.rollbacks == self.rollbacks_allowed:
            shown = sorted({example for step in self.in_a_row for example in step})
            raise Diverged(
                f"train.bad_steps_allowed: {len(self.in_a_row)} steps in a row had losses or gradients that are not finite, or spikes, after {self.rollbacks} "
                f"rollbacks to an earlier checkpoint. The training examples of these steps: {', '.join(map(str, shown[:200]))}"
                f"{', ...' if len(shown) > 200 else ''}. Look at them, lower train.learning_rate, or try train.precision: fp32."
            )
        self.in_a_row, self.rollbacks = [], self.rollbacks + 1
        return True

    def state_dict(self) -> dict[str, object]:
        return {"in_a_row": self.in_a_row, "rollbacks": self.rollbacks, "longest": self.longest}

    def load_state_dict(self, state: StateDict) -> None:
        self.in_a_row, self.rollbacks = state["in_a_row"], state["rollbacks"]
        self.longest = state.get("longest", len(self.in_a_row))  # older checkpoints have none


def bad_ranks(strategy: Strategy, outcome: StepOutcome) -> list[int] | None:
    """The ranks whose losses are not finite; None where nothing is wrong, and only the loss scale was too high for fp16."""
    has_finite_losses = all(bool(loss.isfinite()) for name, loss in outcome.losses.items() if is_loss(name))
    found = strategy.all_gather_object(
        (strategy.rank, has_finite_losses, math.isfinite(outcome.found_norm))
    )  # one of each group that shares a batch
    overflows = strategy.scaler.is_enabled() and strategy.scaler.get_scale() >= 1.0 and not all(norm for *_, norm in found)
    if all(losses for _, losses, _ in found) and overflows:
        return None  # the scaler has lowered its scale; below 1 the scale is not the reason
    return [rank for rank, losses, _ in found if not losses]
