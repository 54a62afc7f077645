"""For regression_regularised.yaml: predicts the sine and cosine of an angle from noisy sensors around a circle."""

import math

import torch
from torch import Tensor, nn


class Angles(torch.utils.data.Dataset):
    def __init__(self, count: int, sensors: int = 12, noise: float = 0.3):
        draw = torch.Generator().manual_seed(0)
        angles = torch.rand(count, 1, generator=draw) * 2 * math.pi
        places = torch.arange(sensors) / sensors * 2 * math.pi
        self.readings = torch.exp(2 * torch.cos(angles - places) - 2) + noise * torch.randn(count, sensors, generator=draw)
        self.angles = angles[:, 0]

    def __len__(self) -> int:
        return len(self.angles)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        angle = self.angles[index]
        return {"readings": self.readings[index], "true_sine": angle.sin(), "true_cosine": angle.cos()}


class TwoHeads(nn.Module):
    def __init__(self, sensors: int = 12, width: int = 64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(sensors, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.sine, self.cosine = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, readings: Tensor) -> tuple[Tensor, Tensor]:
        found = self.trunk(readings)
        return self.sine(found).squeeze(1), self.cosine(found).squeeze(1)


def on_the_circle(cosine: Tensor, sine: Tensor) -> Tensor:
    """How far a predicted pair is from the circle, for each example; predictions are passed by the names of its arguments."""
    return (sine.square() + cosine.square() - 1).square()
