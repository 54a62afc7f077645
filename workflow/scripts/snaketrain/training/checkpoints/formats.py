"""Which format a checkpoint has, and which one a training saves."""

from pathlib import Path
from typing import Literal, TypeAlias

from snaketrain.strategies.base import Strategy
from snaketrain.training.checkpoints import sharded, stateful_files, whole_tensors
from snaketrain.training.checkpoints.sharded import Sharded
from snaketrain.training.checkpoints.whole_tensors import WholeTensors
from snaketrain.training.state import Stateful, TrainState

FormatName: TypeAlias = Literal["auto", "whole", "sharded"]


def make_format(name: FormatName, strategy: Strategy) -> WholeTensors | Sharded:
    """`auto` is `sharded` where no rank holds the whole model."""
    if name == "auto":
        name = "sharded" if strategy.shards_model and strategy.world_size > 1 else "whole"
    if name not in ("whole", "sharded"):
        raise SystemExit(f"checkpoint_format: is {name!r}, which is not one of auto, whole, sharded.")
    return Sharded(strategy) if name == "sharded" else WholeTensors()


def is_sharded(checkpoint: Path) -> bool:
    return (checkpoint / sharded.WEIGHTS).is_dir()


def load_checkpoint(state: TrainState, stateful: dict[str, Stateful], folder: Path) -> None:
    """All ranks take part."""
    format = sharded if is_sharded(folder) else whole_tensors
    state.averages.clear()  # of weights after those in the folder, which has none perhaps
    for name, module in state.modules.items():
        format.load_module(state.strategy, module, state.optimizers[name], name, folder)
        if averages := format.load_averages(state.strategy, module, name, folder):
            state.averages[name] = averages
    stateful_files.restore(stateful, folder)
