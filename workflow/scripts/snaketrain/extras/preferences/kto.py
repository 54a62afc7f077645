"""The loss of KTO: an answer is good or bad by how its reward compares with a point that the whole batch, of all ranks, decides."""

import math

import torch
import torch.distributed as dist
from torch import Tensor


def kto_losses(chosen: Tensor, rejected: Tensor, point: float, desirable: float, undesirable: float) -> Tensor:
    """For each pair the mean over its two answers, from their rewards."""
    return (desirable * (1 - torch.sigmoid(chosen - point)) + undesirable * (1 - torch.sigmoid(point - rejected))) / 2


def point_of_batch(ids: Tensor, rewards: Tensor) -> float:
    """The mean reward of answers that do not belong to their prompt, which estimates how far the model is from the reference; at least 0.

    An example that several ranks have, such as where one would have none, counts once; the sum is exact, so that their number does not matter.
    """
    found = dict(zip(ids.tolist(), rewards.tolist(), strict=True))
    if dist.is_initialized():
        of_ranks: list[dict[int, float]] = [{}] * dist.get_world_size()
        dist.all_gather_object(of_ranks, found)
        found = {number: reward for each in of_ranks for number, reward in each.items()}
    return max(0.0, math.fsum(found.values()) / len(found))
