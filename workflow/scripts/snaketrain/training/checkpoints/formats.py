"""The two formats of a checkpoint's tensors: whole, written by the first rank, or in shards, written by the ranks that hold them.

In both, each module is loaded under any strategy and on any number of ranks, and everything else that a checkpoint holds, a `Stateful`,
is one small file `<name>.memory.pt`, written by rank 0.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from snaketrain.models.weights import tied_names
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.shards import shard_like
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
from snaketrain.training.checkpoints.ranking import AVERAGED, AVERAGES, WEIGHTS, is_sharded
from snaketrain.training.state import Stateful, TrainState
from snaketrain.training.weight_average import averages_in_place

FormatName: TypeAlias = Literal["auto", "whole", "sharded"]
Write: TypeAlias = Callable[[Path], list[Path]]  # writes what was copied into a folder, while training continues
OPTIMIZER, METADATA = "optimizer", ".metadata"


def make_format(name: FormatName, strategy: Strategy) -> "WholeTensors | Sharded":
    """`auto` is `sharded` where no rank holds the whole model."""
    if name == "auto":
        name = "sharded" if strategy.shards_model and strategy.world_size > 1 else "whole"
    if name not in ("whole", "sharded"):
        raise SystemExit(f"checkpoint_format: is {name!r}, which is not one of auto, whole, sharded.")
    return Sharded(strategy) if name == "sharded" else WholeTensors()


def load_checkpoint(state: TrainState, stateful: dict[str, Stateful], folder: Path) -> None:
    """All ranks take part."""
    format = Sharded if is_sharded(folder) else WholeTensors
    state.averages.clear()  # of weights after those in the folder, which has none perhaps
    for name, module in state.modules.items():
        format.load_module(state.strategy, module, state.optimizers[name], name, folder)
        if averages := format.load_averages(state.strategy, module, name, folder):
            state.averages[name] = averages
    for name, part in stateful.items():
        if (folder / f"{name}.memory.pt").is_file():  # older code may have saved other parts
            part.load_state_dict(torch.load(folder / f"{name}.memory.pt", weights_only=True))


class Snapshot:
    """A copy of the training state, which is written while training continues.

    It reuses the memory of the last copy, since allocating takes longer than copying. Only one copy exists at a time: the next overwrites
    it, tensor by tensor in the same order.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._before: Iterator[Tensor] = iter(())

    def begin(self, stateful: dict[str, Stateful], writes: bool) -> dict[str, object]:
        """The names and contents of small files, on the rank that writes them. All ranks take part: some parts gather what the ranks hold."""
        self._before, self._kept = iter(self._kept), []
        saved = {f"{name}.memory.pt": part.state_dict() for name, part in stateful.items()}
        return {name: tree_map_only(Tensor, self.keep, content) for name, content in saved.items()} if writes else {}

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU."""
        place = next(self._before, None)
        if place is None or (place.shape, place.dtype) != (tensor.shape, tensor.dtype):
            place = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._kept.append(place.copy_(tensor.detach()))
        return place


class WholeTensors:
    """`<module>.safetensors`, with averages `<module>.averaged.safetensors`, and `<module>.optimizer.pt`."""

    group = None  # rank 0 writes by itself

    def __init__(self) -> None:
        self._snapshot = Snapshot()

    def collect(self, state: TrainState, stateful: dict[str, Stateful]) -> Write | None:
        """Copy the state; all ranks take part. None on a rank that writes nothing."""
        strategy, weights = state.strategy, dict[str, dict[str, Tensor]]()
        others = self._snapshot.begin(stateful, strategy.rank == 0)
        for name, module in state.modules.items():
            weights[f"{name}.safetensors"] = self._weights(state, module)
            others[f"{name}.optimizer.pt"] = strategy.optimizer_state(module, state.optimizers[name], self._snapshot.keep)
        with averages_in_place(state):  # so that they are gathered as the weights are: rank 0 may hold those of some layers alone
            weights |= {f"{name}{AVERAGED}": self._weights(state, state.modules[name]) for name in state.averages}
        return partial(self._write, weights, others) if strategy.rank == 0 else None

    def _weights(self, state: TrainState, module: nn.Module) -> dict[str, Tensor]:
        weights, tied = state.strategy.weights(module), tied_names(state.strategy.unwrapped(module))
        if state.rank != 0:
            return {}
        return {name: self._snapshot.keep(tensor) for name, tensor in weights.items() if name not in tied}

    @staticmethod
    def _write(weights: dict[str, dict[str, Tensor]], others: dict[str, object], folder: Path) -> list[Path]:
        for name, tensors in weights.items():
            save_file(tensors, folder / name, metadata={"format": "pt"})
        for name, content in others.items():
            torch.save(content, folder / name)
        return [folder / name for name in (*weights, *others)]

    @staticmethod
    def load_averages(strategy: Strategy, module: nn.Module, name: str, folder: Path) -> dict[str, Tensor]:
        if not (file := folder / f"{name}{AVERAGED}").is_file():
            return {}
        saved = load_file(file)
        return {key: shard_like(saved[key], tensor) for key, tensor in averaged_tensors(strategy.unwrapped(module)).items()}

    @staticmethod
    def load_module(strategy: Strategy, module: nn.Module, optimizer: Optimizer, name: str, folder: Path) -> None:
        # both are memory-mapped, so that ranks on one machine share the memory
        weights = load_file(folder / f"{name}.safetensors")
        optimizer_state = torch.load(folder / f"{name}.optimizer.pt", weights_only=True, mmap=True)
        weights |= {tied: weights[kept] for tied, kept in tied_names(strategy.unwrapped(module)).items() if kept in weights}
        strategy.load_state(module, optimizer, weights, optimizer_state)


class Sharded:
    """Each rank writes what it holds, through torch.distributed.checkpoint, and reads only what it needs.

    weights/     the tensors of the modules, under `<module>.<name>`
    averages/    averages of them, if the training keeps any
    optimizer/   the state of their parameters, under `<module>.<name>.<key>`, and `<module>.groups.pt`, the parameter groups

    `.metadata` in each folder is a pickle, so that it is read only after its digest was compared with the checkpoint's listing.
    """

    def __init__(self, strategy: Strategy):
        # of its own, since the training uses the others while a checkpoint is written
        self.group = dist.new_group(backend="gloo", timeout=timedelta(minutes=30)) if strategy.world_size > 1 else None
        options = StagingOptions(
            use_pinned_memory=torch.cuda.is_available(), use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options)  # keeps the memory of a copy for the next one
        self._snapshot = Snapshot()

    def collect(self, state: TrainState, stateful: dict[str, Stateful]) -> Write | None:
        files = self._snapshot.begin(stateful, state.rank == 0)
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
        return partial(self._write, staged, files, state.rank)

    def _write(self, parts: dict[str, dict[str, object]], files: dict[str, object], rank: int, folder: Path) -> list[Path]:
        """All ranks take part in each call of `dcp.save`; nothing may fail on one rank alone between them."""
        for part, content in parts.items():
            writer = FileSystemWriter(folder / part, sync_files=False)
            save(content, storage_writer=writer, process_group=self.group, no_dist=self.group is None)
        written = [path for part in parts for path in sorted((folder / part).glob(f"__{rank}_*"))]
        if rank > 0:
            return written
        for name, small in files.items():
            torch.save(small, folder / name)
        return [*written, *(folder / part / METADATA for part in parts), *(folder / name for name in files)]

    @staticmethod
    def load_averages(strategy: Strategy, module: nn.Module, name: str, folder: Path) -> dict[str, Tensor]:
        if not (folder / AVERAGES).is_dir():
            return {}
        room = {key: torch.empty_like(tensor) for key, tensor in averaged_tensors(strategy.unwrapped(module)).items()}
        return fill(folder / AVERAGES, name, room)

    @staticmethod
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
