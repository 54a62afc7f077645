"""For segmentation.yaml: noisy pictures of a disc and a frame, each pixel of which belongs to one or to the background."""

import torch
from torch import Tensor, nn

BACKGROUND, DISC, FRAME = range(3)


class Shapes(torch.utils.data.Dataset):
    """Picture `index` is the same in every process and epoch."""

    def __init__(self, count: int, size: int = 20, noise: float = 0.3):
        self.count, self.size, self.noise = count, size, noise
        self.rows, self.columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(index)
        mask = torch.full((self.size, self.size), BACKGROUND)
        for kind in (DISC, FRAME):
            (row, column), radius = torch.randint(4, self.size - 4, (2,), generator=draw), int(torch.randint(3, 6, (1,), generator=draw))
            down, right = self.rows - row, self.columns - column
            distance = torch.maximum(down.abs(), right.abs())
            mask[down.square() + right.square() <= radius**2 if kind == DISC else (distance <= radius) & (distance > radius - 2)] = kind
        # both are equally bright: only their shapes differ
        picture = (mask != BACKGROUND).float() + self.noise * torch.randn(mask.shape, generator=draw)
        return {"picture": picture[None], "mask": mask}


class SmallUnet(nn.Module):
    """Down to a quarter of the size and up again, with a skip connection that keeps the outlines."""

    def __init__(self, channels: int = 8, classes: int = 3):
        super().__init__()
        self.first = layer(1, channels)
        self.inside = nn.Sequential(
            nn.MaxPool2d(2), layer(channels, 2 * channels), nn.MaxPool2d(2), layer(2 * channels, 2 * channels), nn.Upsample(scale_factor=4)
        )
        self.last = nn.Sequential(layer(3 * channels, channels), nn.Conv2d(channels, classes, 1))

    def forward(self, picture: Tensor) -> Tensor:
        found = self.first(picture)
        return self.last(torch.cat([found, self.inside(found)], dim=1))


def layer(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU())
