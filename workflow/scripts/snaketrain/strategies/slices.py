"""Reads weights from files into the shards that a rank keeps, of each tensor only its slice."""

import logging
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from snaketrain.models.unread import ATTRIBUTE, Source, UnreadWeights
from snaketrain.strategies.shards import local_tensor, shard_like

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
