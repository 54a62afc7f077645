"""Reads weights from files into the shards that a rank keeps, of each tensor only its slice."""

import logging
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from snaketrain.models.unread import ATTRIBUTE, UnreadWeights
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
    here = {name: key for name, key in unread.keys.items() if name in state}  # other stages of a pipeline hold others
    load({key: state[name] for name, key in here.items()}, storage_reader=reader, no_dist=True)
    for name, value in ((name, value) for name, value in unread.initialized.items() if name in state):
        local, own = local_tensor(state[name]), local_tensor(shard_like(value, state[name]))
        assert local is not None and own is not None
        local.copy_(own)
    delattr(module, ATTRIBUTE)
    logging.info("%d tensors are read by slices; %d are not in the files and are initialised", len(here), len(unread.initialized))
