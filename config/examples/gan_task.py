"""For gan.yaml: a generator and a discriminator. A custom task with its data, in one file."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from snaketrain.data.loading.training_data import Batch
from snaketrain.tasks.base import Modules, Objective, Task

MODES, NOISE = 8, 8


class Ring(torch.utils.data.Dataset):
    """Points around eight modes on a circle, each with noise as the generator's input.

    The noise is new in each epoch, and the same on any number of processes, like everything that a dataset draws.
    """

    def __init__(self, count: int):
        draw = torch.Generator().manual_seed(0)
        angles = torch.randint(MODES, (count,), generator=draw) * 2 * math.pi / MODES
        self.points = torch.stack([angles.cos(), angles.sin()], 1) + 0.1 * torch.randn(count, 2, generator=draw)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"points": self.points[index], "noise": torch.randn(NOISE)}


def perceptron(before: int, width: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(before, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, after))


class Gan(Task):
    metrics: Mapping[str, str] = {"distance": "min"}  # lower is better

    def build(self, model: dict[str, Any], folder: Path | None, data: dict[str, Any]) -> Modules:
        width = model["arguments"]["width"]
        draw = torch.Generator().manual_seed(0)
        self.frequencies = torch.randn(2, 64, generator=draw) * 3
        return {"generator": perceptron(NOISE, width, 2), "discriminator": perceptron(2, width, 1)}

    def objectives(self, modules: Modules) -> list[Objective]:
        """For each batch the discriminator is updated first, then the generator; each learns only from its own loss."""
        return [(self.discriminate, ["discriminator"]), (self.generate, ["generator"])]

    def discriminate(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        made = modules["generator"](batch["noise"]).detach()
        real, false = modules["discriminator"](torch.cat([batch["points"], made])).chunk(2)
        return {"discriminator": softplus(-real).sum() + softplus(false).sum()}

    def generate(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        made = modules["generator"](batch["noise"])
        return {"generator": softplus(-modules["discriminator"](made)).sum()}

    # the distance between generated and real points: the difference of their mean random Fourier features

    def outputs(self, modules: Modules, batch: Batch) -> Tensor:
        return modules["generator"](batch["noise"])

    def evaluation_step(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        real, made = self.waves(batch["points"]).sum(0), self.waves(outputs).sum(0)
        return {"count": torch.tensor(len(outputs)), "real": real, "made": made}

    def waves(self, points: Tensor) -> Tensor:
        turned = points.float() @ self.frequencies.to(points.device)
        return torch.cat([turned.cos(), turned.sin()], 1)

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return {"distance": float((sums["real"] - sums["made"]).square().mean().sqrt() / sums["count"])}

    def predict(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"made": outputs}
