"""Checkpoints of full tensors, gathered and written by the first rank: one file of weights and one of optimizer state per module."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from snaketrain.models.weights import tied_names
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.shards import shard_like
from snaketrain.training.checkpoints import stateful_files
from snaketrain.training.checkpoints.exported import AVERAGED
from snaketrain.training.checkpoints.publishing import Alone, Peers
from snaketrain.training.checkpoints.rank_state import averaged_tensors
from snaketrain.training.checkpoints.snapshot import Snapshot
from snaketrain.training.state import Stateful, TrainState
from snaketrain.training.weight_average import averages_in_place


class WholeTensors:
    """`<module>.safetensors`, with averages `<module>.averaged.safetensors`, `<module>.optimizer.pt`, and `<name>.memory.pt` for each Stateful."""

    every_rank_writes = False

    def __init__(self) -> None:
        self.peers: Peers = Alone()
        self._snapshot = Snapshot()

    def collect(self, state: TrainState, stateful: dict[str, Stateful]) -> Callable[[Path], list[Path]]:
        self._snapshot.begin()
        strategy, keep = state.strategy, self._snapshot.keep
        weights: dict[str, dict[str, Tensor]] = {}
        others = stateful_files.collect(stateful, self._snapshot, strategy.rank == 0)
        for name, module in state.modules.items():
            weights[f"{name}.safetensors"] = self._weights(state, module)
            others[f"{name}.optimizer.pt"] = strategy.optimizer_state(module, state.optimizers[name], keep)
        with averages_in_place(state):  # so that they are gathered as the weights are: rank 0 may hold those of some layers alone
            weights |= {f"{name}{AVERAGED}": self._weights(state, state.modules[name]) for name in state.averages}
        return partial(_write, weights, others)

    def _weights(self, state: TrainState, module: nn.Module) -> dict[str, Tensor]:
        weights, tied = state.strategy.weights(module), tied_names(state.strategy.unwrapped(module))
        if state.rank != 0:
            return {}
        # gathered from several ranks, tied weights no longer share their memory
        untied = _untied({name: tensor for name, tensor in weights.items() if name not in tied})
        return {name: self._snapshot.keep(tensor) for name, tensor in untied.items()}


def load_averages(strategy: Strategy, module: nn.Module, name: str, folder: Path) -> dict[str, Tensor]:
    if not (file := folder / f"{name}{AVERAGED}").is_file():
        return {}
    saved = load_file(file)
    return {key: shard_like(saved[key], tensor) for key, tensor in averaged_tensors(strategy.unwrapped(module)).items()}


def load_module(strategy: Strategy, module: nn.Module, optimizer: Optimizer, name: str, folder: Path) -> None:
    # both are memory-mapped, so that ranks on one machine share the memory
    weights = load_file(folder / f"{name}.safetensors")
    optimizer_state = torch.load(folder / f"{name}.optimizer.pt", weights_only=True, mmap=True)
    weights |= {tied: weights[kept] for tied, kept in tied_names(strategy.unwrapped(module)).items() if kept in weights}
    strategy.load_state(module, optimizer, weights, optimizer_state)


def _write(weights: dict[str, dict[str, Tensor]], others: dict[str, object], folder: Path) -> list[Path]:
    for name, tensors in weights.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    for name, content in others.items():
        torch.save(content, folder / name)
    return [folder / name for name in (*weights, *others)]


def _untied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory only once, as safetensors requires; under the name that comes first."""
    kept: dict[object, str] = {}
    for name in sorted(weights):
        kept.setdefault((weights[name].data_ptr(), weights[name].shape) if weights[name].numel() else name, name)
    return {name: weights[name] for name in kept.values()}
