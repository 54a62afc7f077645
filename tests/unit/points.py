"""The smallest training, built like in the stage script: a custom task classifies points of a plane, in this process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from snaketrain.config.schema import Train
from snaketrain.data.loading.examples import Splits
from snaketrain.data.loading.training_data import Batch
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Modules, Task
from snaketrain.training.building import build, load_callbacks, make_train_state
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.formats import FormatName
from snaketrain.training.plan import Plan
from snaketrain.training.state import StepOutcome, TrainState
from snaketrain.training.trainer import Trainer, TrainerOptions

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

    def __len__(self) -> int:
        return len(self.lengths)

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

    def begin(self, *_: Any, **__: Any) -> None: ...

    def write(self, event: str, **content: Any) -> None:
        self.lines.append((event, content))

    def sync(self) -> None: ...

    def of(self, kind: str) -> list[dict]:
        return [content for event, content in self.lines if event == kind]


class StopsAt:
    """A stop signal arrives as a step begins."""

    def __init__(self, step: int):
        self.at, self.begun = step, 0

    def requested(self) -> bool:
        return self.begun >= self.at


def make(
    folder: Path, dropout: float = 0.0, strategy: Strategy | None = None, stops_at: int = 10**9, make_task: type[Classify] = Classify,
    format: FormatName = "auto", **changes: Any
) -> Trainer:  # fmt: skip
    """A training as the stage makes it, resumed from what is in its folder."""
    train, task, strategy, stop = Train(**(TRAIN | changes)), make_task(dropout), strategy or Strategy("cpu", "fp32"), StopsAt(stops_at)
    data = Splits(Points(EXAMPLES, seed=0), Points(21, seed=1), {})
    state = make_train_state(task, train, build(task, train, SimpleNamespace(model_dump=dict), None, {}), strategy)
    plan = Plan.of(train, data.train.lengths)
    callbacks = [Begins(stop), *load_callbacks(train)]
    trainer = Trainer(
        state,
        data,
        train,
        plan,
        folder,
        (Journal(), Journal()),
        TrainerOptions(callbacks=callbacks, log_every=1, stop=stop.requested, checkpoint_format=format),
    )
    folder.mkdir(exist_ok=True, parents=True)
    return trainer


class Begins(Callback):
    def __init__(self, stop: StopsAt):
        self.stop = stop

    def on_train_start(self, state: TrainState) -> None:
        self.stop.begun = state.step + 1 if state.step else 0

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        self.stop.begun = state.step + 1

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        self.stop.begun = state.step + 1


def module_of(training: Trainer) -> nn.Module:
    return training.state.modules["model"]


def bits_of(training: Trainer) -> dict[str, bytes]:
    """The parameters of all trained modules."""
    (optimizer,), tensors = training.state.optimizers.values(), dict(module_of(training).state_dict())
    tensors |= {f"{number} {key}": value for number, state in optimizer.state_dict()["state"].items() for key, value in state.items()}
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def gradients(training: Trainer, evaluated_before: bool = False) -> dict[str, Tensor]:
    """Those of the first step, before they are clipped and used."""
    found: dict[str, Tensor] = {}

    def keep(*_: Any, **__: Any) -> Tensor:
        found.update({name: p.grad.clone() for name, p in module_of(training).named_parameters()})
        return torch.tensor(1.0)

    training.state.strategy.update = keep
    if evaluated_before:
        training.evaluate()
    with training.planned.loading():
        training.train_step(training.planned.upcoming)
    return found
