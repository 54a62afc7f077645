"""What a replay is compared by finds each fault that is planted: a flipped bit, an edited line of the journal, a perturbed gradient."""

import copy
import math
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from unit.points import make

from snaketrain.extras.reproduce.verify import Interval, compare
from snaketrain.runtime.manifests import write_json
from snaketrain.strategies.base import Strategy
from snaketrain.training.checkpoints.publishing import LISTING, damage, flushed, read_listing

FIRST, LAST = 10, 15
TRIALS = [pytest.param(number, marks=pytest.mark.slow) if number >= 24 else number for number in range(100)]


class Perturbed(Strategy):
    """One number of the gradients of one step is off by a thousandth."""

    def __init__(self, step: int = 0, number: int = 0):
        super().__init__("cpu", "fp32")
        self.at, self.number, self.taken = step, number, 0

    def forward_backward(self, *given: Any) -> Any:
        losses, self.taken = super().forward_backward(*given), self.taken + 1
        if self.taken == self.at:
            gradients = [p.grad.view(-1) for _, p in given[0].modules["model"].named_parameters()]
            numbers = [(gradient, place) for gradient in gradients for place in gradient.nonzero().flatten().tolist()]
            gradient, place = numbers[self.number % len(numbers)]
            gradient[place] *= 1.001
        return losses


def trained(folder: Path, strategy: Strategy | None = None) -> SimpleNamespace:
    """As verify sees a training and a replay of it."""
    trainer = make(folder, dropout=0.1, strategy=strategy)
    trainer.fit()
    events = [{"event": event, **content} for event, content in trainer.journal.lines]
    return SimpleNamespace(folder=folder, made=folder, events=events, metrics=["accuracy"])


@pytest.fixture(scope="module")
def replay(tmp_path_factory) -> SimpleNamespace:
    made = trained(tmp_path_factory.mktemp("replay"))
    return SimpleNamespace(made=made.folder, events=lambda: made.events)


@pytest.fixture
def recorded(replay, tmp_path) -> SimpleNamespace:
    """A copy, in which a test may plant a fault."""
    shutil.copytree(replay.made / "checkpoints", tmp_path / "checkpoints")
    return SimpleNamespace(folder=tmp_path, events=copy.deepcopy(replay.events()), metrics=["accuracy"])


def differences(recorded: SimpleNamespace, replay: SimpleNamespace, first: int = FIRST) -> list[str]:
    interval = Interval(first, LAST)
    compare(interval, recorded, replay)
    assert interval.compared > 20
    return interval.differences


def test_equal_trainings_are_equal(replay, tmp_path):
    assert differences(trained(tmp_path), replay, first=0) == []


def flip(tensor: Tensor, draw: random.Random) -> None:
    bits = tensor.view(-1).view(torch.uint8)
    bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)


def flipped(checkpoint: Path, draw: random.Random) -> str:
    """Flip a bit in a tensor of the weights or of the optimizer's state, and return where."""
    if draw.random() < 0.5:
        file, tensors = checkpoint / "model.safetensors", load_file(checkpoint / "model.safetensors")
        name = draw.choice(sorted(tensors))
        flip(tensors[name], draw)
        save_file(tensors, file, metadata={"format": "pt"})
    else:
        file = checkpoint / "model.optimizer.pt"
        saved = torch.load(file, weights_only=True)
        parameter = draw.choice(sorted(saved["state"]))
        key = draw.choice(sorted(saved["state"][parameter]))
        flip(saved["state"][parameter][key], draw)
        torch.save(saved, file)
        name = f"{parameter}.{key}"
    return f"{file.stem}: {name}: "


def list_again(checkpoint: Path) -> None:
    """As if what is there now had been written."""
    write_json(checkpoint / LISTING, {name: flushed(checkpoint / name) for name in read_listing(checkpoint) or {}})


@pytest.mark.parametrize("trial", TRIALS)
def test_each_flipped_bit_is_found_though_the_digests_match(recorded, replay, trial):
    checkpoint = recorded.folder / f"checkpoints/step-{LAST:08d}"
    where = flipped(checkpoint, random.Random(trial))
    assert "is not what was written" in (damage(checkpoint) or "")
    list_again(checkpoint)
    assert damage(checkpoint) is None
    (found,) = differences(recorded, replay)
    assert found.startswith(f"step {LAST}: {where}element ") and found.endswith(" replayed")


@pytest.mark.parametrize("trial", TRIALS)
def test_each_edited_line_of_the_journal_is_found(recorded, replay, trial):
    draw = random.Random(trial)
    lines = [event for event in recorded.events if event["event"] in ("train", "eval") and FIRST < event["step"] <= LAST]
    line = draw.choice(lines)
    name = draw.choice(["loss"] if line["event"] == "eval" else ["loss", "gradient_norm", "learning_rate"])
    line["metrics"] = line["metrics"] | {name: math.nextafter(line["metrics"][name], draw.choice([-math.inf, math.inf]))}
    (found,) = differences(recorded, replay)
    assert found.startswith(f"step {line['step']}: {line['event']}/{name} is {line['metrics'][name]!r} in the journal")


def test_lines_that_were_removed_or_added_are_found(recorded, replay):
    (line,) = (event for event in recorded.events if event["event"] == "train" and event["step"] == 12)
    recorded.events.remove(line)
    assert [each for each in differences(recorded, replay) if "step 12: train/loss is None in the journal" in each]
    assert differences(recorded, replay, first=12) == []


@pytest.mark.parametrize("trial", TRIALS)
def test_each_perturbed_gradient_is_found(tmp_path, replay, trial):
    """At a random step of the interval from the beginning; what was logged before is equal."""
    draw = random.Random(trial)
    step = draw.randint(1, LAST)
    found = differences(trained(tmp_path, Perturbed(step, draw.randrange(10_000))), replay, first=0)
    assert any(each.startswith(f"step {LAST}: model.optimizer: ") for each in found)
    assert all(int(each.split()[1].rstrip(":")) >= step for each in found)
