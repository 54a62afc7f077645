"""The smallest training there is, as the stage makes it: a task of one's own sorts points of a plane, in this process."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from snaketrain.config.schema import Train
from snaketrain.data.loading.batches import Batches
from snaketrain.runtime.goodput import Clock
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Batch, Modules, Task
from snaketrain.training import schedules
from snaketrain.training.bad_steps import BadSteps
from snaketrain.training.checkpoints.store import Checkpoints
from snaketrain.training.early_stopping import Patience
from snaketrain.training.learner import build, make_learner
from snaketrain.training.loop import Training
from snaketrain.training.out_of_memory import Pieces
from snaketrain.training.plan import Plan
from snaketrain.training.window import Window

EXAMPLES, BATCH = 35, 8  # five steps an epoch, of which one has three examples
TRAIN = {
    "batch_size": BATCH, "epochs": 3, "learning_rate": 0.02, "warmup": 4, "weight_decay": 0.3, "clip_norm": 0.4,
    "evaluations_per_epoch": 2, "groups": [{"match": "2.*", "rate_scale": 0.5}],
}  # fmt: skip


class Points:
    """Of three classes, in random places."""

    def __init__(self, count: int, seed: int):
        random = np.random.default_rng(seed)
        self.lengths = random.integers(1, 9, count)
        self.places, self.classes = random.normal(size=(count, 2)), random.integers(0, 3, count)
        self.places[np.arange(count), self.classes % 2] += self.classes

    def batch(self, ids, epoch: int = 0) -> Batch:
        chosen = list(ids)
        places = torch.tensor(self.places[chosen], dtype=torch.float32)
        return {"places": places, "classes": torch.tensor(self.classes[chosen]), "ids": torch.tensor(chosen)}


class Classify(Task):
    def __init__(self, dropout: float):
        self.dropout = dropout

    def build(self, model: dict, folder: Path | None, data: dict) -> Modules:
        return {"model": nn.Sequential(nn.Linear(2, 16), nn.Dropout(self.dropout), nn.Linear(16, 3))}

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        return cross_entropy(modules["model"](batch["places"]), batch["classes"], reduction="sum")

    def outputs(self, modules: Modules, batch: Batch) -> Tensor:
        return modules["model"](batch["places"])

    def evaluation_step(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        losses = cross_entropy(outputs, batch["classes"], reduction="none")
        return {"count": torch.tensor(len(losses)), "loss": losses.sum()}


class Journal:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict]] = []

    def write(self, event: str, **content: Any) -> None:
        self.lines.append((event, content))

    def sync(self) -> None: ...

    def of(self, kind: str) -> list[dict]:
        return [content for event, content in self.lines if event == kind]


def make(folder: Path, dropout: float = 0.0, strategy: Strategy | None = None, stops_at: int = 10**9, **changes: Any) -> Training:
    """A training as the stage makes it; a signal to stop comes as one of its steps begins."""
    train, task, strategy = Train(**(TRAIN | changes)), Classify(dropout), strategy or Strategy("cpu", "fp32")
    points = Points(EXAMPLES, seed=0)
    batches = Batches(points.lengths, train.seed, train.batch_size)
    quiet = SimpleNamespace(logs_at=lambda step: True, show=lambda *_: None, evaluated=lambda *_: None, beat=lambda: None)
    training = Training(
        learner=make_learner(task, train, build(task, train, SimpleNamespace(model_dump=dict), None, {}), strategy),
        train_data=points, dev_data=Points(21, seed=1), settings=train, plan=Plan.of(train, batches, schedules.linear), batches=batches,
        pieces=Pieces(folder, train.accumulate, False), window=Window(strategy), patience=Patience("loss", "min", None),
        bad_steps=BadSteps(train.bad_steps_allowed, train.rollbacks_allowed), checkpoints=Checkpoints(folder / "checkpoints", "loss", "min", 2),
        progress=quiet, stop=SimpleNamespace(requested=lambda: begun[-1] >= stops_at), watch=quiet, clock=Clock(time.time()),
        journal=Journal(), rank_journal=Journal(),
    )  # fmt: skip
    take, begun = training.take, [0]

    def watched(step: int, *rest: Any) -> None:
        begun.append(step)
        take(step, *rest)

    training.take = watched
    training.resume()
    return training


def module_of(training: Training) -> nn.Module:
    return training.learner.modules["model"]


def gradients(training: Training, evaluated_before: bool = False) -> dict[str, Tensor]:
    """Those of the first step, before they are clipped and used."""
    found: dict[str, Tensor] = {}

    def keep(*_: Any, **__: Any) -> Tensor:
        found.update({name: p.grad.clone() for name, p in module_of(training).named_parameters()})
        return torch.tensor(1.0)

    training.learner.strategy.update = keep
    if evaluated_before:
        training.evaluate()
    training.take(1, 0, training.batches.of(0)[0])
    return found
