"""The device of a rank: a GPU that was asked for and is missing is an error, never a silent training on the CPU."""

import os
import platform

import torch

from snaketrain.runtime.ranks import Ranks


def device_of(asked: str) -> torch.device:
    """`auto` takes a GPU where there is one."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda":
        check_gpus()
    return torch.device(asked)


def check_gpus() -> None:
    """Whether this process sees the GPU that is to be its own."""
    ranks, seen = Ranks.of_environment(), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen > (ranks.local or 0):
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = f"sees {seen} GPUs, fewer than processes on this node" if seen else "finds no GPU"
    raise SystemExit(
        f"compute.device: rank {ranks.rank} on {platform.node()} {found} (CUDA_VISIBLE_DEVICES is {'not set' if visible is None else repr(visible)}). "
        f"Ask for one GPU for each process with compute.gpus, and see with `nvidia-smi` whether the node has them and with "
        f"`python -c 'import torch; print(torch.version.cuda)'` whether torch ({torch.__version__}) is built for CUDA; or set compute.device: cpu "
        "and compute.gpus: 0 to train on CPUs."
    )
