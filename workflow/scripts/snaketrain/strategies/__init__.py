"""How many processes share one training: a file for each way, all with the interface of `base.Strategy`.

Ground floor: what the workflow must know before anything starts. Only `make_strategy` imports torch.
"""

from pathlib import Path
from typing import Any

from snaketrain.loading import find, load
from snaketrain.ranks import Ranks

OF_ONE_PROCESS = ("single", "data_parallel")
DEGREES = {"hsdp": "shard", "tensor_parallel": "tensor"}  # the argument that must divide the number of processes


def make_strategy(use: str, arguments: dict[str, Any], **where: Any) -> Any:
    """The strategy object; only the processes that train or evaluate call it. `where`: device and precision."""
    return load(_resolved(use, Ranks.of_environment().world_size), "strategies")(**arguments, **where)


def _resolved(use: str, processes: int) -> str:
    return ("ddp" if processes > 1 else "single") if use == "auto" else use


def strategy_files(use: str) -> list[Path]:
    """The code that `train.strategy` may run; the same for any number of processes."""
    names = ("single", "ddp") if use == "auto" else (use,)
    return [file for name in names if (file := find(name, "strategies")[0])]


def misfit(use: str, arguments: dict[str, Any], processes: int) -> str | None:
    """Why the number of processes does not suit the strategy, if it does not."""
    if use in OF_ONE_PROCESS and processes > 1:
        return f"train.strategy `{use}` is one process, but compute.processes is {processes}: use `ddp` or `auto`, or one process"
    if use == "auto" and arguments:
        return "train.strategy `auto` takes no arguments: name the strategy that they are meant for"
    name = DEGREES.get(use)
    degree = arguments.get(name) if name else None
    if isinstance(degree, int) and (degree < 1 or processes % degree):
        return (
            f"train.strategy.arguments.{name} is {degree}, which does not divide compute.processes ({processes}): "
            "the processes are arranged in groups of that size, so make one a multiple of the other"
        )
    return None
