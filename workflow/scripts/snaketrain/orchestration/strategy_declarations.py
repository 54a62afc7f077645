"""What a strategy declares about itself, read from its file without importing torch, and whether the processes of a training and its evaluation fit it."""

import ast
import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, StrictBool, ValidationError

from snaketrain.config.references import NotFound, find
from snaketrain.config.schema import Compute, Settings, Train, Use
from snaketrain.config.sizes import DIMENSIONS, InvalidShape, MeshShape, compile_error, is_used, mesh_shape, microbatch_error, option_errors
from snaketrain.orchestration.definitions import class_attribute

PACKAGE = "strategies"  # where short names are looked up
# their update fails in torch 2.13 where a parameter is a DTensor; fairscale's flat parameters would make Adafactor another optimizer
NEED_WHOLE_PARAMETERS = ("torch.optim.Adafactor", "torch.optim.Rprop", "transformers.Adafactor")
AUTO = ("single", "ddp")  # what `auto` stands for, with one process and with several


class StrategyInfo(BaseModel):
    """The class attributes of the same names, see `strategies/base.py`. The defaults, for a class that declares nothing, allow everything."""

    model_config = ConfigDict(frozen=True)

    multi_process: StrictBool = True
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
    degrees: Mapping[str, Literal["data_parallel", "model_parallel"]] = {}
    data_parallel_arguments: tuple[str, ...] = ()
    shards_model: StrictBool = False
    trains_adapters: StrictBool = True
    generates: StrictBool = True
    degrees_fill_mesh: StrictBool = False  # whether its arguments are the degrees of a mesh: see `config/sizes.py`

    def mesh(self, arguments: Mapping[str, object], processes: int) -> MeshShape:
        """One process in each dimension without a mesh, or where the degrees do not fit, which `misfit` reports."""
        with contextlib.suppress(InvalidShape):
            return mesh_shape(degrees_in(arguments), processes) if self.degrees_fill_mesh else MeshShape()
        return MeshShape()

    def data_parallel_size(self, arguments: Mapping[str, object], processes: int) -> int:
        """The number of shares that a batch is split into: processes that hold parts of one model see the same examples."""
        if self.degrees_fill_mesh:
            return self.mesh(arguments, processes).data_parallel_size
        model_parallel = [arguments.get(name) or processes for name, kind in self.degrees.items() if kind == "model_parallel"]
        return processes // math.prod(degree for degree in model_parallel if isinstance(degree, int))


class InvalidDeclaration(Exception):
    """A declaration that is computed or of the wrong type; the message names it."""


def compared_strategy(strategy: Use) -> Use:
    """`single` is what `auto` stands for with one process, and is refused with several: changing one into the other reruns nothing."""
    return Use(use="auto") if strategy == Use(use=AUTO[0]) else strategy


def strategy_files(use: str) -> list[Path]:
    """The code that `train.strategy` may run; the same for any number of processes."""
    names = AUTO if use in ("auto", AUTO[0]) else (use,)
    return list(dict.fromkeys(file for name in names if (file := find(name, PACKAGE)[0])))


def strategy_info(use: str) -> StrategyInfo:
    """The declarations of a class and its bases; the defaults for a class of a library, or one that is not found."""
    try:
        file, name = find(use if use != "auto" else AUTO[1], PACKAGE)
    except NotFound:  # reported with the other names
        return StrategyInfo()
    return _declared(file.resolve(), name) if file else StrategyInfo()


@functools.cache
def _declared(file: Path, name: str) -> StrategyInfo:
    found: dict[str, object] = {}
    for attribute in StrategyInfo.model_fields:
        is_set, value = class_attribute(file, name, attribute)
        if is_set:
            try:
                found[attribute] = ast.literal_eval(value or "")
            except (ValueError, TypeError, SyntaxError):
                raise InvalidDeclaration(f"computes `{attribute}`, which is read without running the code: write its value out") from None
    try:
        return StrategyInfo.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidDeclaration(f"declares `{problem['loc'][0]}` as {found[str(problem['loc'][0])]!r}: {problem['msg']}") from None


def saves_shards(run: Settings) -> bool:
    """Whether the run's checkpoints are sharded, or may be."""
    wanted = run.compute.checkpoint_format
    return wanted == "sharded" or (wanted == "auto" and strategy_info(run.train.strategy.use).shards_model)


def strategy_errors(run: Settings) -> Iterator[str]:
    """Processes, devices and batches that do not fit the strategy."""
    strategy, compute, train = run.train.strategy, run.compute, run.train
    try:
        info = strategy_info(strategy.use)
    except InvalidDeclaration as error:
        yield f"train.strategy.use: `{strategy.use}` {error}."
        return
    if run.model.adapters and not info.trains_adapters:
        yield f"model.adapters: was not tested with train.strategy `{strategy.use}`: use `single`, `ddp` or `fsdp`."
    elif run.model.adapters and info.shards_model:
        for setting in ("use_dora", "quantize"):
            if getattr(run.model.adapters, setting):
                yield f"model.adapters.{setting}: was not tested with train.strategy `{strategy.use}`: use `single` or `ddp`."
    if train.precision == "fp8" and ("tensor" in info.degrees or is_used(strategy.arguments, "tensor")):
        yield "train.precision: fp8 was not tried with matrices that train.strategy.arguments.tensor splits: use bf16."
    if train.compile and (problem := compile_error(strategy.arguments, info.degrees)):
        yield f"{problem}."
    if info.shards_model:
        yield from whole_parameter_errors(train)
    if unfit := misfit_of_any(run, info, compute):
        yield unfit
    most = compute.node_counts[-1] * compute.processes
    stages = info.mesh(strategy.arguments, most).pipeline
    if problem := microbatch_error(strategy.arguments, stages, train.accumulate, compute.reduce_batch_on_oom):
        yield f"{problem}."
    parts = info.data_parallel_size(strategy.arguments, most) * train.accumulate
    if train.batch_tokens is None and parts > train.batch_size:
        times_nodes = f"compute.nodes ({compute.nodes}) times " if compute.nodes != "1" else ""
        yield (
            f"{times_nodes}compute.processes ({compute.processes}) times train.accumulate ({train.accumulate}) is more than a batch has "
            f"examples (train.batch_size: {train.batch_size}): use fewer processes or a larger batch."
        )


def whole_parameter_errors(train: Train) -> Iterator[str]:
    optimizers = {f"train.groups.{number}.optimizer": group.optimizer for number, group in enumerate(train.groups) if group.optimizer}
    for where, optimizer in ({"train.optimizer": train.optimizer} | optimizers).items():
        if optimizer.use in NEED_WHOLE_PARAMETERS:
            yield (
                f"{where}.use: {optimizer.use} needs whole parameters, which train.strategy `{train.strategy.use}` splits: use `ddp` or "
                "`zero1`, or an optimizer such as torch.optim.AdamW."
            )


def misfit_of_any(run: Settings, info: StrategyInfo, compute: Compute, setting: str = "compute.processes") -> str | None:
    """Why one of the numbers of nodes does not fit the strategy."""
    for nodes in compute.node_counts:
        if problem := misfit(run.train.strategy, info, nodes * compute.processes, compute.device, setting):
            return problem + (f" (with {nodes} nodes)." if compute.nodes != "1" else ".")
    return None


def misfit(strategy: Use, info: StrategyInfo, processes: int, device: str, setting: str = "compute.processes") -> str | None:
    """Why this number of processes, or the device, does not fit the strategy."""
    use, arguments = strategy.use, strategy.arguments
    if processes > 1 and not info.multi_process:
        return f"train.strategy `{use}` runs in one process, but {setting} is {processes}: use `ddp` or `auto`, or one process"
    if use == "auto" and arguments:
        return "train.strategy `auto` takes no arguments: name the strategy that they are meant for"
    if device == "cpu" and "cpu" not in info.devices:
        return f"train.strategy `{use}` needs GPUs, but compute.device is cpu: use `fsdp`, which does not"
    if device == "cuda" and "cuda" not in info.devices:
        return f"train.strategy `{use}` runs only on CPUs, but compute.device is cuda: set it to cpu, or use another strategy"
    if info.degrees_fill_mesh:
        try:
            mesh_shape(degrees_in(arguments), processes, setting)
        except InvalidShape as error:
            return str(error)
        return next(option_errors(arguments), None)
    for name in info.degrees:
        degree = arguments.get(name)
        if degree is not None and (not isinstance(degree, int) or degree < 1 or processes % degree):
            return (
                f"train.strategy.arguments.{name} is {degree}, which does not divide {setting} ({processes}): "
                "the processes are arranged in groups of that size, so make one a multiple of the other"
            )
    degrees = [name for name, kind in info.degrees.items() if kind == "model_parallel"]
    given = [name for name in info.data_parallel_arguments if arguments.get(name)]
    if degrees and given and info.data_parallel_size(arguments, processes) == 1:
        return (
            f"train.strategy.arguments.{given[0]} is set, but train.strategy.arguments.{degrees[0]} takes all of {setting} ({processes}): "
            f"no data parallelism is left, so use more processes, a smaller `{degrees[0]}`, or no `{given[0]}`"
        )
    return None


def degrees_in(arguments: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in arguments.items() if name in DIMENSIONS}


def evaluation_compute(run: Settings) -> Compute:
    """`compute` as it is for the evaluation.

    One process by default: a job of one GPU starts sooner than one of whole nodes and wastes nothing, and most test sets take less
    time than starting many processes. A sharded model may need all the GPUs that it was trained on.
    """
    compute, wanted, strategy = run.compute, run.compute.evaluation, run.train.strategy
    if compute.evaluated_in_training_job:
        return compute
    given = {name: value for name, value in wanted or () if value is not None and name != "in_training_job"}
    size: dict[str, object] = {}
    info = strategy_info(strategy.use)
    if not info.shards_model and not misfit(strategy, info, 1, compute.device):
        size = {"nodes": "1", "processes": 1, "gpus": min(1, compute.gpus), "bind": "none"}
    if "processes" in given and compute.gpus:
        size["gpus"] = given["processes"]
    return compute.model_copy(update=size | given)


def evaluation_errors(run: Settings) -> Iterator[str]:
    """A size that contradicts itself, or that the strategy cannot run on."""
    if not run.compute.evaluation:
        return
    try:
        info, compute = strategy_info(run.train.strategy.use), evaluation_compute(run)
    except InvalidDeclaration:  # reported by `strategy_errors`
        return
    for problem in compute.contradictions():
        if problem not in run.compute.contradictions():
            yield f"compute.evaluation: {problem}."
    if (compute.nodes, compute.processes) == (run.compute.nodes, run.compute.processes):
        return
    if unfit := misfit_of_any(run, info, compute, "compute.evaluation.processes"):
        yield unfit
