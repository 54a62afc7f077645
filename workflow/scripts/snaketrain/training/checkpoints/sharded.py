"""Checkpoints in shards: each rank writes what it holds, through torch.distributed.checkpoint, and reads only what it needs.

weights/     the tensors of the modules, under `<module>.<name>`
averages/    averages of them, if the training keeps any
optimizer/   the state of their parameters, under `<module>.<name>.<key>`, and `<module>.groups.pt`, the parameter groups

Any strategy loads them on any number of ranks. `.metadata` in both folders is a pickle, so that `restore` reads it only after its
digest was compared with the checkpoint's listing.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from snaketrain.models.weights import tied_names
from snaketrain.strategies.base import Strategy
from snaketrain.training.checkpoints import stateful_files
from snaketrain.training.checkpoints.publishing import Alone, Peers
from snaketrain.training.checkpoints.rank_state import (
    averaged_tensors,
    by_parameter,
    empty,
    empty_moments,
    fill,
    gathered,
    held,
    own_weights,
    stored,
)
from snaketrain.training.checkpoints.snapshot import Snapshot
from snaketrain.training.state import Stateful, TrainState

WEIGHTS, AVERAGES, OPTIMIZER = "weights", "averages", "optimizer"
METADATA = ".metadata"
T = TypeVar("T")


class Group:
    """All ranks, in a process group of its own: while a checkpoint is written, the training uses the others."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))
        self.rank = dist.get_rank()

    def all_gather_object(self, item: T) -> list[T]:
        items = [item] * dist.get_world_size()
        dist.all_gather_object(items, item, group=self.group)
        return items


class Sharded:
    every_rank_writes = True

    def __init__(self, strategy: Strategy):
        self.group = Group() if strategy.world_size > 1 else None
        self.peers: Peers = self.group or Alone()
        options = StagingOptions(
            use_pinned_memory=torch.cuda.is_available(), use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options)  # keeps the memory of a copy for the next one
        self._snapshot = Snapshot()

    def collect(self, state: TrainState, stateful: dict[str, Stateful]) -> Callable[[Path], list[Path]]:
        self._snapshot.begin()
        files = stateful_files.collect(stateful, self._snapshot, state.rank == 0)
        parts: dict[str, dict[str, object]] = {WEIGHTS: {}, OPTIMIZER: {}}
        for name, module in state.modules.items():
            found = (held if state.strategy.dcp_compatible else gathered)(state.strategy, module, state.optimizers[name])
            parts[WEIGHTS] |= {f"{name}.{key}": tensor for key, tensor in found.weights.items()}
            parts[OPTIMIZER] |= {f"{name}.{key}": value for key, value in found.moments.items()}
            files[groups_file(name)] = found.param_groups
        if state.averages:
            parts[AVERAGES] = {f"{name}.{key}": tensor for name, found in state.averages.items() for key, tensor in found.items()}
        staged = self._stager.stage(parts)
        assert isinstance(staged, dict)  # a future only where staging is asynchronous
        return partial(self._write, staged, files)

    def _write(self, parts: dict[str, dict[str, object]], files: dict[str, object], folder: Path) -> list[Path]:
        """All ranks take part in both calls of `dcp.save`; nothing may fail on one rank alone between them."""
        group = self.group.group if self.group else None
        for part, content in parts.items():
            save(content, storage_writer=FileSystemWriter(folder / part, sync_files=False), process_group=group, no_dist=group is None)
        written = [path for part in parts for path in sorted((folder / part).glob(f"__{self.peers.rank}_*"))]
        if self.peers.rank > 0:
            return written
        for name, small in files.items():
            torch.save(small, folder / name)
        return [*written, *(folder / part / METADATA for part in parts), *(folder / name for name in files)]


def load_averages(strategy: Strategy, module: nn.Module, name: str, folder: Path) -> dict[str, Tensor]:
    if not (folder / AVERAGES).is_dir():
        return {}
    room = {key: torch.empty_like(tensor) for key, tensor in averaged_tensors(strategy.unwrapped(module)).items()}
    return fill(folder / AVERAGES, name, room)


def load_module(strategy: Strategy, module: nn.Module, optimizer: Optimizer, name: str, folder: Path) -> None:
    plain, groups = strategy.unwrapped(module), torch.load(folder / groups_file(name), weights_only=True)
    moments = stored(folder / OPTIMIZER, name)
    if strategy.dcp_compatible:
        fill(folder / WEIGHTS, name, own_weights(plain))
        parameters = dict(plain.named_parameters())
        found = fill(folder / OPTIMIZER, name, empty_moments(optimizer, parameters, moments))
        strategy.load_optimizer_state(optimizer, parameters, by_parameter(found, groups))
    else:
        weights = fill(folder / WEIGHTS, name, empty(stored(folder / WEIGHTS, name)))
        weights |= {tied: weights[kept] for tied, kept in tied_names(plain).items()}
        strategy.load_state(module, optimizer, weights, by_parameter(fill(folder / OPTIMIZER, name, empty(moments)), groups))


def groups_file(module: str) -> str:
    return f"{OPTIMIZER}/{module}.groups.pt"
