"""Norm and overflow of sharded gradients, computed as if they were full tensors."""

import logging
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from snaketrain.models.unread import ATTRIBUTE, Source, UnreadWeights


def local_tensor(tensor: Tensor | None) -> Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """Gathered from all ranks where they hold shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor that all ranks have, in memory of its own."""
    if isinstance(like, DTensor):
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole.to(like.device, copy=True)


@torch.no_grad()
def clip_sharded(parameters: Iterable[nn.Parameter], longest: float, others: dist.ProcessGroup | None = None) -> Tensor:
    """clip_grad_norm_ for parameters that are sharded over different device meshes, or not at all.

    `others`: a group of ranks each of which has other parameters of the same model.
    """
    every, alike = list(parameters), dict[DeviceMesh | None, list[nn.Parameter]]()
    for parameter in every:
        if parameter.grad is not None:
            alike.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in members if p.grad is not None]) for members in alike.values()]
    norms = [full_tensor(norm) for norm in norms] or [torch.zeros((), device=every[0].device)]  # a stage of a pipeline may be frozen
    norm: Tensor = torch.stack(norms).norm()
    if others:
        dist.all_reduce(squared := norm.double().square(), group=others)
        norm = squared.sqrt().to(norm.dtype)
    for members in alike.values():
        torch.nn.utils.clip_grads_with_norm_(members, longest, norm)
    return norm


class ShardedScaler(ShardedGradScaler):
    """A gradient scaler for fp16: an overflow on one rank makes all ranks skip the step."""

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool = True
    ) -> dict[torch.device, Tensor]:
        parts = [[SimpleNamespace(grad=local_tensor(p.grad)) for p in group["params"]] for group in optimizer.param_groups]
        local = SimpleNamespace(param_groups=[{"params": members} for members in parts])
        return super()._unscale_grads_(local, inv_scale, found_inf, allow_fp16)  # type: ignore[arg-type]  # only groups and gradients are read


# --- Reads weights from files into the shards that a rank keeps, of each tensor only its slice.

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each rank reads for itself


class TheseFiles(FileSystem):
    """All that the reader sees of a folder, which may hold other weights as well."""

    def __init__(self, files: Iterable[Path]):
        self.files = [str(file) for file in files]

    def ls(self, path: object) -> list[str]:
        return self.files


@torch.no_grad()
def read_slices(module: nn.Module, unread: UnreadWeights) -> None:
    """Fill a sharded module that has memory, but no values yet."""
    state = module.state_dict()
    reader = HuggingFaceStorageReader(str(unread.files[0].parent))
    reader.fs = TheseFiles(unread.files)
    here = {name: source for name, source in unread.sources.items() if name in state}  # other stages of a pipeline hold others
    wanted = {key: tensor for name, source in here.items() for key, tensor in destinations(state[name], source)}
    load(wanted, storage_reader=reader, no_dist=True)
    for name, value in ((name, value) for name, value in unread.initialized.items() if name in state):
        local, own = local_tensor(state[name]), local_tensor(shard_like(value, state[name]))
        assert local is not None and own is not None
        local.copy_(own)
    delattr(module, ATTRIBUTE)
    logging.info("%d tensors are read by slices; %d are not in the files and are initialised", len(here), len(unread.initialized))


def destinations(tensor: Tensor, source: Source) -> Iterator[tuple[str, Tensor]]:
    """Where what is in the files belongs. Experts are cut along the first dimension alone, so that a rank reads its own as a whole."""
    if isinstance(source, str):
        yield source, tensor
        return
    local, first = tensor, 0
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        first = tensor.__create_chunk_list__()[0].offsets[0] if len(local) else 0  # type: ignore[no-untyped-call]  # torch has no types for it
        assert local.shape[1:] == tensor.shape[1:], "FSDP2 and `expert` cut the first dimension"
    for expert, keys in zip(local, source[first : first + len(local)], strict=True):
        yield from zip(keys, expert.chunk(len(keys)), strict=True)
