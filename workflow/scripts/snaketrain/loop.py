"""Training and evaluation, to be read from top to bottom. All that is needed is handed in; nothing here is distributed code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snaketrain.data.batches import Batches, Piece, deal, in_order
from snaketrain.learner import Learner
from snaketrain.parameters import set_rate
from snaketrain.plan import Plan
from snaketrain.tasks.base import Batch, on_device
from snaketrain.window import Window, each


@dataclass
class Training:
    """One training from a step to the end of its plan, until a signal, or until it gets no better."""

    learner: Learner
    train_data: Any
    dev_data: Any
    settings: Any
    plan: Plan
    batches: Batches
    step: int  # the last one that was taken
    journal: Any
    checkpoints: Any
    progress: Any
    stop: Any

    def run(self) -> int:
        """The step that was reached."""
        task, modules = self.learner.task, self.learner.plain_modules()
        self.window, self.stopping = Window(self.learner.strategy), False
        task.on_worker_start()
        if self.step == 0:
            self.journal.write("eval", step=0, metrics=self.evaluate())
        for epoch, steps in self.batches.after(self.step, self.plan.steps):
            if self.over:
                break
            task.on_epoch_start(epoch, modules)
            task.train_epoch(epoch, self.steps(epoch, steps))
        return self.step

    @property
    def over(self) -> bool:
        return self.stopping or self.learner.patience.exhausted

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
        settings, strategy = self.settings, self.learner.strategy
        seed_step(settings.seed, step, strategy.data_rank)
        pieces = deal(ids, self.train_data.lengths, settings.accumulate, strategy.data_rank, strategy.data_processes)
        batches = [(piece, self.train_data.batch(piece.ids, epoch)) for piece in pieces]
        mine = sum(self.learner.task.count(batch) for piece, batch in batches if not piece.filler)
        # all processes must agree on what the losses are divided by, and on where to stop
        count, stopping = strategy.agree(mine, self.stop.requested())
        self.stopping = stopping > 0
        self.rate = self.plan.learning_rate_at(step)
        losses, self.norm = take_step(self.learner, batches, max(1.0, count), self.rate)
        self.window.add(losses, count, len(ids))

    def after_step(self) -> None:
        """Tell, evaluate and save, as the plan says."""
        step, plan = self.step, self.plan
        if self.window.examples and (self.progress.logs_at(step) or step == plan.steps):
            figures = self.window.close(self.learner.task.counts)
            figures |= {"learning_rate": self.rate, "gradient_norm": self.norm.item(), "epoch": plan.epochs_done(step)}
            self.journal.write("train", step=step, metrics=figures)
            self.progress.show(step, figures)
            self.window.reopen()
        if plan.evaluates_at(step):
            metrics = self.evaluate()
            self.learner.patience.tell(metrics)
            self.journal.write("eval", step=step, metrics=metrics)
            self.progress.evaluated(step, metrics)
            self.save(metrics)
        elif self.stopping:
            self.save(None)

    def evaluate(self) -> dict[str, float]:
        return evaluate(self.learner, self.dev_data, self.settings.batch_size * 2)

    def save(self, metrics: dict[str, float] | None) -> None:
        self.journal.sync()  # a checkpoint must not know more than the journal
        self.journal.write("checkpoint", step=self.step, path=self.checkpoints.save(self.learner, self.step, metrics))
        self.window.reopen()


def take_step(learner: Learner, batches: list[tuple[Piece, Batch]], count: float, rate: float) -> tuple[dict[str, Tensor], Tensor]:
    """One step of each optimizer on this process's pieces of a batch: the summed losses, and the gradients' norm.

    The losses of all processes and pieces are sums, divided by `count`, so that it does not matter how a batch is cut.
    """
    strategy, losses, norms = learner.strategy, {}, []
    for name, module in learner.modules.items():
        module.train()
        set_rate(learner.optimizers[name], rate)
    for loss_of, names in learner.task.steps(learner.modules):
        modules = learner.learning(names)
        for number, (piece, batch) in enumerate(batches, start=1):
            weight = 0.0 if piece.filler else 1.0
            with each(strategy.accumulating(modules[name], number < len(batches)) for name in names):
                with strategy.autocast():
                    parts = loss_of(modules, on_device(batch, strategy.device))
                parts = parts if isinstance(parts, dict) else {"": parts}
                strategy.backward(sum(parts.values()) * (weight / count))
            for part, loss in parts.items():
                losses[part] = losses.get(part, 0.0) + loss.detach() * weight
        norms.append(strategy.update([(learner.modules[name], learner.optimizers[name]) for name in names], learner.clip_norm))
        for module in learner.modules.values():  # also what a loss left in the modules that do not learn from it
            strategy.clear(module)
    return losses, torch.stack(norms).norm()


@torch.no_grad()
def evaluate(learner: Learner, data: Any, batch_size: int) -> dict[str, float]:
    """Every example once, whatever the number of processes: sums are added up over all, and divided once."""
    sums: dict[str, Tensor] = {}
    for piece, batch in evaluation_batches(learner, data, batch_size):
        found = learner.task.evaluation_step(learner.plain_modules(), batch)
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + (torch.zeros_like(value) if piece.filler else value).double()
    return learner.task.measure({name: learner.strategy.sum(total) for name, total in sums.items()})


def evaluation_batches(learner: Learner, data: Any, batch_size: int) -> Iterator[tuple[Piece, Batch]]:
    """This process's share of the data, with all modules set to evaluate and in the strategy's precision."""
    for module in learner.modules.values():
        module.eval()
    strategy = learner.strategy
    for ids in in_order(data.lengths, batch_size):
        (piece,) = deal(ids, data.lengths, 1, strategy.data_rank, strategy.data_processes)
        with strategy.autocast():
            yield piece, on_device(data.batch(piece.ids), strategy.device)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout depends on the step alone: a resumed training draws what an uninterrupted one would have drawn."""
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
