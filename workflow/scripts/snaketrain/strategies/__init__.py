"""How many processes share one training: a file for each way, all with the interface of `base.Strategy`.

Ground floor: what the workflow must know before anything starts. Only `make_strategy` imports torch.
"""

from pathlib import Path
from typing import Any

from snaketrain.config.references import find, load
from snaketrain.runtime.ranks import Ranks

OF_ONE_PROCESS = ("single", "data_parallel")
ON_GPUS_ONLY = ("fairscale_fsdp",)
DEGREES = {"hsdp": "shard", "tensor_parallel": "tensor"}  # the argument that must divide the number of processes


def make_strategy(use: str, arguments: dict[str, Any], **where: Any) -> Any:
    """The strategy object; only the processes that train or evaluate call it. `where`: device and precision."""
    strategy = load(_resolved(use, Ranks.of_environment().world_size), "strategies")(**arguments, **where)
    if (kind := strategy.device.type) not in strategy.devices:
        needed = "needs GPUs" if kind == "cpu" else f"runs on {' or '.join(strategy.devices)} only"
        other = "use `fsdp`, which needs none" if kind == "cpu" else f"set compute.device to {strategy.devices[0]}"
        raise SystemExit(f"train.strategy `{use}` {needed}, and the device is {strategy.device}: {other}.")
    return strategy


def _resolved(use: str, processes: int) -> str:
    return ("ddp" if processes > 1 else "single") if use == "auto" else use


def strategy_files(use: str) -> list[Path]:
    """The code that `train.strategy` may run; the same for any number of processes."""
    names = ("single", "ddp") if use == "auto" else (use,)
    return [file for name in names if (file := find(name, "strategies")[0])]


def misfit(use: str, arguments: dict[str, Any], processes: int, device: str = "auto") -> str | None:
    """Why the processes or the device do not suit the strategy, if they do not."""
    if use in OF_ONE_PROCESS and processes > 1:
        return f"train.strategy `{use}` is one process, but compute.processes is {processes}: use `ddp` or `auto`, or one process"
    if use == "auto" and arguments:
        return "train.strategy `auto` takes no arguments: name the strategy that they are meant for"
    if use in ON_GPUS_ONLY and device == "cpu":
        return f"train.strategy `{use}` needs GPUs, and compute.device is cpu: use `fsdp`, which needs none"
    name = DEGREES.get(use)
    degree = arguments.get(name) if name else None
    if degree is not None and (not isinstance(degree, int) or degree < 1 or processes % degree):
        return (
            f"train.strategy.arguments.{name} is {degree}, which does not divide compute.processes ({processes}): "
            "the processes are arranged in groups of that size, so make one a multiple of the other"
        )
    if use == "tensor_parallel" and arguments.get("shard") and shares(use, arguments, processes) == 1:
        return (
            f"train.strategy.arguments.shard is set, but train.strategy.arguments.tensor takes all of compute.processes ({processes}): "
            "nothing is left to be shared out, so give more processes, a smaller `tensor`, or no `shard`"
        )
    return None


def shares(use: str, arguments: dict[str, Any], processes: int) -> int:
    """Into how many shares the examples of a batch are cut; those who hold parts of one model see the same ones."""
    return processes // (arguments.get("tensor") or processes) if use == "tensor_parallel" else processes
