"""The fingerprints of a training that a stage executes: from its settings, code and inputs."""

import platform
from functools import partial
from pathlib import Path

import torch

from snaketrain.config.schema import Train
from snaketrain.runtime.loaded_code import imported_packages
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.provenance import all_installed
from snaketrain.runtime.stages import Job
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Task
from snaketrain.training.building import evaluations_count, observers
from snaketrain.training.plan import Plan
from snaketrain.training.trajectory import Execution, Trajectory, trajectory_of


def trajectory_of_job(
    job: Job, train: Train, task: Task, plan: Plan, execution: Execution, data: Manifest, inputs: dict[str, str], cadence: JsonObject,
    exempt: set[str],
) -> Trajectory:  # fmt: skip
    """What decides the weights of this training, step by step; `exempt`: the user's files that do not."""
    counted = evaluations_count(train, task)
    weights = {role: content for role, content in inputs.items() if role != "data"}
    return trajectory_of(
        job.given.settings, job.given.code, weights, data, execution, partial(plan.content, cadence=counted),
        observers=observers(train), exempt=exempt, cadence=cadence, evaluations_count=counted,
    )  # fmt: skip


def execution_of(train: Train, strategy: Strategy) -> Execution:
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
