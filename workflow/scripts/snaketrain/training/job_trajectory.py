"""The fingerprints of a training that a stage executes: from its settings, code and inputs."""

from functools import partial

import torch

from snaketrain.config.schema import Train
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.stages import Job
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Task
from snaketrain.training.building import evaluations_count, observers
from snaketrain.training.plan import Plan
from snaketrain.training.trajectory import Execution, Trajectory, trajectory_of


def trajectory_of_job(
    job: Job, train: Train, task: Task, plan: Plan, strategy: Strategy, data: Manifest, inputs: dict[str, str], cadence: JsonObject,
    exempt: set[str],
) -> Trajectory:  # fmt: skip
    """What decides the weights of this training, step by step; `exempt`: the user's files that do not."""
    counted = evaluations_count(train, task)
    execution = Execution(train.strategy.use, strategy.world_size, strategy.device.type, torch.__version__, train.accumulate)
    weights = {role: content for role, content in inputs.items() if role != "data"}
    return trajectory_of(
        job.given.settings, job.given.code, weights, data, execution, strategy.precision, partial(plan.content, cadence=counted),
        observers=observers(train), exempt=exempt, cadence=cadence, evaluations_count=counted,
    )  # fmt: skip
