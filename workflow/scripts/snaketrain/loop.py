"""Training and evaluation, to be read from top to bottom. All that is needed is handed in; nothing here is distributed code."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from snaketrain.data.batches import Piece, deal, in_order, steps
from snaketrain.plan import Plan
from snaketrain.tasks.base import Task, on_device
from snaketrain.window import Window, each


@dataclass
class Learner:
    """The modules as the strategy wrapped them, and their optimizers."""

    task: Task
    strategy: Any
    modules: dict[str, nn.Module]
    optimizers: dict[str, Any]
    clip_norm: float | None

    def plain_modules(self) -> dict[str, nn.Module]:
        return {name: self.strategy.unwrapped(module) for name, module in self.modules.items()}


def train(learner: Learner, train_data, dev_data, settings, plan: Plan, start: int, journal, checkpoints, progress, stop) -> int:
    """Train from step `start` to the end of the plan, or until a signal; the step that was reached."""
    strategy, step = learner.strategy, start
    window = Window(strategy)
    for step, batch in steps(train_data.lengths, settings.batch_size, settings.seed, start, plan.steps):
        seed_step(settings.seed, step, strategy.rank)
        pieces = deal(batch, train_data.lengths, settings.accumulate, strategy.rank, strategy.world_size)
        rate = plan.learning_rate_at(step)
        losses, norm = take_step(learner, pieces, train_data, len(batch), rate)
        window.add(losses, batch)
        if progress.logs_at(step) or step == plan.steps:
            figures = window.close() | {"learning_rate": rate, "gradient_norm": norm.item(), "epoch": step / plan.per_epoch}
            journal.write("train", step=step, metrics=figures)
            progress.show(step, figures)
            window.reopen()
        # asked on every step, by all processes: they must agree on where to stop
        stopping = strategy.any(stop.requested())
        if plan.evaluates_at(step):
            metrics = evaluate(learner, dev_data, settings.batch_size * 2)
            journal.write("eval", step=step, metrics=metrics)
            journal.sync()  # a checkpoint must not know more than the journal
            progress.evaluated(step, metrics)
            journal.write("checkpoint", step=step, path=checkpoints.save(learner, step, metrics))
            window.reopen()
        elif stopping:
            journal.sync()
            journal.write("checkpoint", step=step, path=checkpoints.save(learner, step, None))
        if stopping:
            break
    return step


def take_step(learner: Learner, pieces: list[Piece], data, count: int, rate: float) -> tuple[dict[str, Tensor], Tensor]:
    """One optimizer step on this process's pieces of a batch of `count` examples: the summed losses, and the gradients' norm."""
    strategy, losses = learner.strategy, {}
    for optimizer in learner.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate
    for module in learner.modules.values():
        module.train()
    for number, piece in enumerate(pieces, start=1):
        weight = 0.0 if piece.filler else 1.0

        def update(name: str, loss: Tensor, weight: float = weight) -> None:
            strategy.backward(loss * (weight / count))
            losses[name] = losses.get(name, 0.0) + loss.detach() * weight

        with each(strategy.accumulating(m, number < len(pieces)) for m in learner.modules.values()), strategy.autocast():
            learner.task.training_step(learner.modules, on_device(data.batch(piece.ids), strategy.device), update)
    norms = [strategy.update(module, learner.optimizers[name], learner.clip_norm) for name, module in learner.modules.items()]
    return losses, torch.stack(norms).norm()


@torch.no_grad()
def evaluate(learner: Learner, data, batch_size: int) -> dict[str, float]:
    """Every example once, whatever the number of processes: sums are added up over all, and divided once."""
    sums: dict[str, Tensor] = {}
    for piece, batch in evaluation_batches(learner, data, batch_size):
        if not piece.filler:
            for name, value in learner.task.evaluation_step(learner.plain_modules(), batch).items():
                sums[name] = sums.get(name, 0.0) + value.double()
    names = max(learner.strategy.everyones({name: value.shape for name, value in sums.items()}), key=len)
    zeros = {name: torch.zeros(shape, dtype=torch.float64, device=learner.strategy.device) for name, shape in names.items()}
    return learner.task.measure({name: learner.strategy.sum(sums.get(name, zeros[name])) for name in names})


def evaluation_batches(learner: Learner, data, batch_size: int) -> Iterator[tuple[Piece, dict[str, Tensor]]]:
    """This process's share of the data, with all modules set to evaluate and in the strategy's precision."""
    for module in learner.modules.values():
        module.eval()
    strategy = learner.strategy
    for ids in in_order(data.lengths, batch_size):
        (piece,) = deal(ids, data.lengths, 1, strategy.rank, strategy.world_size)
        with strategy.autocast():
            yield piece, on_device(data.batch(piece.ids), strategy.device)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout depends on the step alone: a resumed training draws what an uninterrupted one would have drawn."""
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
