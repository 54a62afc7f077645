"""Training, to be read from top to bottom. All that is needed is handed in; nothing here is distributed code."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from snaketrain.data.loading.batches import Batches, shard_batch
from snaketrain.runtime.exit_codes import WorthAnotherStart
from snaketrain.tasks.base import Batch
from snaketrain.training.bad_steps import BadSteps
from snaketrain.training.early_stopping import Patience
from snaketrain.training.evaluation import evaluate
from snaketrain.training.gradients import Cut, Losses, Objective, add_up, clear, gradients_of, seed_step
from snaketrain.training.learner import Learner
from snaketrain.training.out_of_memory import Buffers, Pieces, explain, explain_update, is_out_of_memory
from snaketrain.training.parameters import norm_of, set_rate
from snaketrain.training.plan import Plan, folder_name
from snaketrain.training.window import Window

Gradients = Callable[[int, Objective, Cut, float], Losses]  # of the objective of a number


@dataclass
class Training:
    """One training from a step to the end of its plan, until a signal, or until it gets no better."""

    learner: Learner
    train_data: Any
    dev_data: Any
    settings: Any
    plan: Plan
    batches: Batches
    pieces: Pieces
    window: Window
    patience: Patience
    bad_steps: BadSteps
    checkpoints: Any
    progress: Any
    stop: Any
    watch: Any
    clock: Any
    step: int = 0  # the last one that was taken
    journal: Any = None
    rank_journal: Any = None  # of this process alone
    stopping: bool = False
    owed: bool = False  # an evaluation of that step, which a stop signal came before

    @property
    def memory(self) -> dict[str, Any]:
        """What a checkpoint must know besides modules and optimizers."""
        return {"task": self.learner.task, "window": self.window, "patience": self.patience, "bad_steps": self.bad_steps}

    def resume(self) -> int:
        """Go back to the last checkpoint, if there is one; its step."""
        self.step = self.checkpoints.restore(self.learner, self.memory)
        self.owed = self.step > 0 and self.plan.evaluates_at(self.step) and not self.checkpoints.evaluated
        return self.step

    def run(self) -> int:
        """The step that was reached."""
        task, modules = self.learner.task, self.learner.plain_modules()
        task.on_worker_start()
        self.clock.to("steps")
        if self.step == 0:
            self.owed = True
        else:
            self.saved(self.step)  # perhaps the last attempt did not come to write it down
        if self.step in (0, *self.plan.epoch_ends, self.plan.steps):
            self.catch_up()
        for epoch, steps in self.batches.after(self.step, self.plan.steps):
            if self.over:
                break
            task.on_epoch_start(epoch, modules)
            self.catch_up()
            if not self.over:
                task.train_epoch(epoch, self.steps(epoch, steps))
        with self.clock.during("saving"):
            self.checkpoints.finish()
        self.tell_saved()
        return self.step

    @property
    def over(self) -> bool:
        return self.stopping or self.patience.exhausted

    @property
    def complete(self) -> bool:
        return not self.owed and (self.step == self.plan.steps or self.patience.exhausted)

    def steps(self, epoch: int, batches: Iterator[tuple[int, np.ndarray]]) -> Iterator[Callable[[], None]]:
        for step, ids in batches:
            yield partial(self.take, step, epoch, ids)
            self.step = step
            if step == self.plan.epoch_ends[epoch]:  # before the checkpoint, which must know what comes of it
                self.learner.task.on_epoch_end(epoch, self.learner.plain_modules())
            self.after_step()
            if self.over:
                return

    def take(self, step: int, epoch: int, ids: np.ndarray) -> None:
        strategy, self.rate = self.learner.strategy, self.plan.learning_rate_at(step)
        with self.clock.during("data_wait"):
            batches = self.cut(ids, epoch)
        mine = sum(self.learner.task.count(batch) for piece, batch in batches if not piece.filler)
        # all processes must agree on what the losses are divided by, and on where to stop
        count, stopping = strategy.all_reduce_scalars(mine, self.stop.requested())
        self.stopping = stopping > 0
        gradients = partial(self.gradients, step, partial(self.cut, ids, epoch))
        losses, self.norm = take_step(self.learner, batches, max(1.0, count), self.rate, gradients)
        self.watch.beat()
        if math.isfinite(self.norm):
            self.bad_steps.good()
            self.window.add(losses, count, mine, len(ids))
        else:
            self.skip(step, ids, losses)

    def cut(self, ids: np.ndarray, epoch: int) -> Cut:
        """This process's pieces of a batch."""
        strategy = self.learner.strategy
        pieces = shard_batch(ids, self.pieces.number, strategy.data_parallel_rank, strategy.data_parallel_size)
        return [(piece, self.train_data.batch(piece.ids, epoch)) for piece in pieces]

    def gradients(self, step: int, cut: Callable[[], Cut], number: int, objective: Objective, batches: Cut, count: float) -> Losses:
        """Of one objective; where the memory runs out, from the beginning in smaller pieces, as if nothing had been."""
        learner = self.learner
        while True:
            seed_step(self.settings.seed, step, number, learner.strategy)
            before = Buffers(learner.modules.values() if self.pieces.may_grow else ())
            try:
                return gradients_of(learner, objective, batches, count)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.make_smaller(error, batches[0][1])
            # not before the error is gone, which holds what was in the memory
            clear(learner)
            before.restore()
            batches[:] = cut()  # for the objectives to come as well

    def make_smaller(self, error: RuntimeError, batch: Batch) -> None:
        """Others would wait for this process in vain, and what a strategy has wrapped is between two states: then all end,
        and the next attempt begins with smaller pieces."""
        advice = explain(error, batch, self.pieces.number)
        if not self.pieces.may_grow or self.pieces.number >= self.settings.batch_size:
            raise SystemExit(advice) from None
        self.pieces.more()
        advice = f"Out of memory: from now on each batch is worked off in {self.pieces.number} pieces. {advice}"
        if not self.learner.strategy.tries_again:
            raise WorthAnotherStart(advice) from None
        logging.warning(advice)

    def skip(self, step: int, ids: np.ndarray, losses: dict[str, Tensor]) -> None:
        """The update was left out, since a gradient was not a number."""
        fine, scaler = (
            self.learner.strategy.all_gather_object(all(bool(loss.isfinite()) for loss in losses.values())),
            self.learner.strategy.scaler,
        )
        if all(fine) and scaler.is_enabled() and scaler.get_scale() >= 1.0:
            return  # beyond the range of fp16, as at times it is; the scaler has lowered its scale, and below 1 that is not the reason
        processes = [rank for rank, is_fine in enumerate(fine) if not is_fine]
        self.journal.write("bad_step", step=step, processes=processes, examples=ids.tolist())
        logging.warning("step %d: not a number in the losses of processes %s, or in gradients; the update is left out", step, processes)
        if self.bad_steps.bad(ids.tolist()):
            self.checkpoints.finish()
            back = self.checkpoints.restore(self.learner, {"task": self.learner.task})
            if back == 0:
                raise SystemExit(
                    f"step {step}: too many steps without numbers, and no checkpoint to go back to. Lower train.learning_rate."
                )
            self.journal.write("rollback", step=step, to=back)
            logging.warning("step %d: back to the weights of step %d, and on behind the bad steps", step, back)

    def after_step(self) -> None:
        """Tell, evaluate and save, as the plan says."""
        step, plan = self.step, self.plan
        self.tell_saved()
        if self.window.examples and (self.progress.logs_at(step) or step == plan.steps):
            self.rank_journal.write("train", step=step, metrics=self.window.own(self.learner.task.counts))
            figures = self.window.close(self.learner.task.counts)
            figures |= {"learning_rate": self.rate, "gradient_norm": self.norm.item(), "epoch": plan.epochs_done(step)}
            self.journal.write("train", step=step, metrics=figures, spent=self.clock.spent())
            self.progress.show(step, figures)
            self.window.reopen()
        if plan.evaluates_at(step):
            self.evaluate()
        elif self.stopping:
            self.save(None)

    def evaluate(self, saved: bool = False) -> None:
        """And save. Where a stop signal comes first, only save, since there may be half a minute left; the next attempt evaluates."""
        self.owed, metrics = True, None if self.stopping else self.measure()
        if metrics is not None:
            self.owed = False
            if self.step:
                self.patience.tell(metrics)
                self.progress.evaluated(self.step, metrics)
            self.journal.write("eval", step=self.step, metrics=metrics, spent=self.clock.spent())
        if self.step and not (self.owed and saved):
            self.save(metrics)

    def catch_up(self) -> None:
        """What no attempt has evaluated: the beginning, or the step at which the last one was stopped."""
        if self.owed:
            self.evaluate(saved=True)

    def measure(self) -> dict[str, float] | None:
        with self.window.paused(), self.clock.during("evaluation"):
            return evaluate(self.learner, self.dev_data, self.settings.batch_size * 2, self.settings.batch_tokens, self.goes_on)

    def goes_on(self) -> bool:
        """Asked between two batches of an evaluation; all processes must agree."""
        self.watch.beat()
        (stopping,) = self.learner.strategy.all_reduce_scalars(self.stop.requested())
        self.stopping = stopping > 0
        return not self.stopping

    def save(self, metrics: dict[str, float] | None) -> None:
        self.journal.sync()  # a checkpoint must not know more than the journal
        with self.window.paused(), self.clock.during("saving"):
            self.checkpoints.save(self.learner, self.step, metrics, self.memory)
        self.watch.beat()

    def tell_load(self, figures: dict[str, float]) -> None:
        self.journal.write("system", step=self.step, metrics=figures)

    def tell_saved(self) -> None:
        for step in self.checkpoints.newly_saved():
            self.saved(step)

    def saved(self, step: int) -> None:
        self.journal.write("checkpoint", step=step, path=f"checkpoints/{folder_name(step)}")


def take_step(learner: Learner, batches: Cut, count: float, rate: float, gradients: Gradients | None = None) -> tuple[Losses, Tensor]:
    """One step of each optimizer on this process's pieces of a batch: the summed losses, and the gradients' norm.

    The losses of all processes and pieces are sums, divided by `count`, so that it does not matter how a batch is cut.
    """
    strategy, losses, norms = learner.strategy, {}, []
    gradients = gradients or (lambda number, *rest: gradients_of(learner, *rest))
    for name, module in learner.modules.items():
        if not module.training:  # after an evaluation; to ask each of its parts takes as long as a small step
            module.train()
        set_rate(learner.optimizers[name], rate)
    for number, objective in enumerate(learner.task.objectives(learner.modules)):
        add_up(losses, gradients(number, objective, batches, count))
        pairs = [(learner.modules[name], learner.optimizers[name]) for name in objective[1]]
        try:
            norms.append(strategy.update(pairs, learner.clip_norm, alike=learner.task.wraps))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise SystemExit(explain_update(error)) from None
        clear(learner)  # also what a loss left in the modules that do not learn from it
    return losses, norm_of(norms)
