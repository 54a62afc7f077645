"""What a strategy is: everything in which one process differs from many. `Strategy` as it stands is one process on one device."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from snaketrain.runtime.ranks import Ranks
from snaketrain.strategies.gradients import LossSums, MicroBatches, Objective, forward_backward, step_if_finite
from snaketrain.strategies.optimizer_state import Parameters, load_named, named_groups, named_state
from snaketrain.training.parameters import norm_of

PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
Keep = Callable[[Tensor], Tensor]
MakeOptimizer = Callable[..., Any]  # of the parameters by their names, and of what shards the optimizer, if anything does


def best_precision(device: torch.device) -> str:
    """What `auto` means: half precision on GPUs, with the range of fp32 where they compute in it themselves."""
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


class Strategy:
    # Declarations: configuration checks read them from the file, without importing torch, so write them out as literals
    multi_process: ClassVar[bool] = False  # whether several processes may share one training
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")  # where it can run
    # Arguments that set the size of a group of processes, which must divide the number of processes. Those of a "data_parallel"
    # group work on different examples, those of a "model_parallel" group on the same ones; without a value, it takes all processes.
    degrees: ClassVar[dict[str, str]] = {}
    data_parallel_arguments: ClassVar[tuple[str, ...]] = ()  # switches that have no effect unless batches are split across processes

    rank, world_size = 0, 1
    model_parallel_size = 1  # neighbouring processes that work on the same examples, since they share one model
    scaler_class: type[torch.amp.GradScaler] = torch.amp.GradScaler
    tries_again = True  # a backward pass that failed leaves nothing but gradients behind

    def __init__(self, device: str = "auto", precision: str = "auto"):
        kind = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
        self.device = torch.device(kind)
        self.asked = precision
        self.compute_in(best_precision(self.device) if precision == "auto" else precision)

    def compute_in(self, precision: str) -> None:
        self.precision = precision
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        # fp16 has too small a range for gradients: the loss is scaled up, and what overflows is skipped
        self.scaler = self.scaler_class(self.device.type, enabled=precision == "fp16")

    def start(self) -> None:
        """Called once, before anything else."""

    def finish(self) -> None:
        """Called once, after everything else."""

    @property
    def builds(self) -> bool:
        """Whether this process makes the whole model, before it is placed; the others give its parameters no memory."""
        return True

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the examples is this process's."""
        return self.rank // self.model_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Into how many shares the examples are cut."""
        return self.world_size // self.model_parallel_size

    # --- the module

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        """Wrap the module and build its optimizer, in the order that this strategy needs."""
        module = self.place(module)
        return module, self.optimizer(dict(module.named_parameters()), make_optimizer)

    def adopt(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        """The same for a module that its task has wrapped by itself, and which stays as it is."""
        module = module.to(self.device)
        return module, self.optimizer(dict(module.named_parameters()), make_optimizer)

    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Any:
        return make_optimizer(parameters)

    def place(self, module: nn.Module) -> nn.Module:
        """Put a module where it can be evaluated, which takes no gradients and no optimizer."""
        return module.to(self.device)

    def unwrapped(self, module: nn.Module) -> nn.Module:
        """What can be evaluated by any number of processes on different data."""
        return module

    # --- a step

    def forward_backward(self, objective: Objective, microbatches: MicroBatches, denominator: float) -> LossSums:
        """Leave gradients in the modules that learn; the losses summed over this rank's microbatches.

        Gradients and losses are of sums over all ranks, divided by `denominator`, so that it does not matter how a batch is cut.
        """
        return forward_backward(self, objective, microbatches, denominator)

    def autocast(self) -> contextlib.AbstractContextManager:
        if self.precision not in ("fp16", "bf16"):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, PRECISIONS[self.precision])

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager:
        """While more pieces of the batch are to come, gradients need not be exchanged."""
        return contextlib.nullcontext()

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """`loss` times `weight` is this process's part of a sum over all processes."""
        self.scaler.scale(loss).backward(weight)

    def update(self, pairs: list[tuple[nn.Module, Any]], clip_norm: float | None, alike: bool = True) -> Tensor:
        """Clip and step modules and their optimizers, which one loss has trained; the gradients' norm before clipping.

        Either all of them are stepped on every rank, or none on any: where the norm over all of them is not finite. That is decided
        on the device. `alike`: a strategy has wrapped them, so that data parallel ranks find the same norm.
        """
        norms = []
        for module, optimizer in pairs:
            self.scaler.unscale_(optimizer)
            norms.append(self.clip(module, optimizer, clip_norm if clip_norm is not None else float("inf")))
        norm = norm_of(norms)
        # ranks that share a model each clip what is not cut themselves, and may differ in the last bit
        if not alike or self.model_parallel_size > 1:
            elsewhere = self.sum(norm.isfinite().logical_not())
            norm = torch.where(elsewhere > 0, torch.nan, norm)
        for _, optimizer in pairs:
            step_if_finite(optimizer, norm)  # not by the scaler, which would decide for each optimizer by itself
        self.scaler.update()
        return norm

    def clip(self, module: nn.Module, optimizer: Any, longest: float) -> Tensor:
        """Scale the module's gradients down to a norm; the norm that they had."""
        # the optimizer has its parameters at hand; to collect those of a module takes as long as the rest of a small step's clipping
        return torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], longest)

    def clear(self, module: nn.Module, optimizer: Any) -> None:
        """Let go of the module's gradients."""
        optimizer.zero_grad(set_to_none=True)

    # --- state, whole and under the full names of the parameters, whatever the strategy; all take part, the first process gets it

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """They may be the very ones that are trained."""
        return get_model_state_dict(self.unwrapped(module), options=WHOLE)

    def optimizer_state(self, module: nn.Module, optimizer: Any, keep: Keep) -> dict[str, Any]:
        """`keep` makes a copy of each tensor as soon as it is put together, so that they need not all be there twice."""
        parameters = dict(self.unwrapped(module).named_parameters())

        def kept(value: Tensor, parameter: nn.Parameter) -> Tensor | None:
            whole = self.whole(value, parameter)
            return keep(whole) if self.rank == 0 else None

        return {"state": named_state(optimizer, parameters, kept), "param_groups": named_groups(optimizer, parameters)}

    def load_state(self, module: nn.Module, optimizer: Any, weights: dict, optimizer_state: dict) -> None:
        plain = self.unwrapped(module)
        set_model_state_dict(plain, weights, options=WHOLE)
        self.load_optimizer_state(optimizer, dict(plain.named_parameters()), optimizer_state)

    def load_optimizer_state(self, optimizer: Any, parameters: Parameters, saved: dict[str, Any]) -> None:
        load_named(optimizer, parameters, saved, self.part)

    def whole(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        """A tensor of the optimizer's state, put together from all parts."""
        return value.full_tensor() if isinstance(value, DTensor) else value

    def part(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        """The opposite of `whole`: what belongs to this process."""
        if isinstance(parameter, DTensor) and value.shape == parameter.shape:
            return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        return value

    # --- agreeing

    def all_reduce_scalars(self, *numbers: float) -> list[float]:
        """Each number summed over all processes, without waiting for the device."""
        return list(numbers)

    def all_reduce_scalars_ahead(self, *numbers: float) -> Callable[[], list[float]]:
        """The same, started now and read later by calling what is returned, so that no rank waits for another."""
        return lambda: list(numbers)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in double precision."""
        return tensor.double()

    def all_gather_object(self, item: Any) -> list[Any]:
        """The item of each share of the examples, in order."""
        return [item]

    def wait(self) -> None:
        """Until all processes are here."""


class Distributed(Strategy):
    """Several processes that torch.distributed connects; what they exchange while training is for the strategies to say."""

    multi_process = True
    tries_again = False  # the others are waiting, and the wrappers as well

    def start(self) -> None:
        ranks = Ranks.of_environment()
        ranks.export()
        if self.device.type == "cuda":
            self.device = torch.device("cuda", ranks.gpu)
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(minutes=30))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.asked == "auto":  # GPUs may be of several kinds
            found = self.all_gather_object(best_precision(self.device))
            self.compute_in(found[0] if len(set(found)) == 1 else "fp16")

    def finish(self) -> None:
        self.wait()  # the first one may be the meeting point of the others

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module.module if isinstance(module, DistributedDataParallel) else module  # perhaps wrapped by the task itself

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager:
        if more_to_come and isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return contextlib.nullcontext()

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        super().backward(loss, weight * self.data_parallel_size)  # gradients are averaged over the processes; ours is a sum

    def all_reduce_scalars(self, *numbers: float) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)  # on the CPU, so that the device goes on with what it has
        return (total / self.model_parallel_size).tolist()

    def all_reduce_scalars_ahead(self, *numbers: float) -> Callable[[], list[float]]:
        total = torch.tensor(numbers, dtype=torch.float64)
        work = dist.all_reduce(total, async_op=True)

        def result() -> list[float]:
            work.wait()
            return (total / self.model_parallel_size).tolist()

        return result

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.double().to(self.device)
        dist.all_reduce(total)
        return total / self.model_parallel_size

    def all_gather_object(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.world_size
        dist.all_gather_object(items, item)
        return items[:: self.model_parallel_size]

    def wait(self) -> None:
        self.all_gather_object(None)
