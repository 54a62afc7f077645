"""How a training is executed: all that its losses depend on by rounding."""

import json
import platform
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Execution:
    """All that decides how a step is rounded."""

    strategy: str
    arguments: JsonObject  # of the strategy
    processes: int
    nodes: int
    accumulate: int
    precision: str
    devices: list[str]  # their kinds
    versions: dict[str, str]

    def content(self) -> JsonObject:
        content: JsonObject = json.loads(json.dumps(hidden_in(vars(self))))  # as it is read from a checkpoint
        return content


def execution_of(train: "Train", strategy: "Strategy") -> Execution:
    """How this training is executed. All ranks take part, since each may run on another machine."""
    ranks = strategy.all_gather_object((platform.node(), kind_of(strategy.device)))
    nodes, devices = ({rank[number] for rank in ranks} for number in (0, 1))
    return Execution(
        type(strategy).__name__, train.strategy.arguments, strategy.world_size, len(nodes), train.accumulate, strategy.precision,
        sorted(devices), all_installed() | imported_packages(),
    )  # fmt: skip


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
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def execution_differences(theirs: JsonObject, ours: JsonObject) -> list[str]:
    """`processes 1, here 2`, for each difference between two executions."""
    one, other = ({name: value for name, value in each.items() if name != "versions"} | each["versions"] for each in (theirs, ours))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [f"{name} {as_text(one.get(name))}, here {as_text(other.get(name))}" for name in names]


def as_text(value: Json) -> str:
    return "none" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
