"""What a step of our loop costs beside one of a plain PyTorch loop, on the very same batches with the same optimizer.

Both train in one process, some steps of the one and some of the other by turns, so that what else the machine does disturbs both.
Ours with journal, TensorBoard and progress bar as in every training; two models: one of as many small layers as make a plain
step of about a millisecond on this machine, one of MiniLM's size. The median of the ratios of neighbouring turns. On one thread:
two that wait for each other would measure what else the machine does.
"""

import copy
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import command_line, device_name, judge, ratios, side_by_side, timed, write_figures
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from snaketrain.config.schema import Model, Train
from snaketrain.data.loading.batches import Batches
from snaketrain.data.loading.examples import Splits
from snaketrain.runtime.processes import Stopping
from snaketrain.strategies.ddp import Single
from snaketrain.tasks.base import Task
from snaketrain.training.building import build, make_train_state
from snaketrain.training.plan import Plan
from snaketrain.training.trainer import Trainer, TrainerOptions
from snaketrain.training.watching import default_callbacks, open_journals

GOALS = {"small": 1.10, "MiniLM": 1.02}
WIDTH = 64  # of the small model


class Classify(Task):
    def __init__(self, module: nn.Module):
        self.module = module

    def build(self, model, folder, data):
        return {"model": self.module}

    def training_step(self, modules, batch):
        return nn.functional.cross_entropy(modules["model"](batch["inputs"]), batch["labels"], reduction="sum")


class Logits(nn.Module):
    """A BERT of MiniLM's size that answers with its logits alone."""

    def __init__(self):
        super().__init__()
        size = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        self.bert = BertForSequenceClassification(BertConfig(**size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))

    def forward(self, tokens):
        return self.bert(input_ids=tokens).logits


class Rows:
    """Random examples of one length."""

    def __init__(self, inputs: torch.Tensor):
        self.inputs, self.labels = inputs, torch.arange(len(inputs)) % 2
        self.lengths = np.ones(len(inputs), dtype=int)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, ids: tuple[int, ...], epoch: int = 0) -> dict[str, torch.Tensor]:
        ids = torch.tensor(ids)
        return {"inputs": self.inputs[ids], "labels": self.labels[ids]}


def trainer_of(folder: Path, module: nn.Module, rows: Rows, train: Train, device: str = "cpu") -> Trainer:
    """With all that train_model.py gives it."""
    strategy, task, data = Single(device, "fp32"), Classify(module), Splits(rows, rows, {})
    state, plan = make_train_state(task, train, build(task, train, Model(), None, {}), strategy), Plan.of(train, rows.lengths)
    journals = open_journals(folder, strategy)
    callbacks = default_callbacks("benchmark", folder, strategy, journals[0], stall_seconds=600, profile=None)
    return Trainer(state, data, train, plan, folder, journals, TrainerOptions(callbacks=callbacks, stop=Stopping().requested))


def steps_of(trainer: Trainer) -> Iterator[Callable[[], None]]:
    """The loop of `fit`, one step at a time."""
    trainer.callbacks.call("on_train_start", trainer.state)
    with trainer.planned.loading():
        while trainer.planned.upcoming:
            yield from trainer.steps(trainer.planned.upcoming.epoch)


def ours(folder: Path, module: nn.Module, rows: Rows, train: Train, device: str) -> Iterator[Callable[[], None]]:
    yield from steps_of(trainer_of(folder, module, rows, train, device))


def plain(module: nn.Module, rows: Rows, train: Train, device: str) -> Iterator[Callable[[], None]]:
    """What one writes by hand: the same batches, rates, clipping and optimizer."""
    module.to(device)
    batches = Batches(rows.lengths, train.seed, train.batch_size)
    decays = [p for p in module.parameters() if p.ndim > 1], [p for p in module.parameters() if p.ndim == 1]
    groups = [{"params": decays[0], "weight_decay": train.weight_decay}, {"params": decays[1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, train.steps)
    module.train()

    def step(ids: np.ndarray) -> None:
        batch = {name: tensor.to(device) for name, tensor in rows.batch(tuple(map(int, ids))).items()}
        loss = nn.functional.cross_entropy(module(batch["inputs"]), batch["labels"])
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), train.clip_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    for _, steps in batches.after(0, train.steps):
        for _, ids in steps:
            yield lambda ids=ids: step(ids)


def measured(module: nn.Module, inputs: torch.Tensor, batch: int, turn: int, turns: int, device: str = "cpu") -> dict[str, float]:
    optimizer = {"use": "torch.optim.AdamW", "arguments": {"fused": True}}
    steps = turn * (turns + 2)
    train = Train(batch_size=batch, steps=steps, evaluate_every=10 * steps, learning_rate=1e-4, optimizer=optimizer, warmup=0)
    with tempfile.TemporaryDirectory() as folder:
        rows = Rows(inputs)
        both = {
            "ours": ours(Path(folder), module, rows, train, device),
            "plain": plain(copy.deepcopy(module), rows, train, device),
        }

        def some(steps: Iterator[Callable[[], None]]) -> None:
            for step in itertools.islice(steps, turn):
                step()
            if device == "cuda":
                torch.cuda.synchronize()

        spent = side_by_side({name: partial(timed, partial(some, steps)) for name, steps in both.items()}, turns, warm_up=1)
    each = {f"{name}, ms": round(1000 * statistics.median(each.seconds for each in of) / turn, 3) for name, of in spent.items()}
    return each | ratios(*spent.values()) | {"turns": turns}


def measured_small(blocks: int, turns: int, turn: int = 100, device: str = "cpu") -> dict[str, float]:
    layers = [layer for _ in range(blocks) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())]
    return measured(nn.Sequential(*layers, nn.Linear(WIDTH, 2)), torch.randn(4096, WIDTH), 32, turn, turns, device)


def main() -> None:
    parser = command_line("training_loop", __doc__)
    parser.add_argument("--turns", type=int, default=20, help="turns of each loop (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device to train on (default: %(default)s)")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    some = 4
    blocks = max(1, round(some / measured_small(some, 2, device=args.device)["plain, ms"]))
    found = {
        "small": measured_small(blocks, args.turns, device=args.device) | {"blocks": blocks},
        "MiniLM": measured(Logits(), torch.randint(5, 30000, (512, 32)), 16, 4, args.turns, args.device),
    }
    write_figures(args.output, {"device name": device_name(args.device)} | found)
    judge({f"{name}, at most {goal:.2f}": found[name]["ratio"] <= goal for name, goal in GOALS.items()})


if __name__ == "__main__":
    main()
