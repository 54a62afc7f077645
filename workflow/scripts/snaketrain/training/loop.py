"""Training, to be read from top to bottom. All that is needed is handed in; nothing here is distributed code."""

import logging
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snaketrain.data.batches import Batches, Piece, deal
from snaketrain.tasks.base import Batch, on_device
from snaketrain.training.bad_steps import BadSteps, poisoned
from snaketrain.training.endings import WorthAnotherStart
from snaketrain.training.evaluation import evaluate
from snaketrain.training.learner import Learner
from snaketrain.training.out_of_memory import Pieces, explain, is_out_of_memory
from snaketrain.training.parameters import norm_of, set_rate
from snaketrain.training.patience import Patience
from snaketrain.training.plan import Plan, folder_name
from snaketrain.training.window import Window, each


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
    own_journal: Any = None  # of this process alone
    stopping: bool = False

    @property
    def memory(self) -> dict[str, Any]:
        """What a checkpoint must know besides modules and optimizers."""
        return {"task": self.learner.task, "window": self.window, "patience": self.patience, "bad_steps": self.bad_steps}

    def resume(self) -> int:
        """Go back to the last checkpoint, if there is one; its step."""
        self.step = self.checkpoints.restore(self.learner, self.memory)
        return self.step

    def run(self) -> int:
        """The step that was reached."""
        task, modules = self.learner.task, self.learner.plain_modules()
        task.on_worker_start()
        self.clock.to("steps")
        if self.step == 0:
            metrics = self.evaluate()
            self.journal.write("eval", step=0, metrics=metrics, spent=self.clock.spent())
        else:
            self.saved(self.step)  # perhaps the last attempt did not come to write it down
        for epoch, steps in self.batches.after(self.step, self.plan.steps):
            if self.over:
                break
            task.on_epoch_start(epoch, modules)
            task.train_epoch(epoch, self.steps(epoch, steps))
        with self.clock.during("saving"):
            self.checkpoints.finish()
        self.tell_saved()
        return self.step

    @property
    def over(self) -> bool:
        return self.stopping or self.patience.exhausted

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
        seed_step(self.settings.seed, step, strategy)
        pieces = deal(ids, self.pieces.number, strategy.data_rank, strategy.data_processes)
        with self.clock.during("data_wait"):
            batches = [(piece, self.train_data.batch(piece.ids, epoch)) for piece in pieces]
        mine = sum(self.learner.task.count(batch) for piece, batch in batches if not piece.filler)
        # all processes must agree on what the losses are divided by, and on where to stop
        count, stopping = strategy.agree(mine, self.stop.requested())
        self.stopping = stopping > 0
        try:
            losses, self.norm = take_step(self.learner, batches, max(1.0, count), self.rate)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.make_smaller(error, batches[0][1])
            return self.take(step, epoch, ids)
        self.watch.beat()
        if math.isfinite(self.norm):
            self.bad_steps.good()
            self.window.add(losses, count, mine, len(ids))
        else:
            self.skip(step, ids, losses)

    def make_smaller(self, error: RuntimeError, batch: Batch) -> None:
        """Of several processes the others wait for this one in vain: all end, and the next attempt begins with smaller pieces."""
        advice = explain(error, batch, self.pieces.number)
        if self.pieces.may_grow and self.pieces.number < self.settings.batch_size:
            self.pieces.more()
            advice = f"Out of memory: from now on each batch is worked off in {self.pieces.number} pieces. {advice}"
            if self.learner.strategy.world_size > 1:
                raise WorthAnotherStart(advice) from None
        else:
            raise SystemExit(advice) from None
        logging.warning(advice)
        clear(self.learner)

    def skip(self, step: int, ids: np.ndarray, losses: dict[str, Tensor]) -> None:
        """The update was left out, since a gradient was not a number."""
        fine = self.learner.strategy.everyones(all(bool(loss.isfinite()) for loss in losses.values()))
        if all(fine) and self.learner.strategy.precision == "fp16":
            return  # beyond the range of fp16, as at times it is; the scaler has lowered its scale
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
            self.own_journal.write("train", step=step, metrics=self.window.own(self.learner.task.counts))
            figures = self.window.close(self.learner.task.counts)
            figures |= {"learning_rate": self.rate, "gradient_norm": self.norm.item(), "epoch": plan.epochs_done(step)}
            self.journal.write("train", step=step, metrics=figures, spent=self.clock.spent())
            self.progress.show(step, figures)
            self.window.reopen()
        if plan.evaluates_at(step):
            metrics = self.evaluate()
            self.patience.tell(metrics)
            self.journal.write("eval", step=step, metrics=metrics, spent=self.clock.spent())
            self.progress.evaluated(step, metrics)
            self.save(metrics)
        elif self.stopping:
            self.save(None)

    def evaluate(self) -> dict[str, float]:
        with self.window.paused(), self.clock.during("evaluation"):
            return evaluate(self.learner, self.dev_data, self.settings.batch_size * 2, self.settings.batch_tokens, self.watch.beat)

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


def take_step(learner: Learner, batches: list[tuple[Piece, Batch]], count: float, rate: float) -> tuple[dict[str, Tensor], Tensor]:
    """One step of each optimizer on this process's pieces of a batch: the summed losses, and the gradients' norm.

    The losses of all processes and pieces are sums, divided by `count`, so that it does not matter how a batch is cut.
    """
    strategy, losses, norms = learner.strategy, {}, []
    for name, module in learner.modules.items():
        if not module.training:  # after an evaluation; to ask each of its parts takes as long as a small step
            module.train()
        set_rate(learner.optimizers[name], rate)
    for loss_of, names in learner.task.steps(learner.modules):
        modules = learner.learning(names)
        for number, (piece, batch) in enumerate(batches, start=1):
            with each(strategy.accumulating(modules[name], number < len(batches)) for name in names):
                with strategy.autocast():
                    parts = loss_of(modules, on_device(batch, strategy.device))
                parts = parts if isinstance(parts, dict) else {"": parts}
                loss = reduce(operator.add, parts.values())  # `sum` would begin with 0, one more operation forwards and backwards
                strategy.backward(loss, poisoned(0.0 if piece.filler else 1.0 / count, loss))
            for part, loss in parts.items():
                told = torch.zeros_like(loss) if piece.filler else loss.detach()
                losses[part] = losses[part] + told if part in losses else told
        norms.append(strategy.update([(learner.modules[name], learner.optimizers[name]) for name in names], learner.clip_norm))
        clear(learner)  # also what a loss left in the modules that do not learn from it
    return losses, norm_of(norms)


def clear(learner: Learner) -> None:
    for name, module in learner.modules.items():
        learner.strategy.clear(module, learner.optimizers[name])


def seed_step(seed: int, step: int, strategy: Any) -> None:
    """Dropout depends on the step alone: a resumed training draws what an uninterrupted one would have drawn."""
    number = (seed * 1_000_003 + step) * 1_009 + strategy.data_rank
    torch.default_generator.manual_seed(number)  # `torch.manual_seed` takes half a millisecond for devices that are not used
    if strategy.device.type == "cuda":
        torch.cuda.manual_seed(number)
