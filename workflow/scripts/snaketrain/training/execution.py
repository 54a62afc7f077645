"""How a training is executed: all that decides how its steps are rounded."""

import platform
import time
import timeit
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.loaded_code import imported_packages
from snaketrain.runtime.provenance import all_installed
from snaketrain.runtime.strict_json import Json, JsonObject

if TYPE_CHECKING:
    from snaketrain.config.schema import Train
    from snaketrain.strategies.base import Strategy


def execution_of(train: "Train", strategy: "Strategy") -> JsonObject:
    """How this training is executed. All ranks take part, since each may run on another machine."""
    ranks = strategy.all_gather_object((platform.node(), kind_of(strategy.device)))
    nodes, devices = ({rank[number] for rank in ranks} for number in (0, 1))
    execution: JsonObject = {
        "strategy": type(strategy).__name__, "arguments": train.strategy.arguments, "processes": strategy.world_size, "nodes": len(nodes),
        "accumulate": train.accumulate, "precision": strategy.precision, "devices": sorted(devices),
        "versions": all_installed() | imported_packages(),
    }  # fmt: skip
    return {name: hidden_in(value, name) for name, value in execution.items()}  # as it is read from a journal


def kind_of(device: torch.device) -> str:
    """Of a GPU its name and the libraries that compute on it; of a CPU its model, instruction set and threads."""
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch declares no types
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    if device.type == "cpu":
        return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return device.type


def processor() -> str:
    """The model of the CPU."""
    models = (line.partition(":")[2].strip() for line in _described_cpus() if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def gain_of_bf16() -> float | None:
    """How many times as fast this CPU multiplies matrices in bf16, measured in a fraction of a second; None where it has no instructions for that."""
    flags = {flag for line in _described_cpus() if line.startswith(("flags", "Features")) for flag in line.split()}
    if flags.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"}):
        return None

    def seconds(dtype: torch.dtype) -> float:
        one, other = torch.ones(128, 768, dtype=dtype), torch.ones(768, 3072, dtype=dtype)
        return min(timeit.repeat(lambda: one @ other, timer=time.process_time, number=1, repeat=4))  # others may compute beside it

    return seconds(torch.float32) / seconds(torch.bfloat16)


def _described_cpus() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []


def execution_differences(theirs: JsonObject, ours: JsonObject) -> list[str]:
    """`processes 1, here 2`, for each difference between two executions."""
    one, other = ({name: value for name, value in each.items() if name != "versions"} | each["versions"] for each in (theirs, ours))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [f"{name} {as_text(one.get(name))}, here {as_text(other.get(name))}" for name in names]


def as_text(value: Json) -> str:
    return "none" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
