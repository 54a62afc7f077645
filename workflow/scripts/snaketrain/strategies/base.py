"""The interface of strategies: everything in which one process differs from many. `Strategy` itself is one process on one device,
`distributed.Distributed` the base class of several.
"""

import contextlib
import math
import os
import platform
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from snaketrain.models import ParameterGroups
from snaketrain.models.adapters import frozen_names
from snaketrain.runtime.ranks import Ranks
from snaketrain.strategies.collectives import Collectives
from snaketrain.strategies.losses import LossSums, MicroBatches, Objective, forward_backward
from snaketrain.strategies.shards import OptimizerState, Parameters, load_named, local_optimizer, named_groups, named_state

# --- The device of a rank: a GPU that was asked for and is missing is an error, never a silent training on the CPU.


def device_of(asked: str) -> torch.device:
    """`auto` takes a GPU where there is one."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda":
        check_gpus()
    return torch.device(asked)


def check_gpus() -> None:
    """Whether this process sees the GPU that is to be its own."""
    ranks, seen = Ranks.of_environment(), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen > (ranks.local or 0):
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = f"sees {seen} GPUs, fewer than processes on this node" if seen else "finds no GPU"
    raise SystemExit(
        f"compute.device: rank {ranks.rank} on {platform.node()} {found} (CUDA_VISIBLE_DEVICES is {'not set' if visible is None else repr(visible)}). "
        f"Ask for one GPU for each process with compute.gpus, and see with `nvidia-smi` whether the node has them and with "
        f"`python -c 'import torch; print(torch.version.cuda)'` whether torch ({torch.__version__}) is built for CUDA; or set compute.device: cpu "
        "and compute.gpus: 0 to train on CPUs."
    )


def step_if_finite(optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
    """Step, unless the norm of the gradients is not finite. On a GPU a fused optimizer finds that out without the host waiting for it."""
    stepping = local_optimizer(optimizer)
    if norm.device.type != "cpu" and all(group.get("fused") for group in stepping.param_groups):
        step_on_device(optimizer, stepping, norm)
    elif math.isfinite(norm.item()):
        optimizer.step()


def step_on_device(optimizer: torch.optim.Optimizer, stepping: torch.optim.Optimizer, norm: Tensor) -> None:
    """Fused kernels leave weights, moments and step count as they are where `found_inf` is 1."""
    found_inf = (norm * 0).ne(0).float()  # NaN and infinity times 0 are NaN
    stepping.grad_scale, stepping.found_inf = None, found_inf  # type: ignore[attr-defined]  # fused optimizers read them
    optimizer.step()


def norm_of(norms: list[Tensor]) -> Tensor:
    """The norm of several parts, from the norm of each."""
    return norms[0].reshape(()) if len(norms) == 1 else torch.stack(norms).norm()


PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
TRAINED = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True, strict=False)  # of a module with adapters
Keep = Callable[[Tensor], Tensor]
T = TypeVar("T")


class MakeOptimizer(Protocol):
    """Builds the optimizer of named parameters; or `sharded`, which takes their groups, the optimizer's class and `options`."""

    def __call__(self, parameters: Parameters, sharded: Callable[..., Optimizer] | None = None, **options: object) -> Optimizer: ...


def best_precision(device: torch.device) -> str:
    """What `auto` means: bf16 on GPUs that support it natively, fp16 on others, fp32 on the CPU."""
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


class Strategy:
    # Declarations: configuration checks read them from the file, without importing torch, so write them out as literals
    multi_process: ClassVar[bool] = False  # whether several processes can share one training
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")  # where it can run
    # Arguments that set the size of a group of ranks, which must divide the world size. Ranks of a "data_parallel" group work on
    # different examples, those of a "model_parallel" group on the same ones; without a value, the group is the whole world.
    degrees: ClassVar[dict[str, str]] = {}
    degrees_fill_mesh: ClassVar[bool] = False  # whether arguments are degrees of a mesh instead: see `config/sizes.py`
    data_parallel_arguments: ClassVar[tuple[str, ...]] = ()  # switches that have no effect unless batches are split across ranks
    trains_adapters: ClassVar[bool] = False  # whether `model.adapters` was tested with it
    # Whether ranks hold shards of the parameters: by default, checkpoints are sharded then, and as many ranks evaluate
    shards_model: ClassVar[bool] = False
    reads_slices: ClassVar[bool] = False  # whether `place` fills modules whose weights are still in their files
    generates: ClassVar[bool] = True  # whether a model's `generate` works, which runs parts of the model by themselves
    dcp_compatible: ClassVar[bool] = True  # whether torch.distributed.checkpoint knows the shards: they are DTensors

    offloads = False  # whether this rank keeps its shards in CPU memory

    rank, world_size = 0, 1
    model_parallel_size = 1  # neighbouring ranks that share one model and work on the same examples
    scaler_class: type[torch.amp.GradScaler] = torch.amp.GradScaler
    tries_again = True  # a step that ran out of memory can be repeated: it leaves nothing behind but gradients

    def __init__(self, device: str = "auto", precision: str = "auto"):
        self.device = device_of(device)
        self.asked = precision
        self.compute_in(best_precision(self.device) if precision == "auto" else precision)

    def compute_in(self, precision: str) -> None:
        self.precision = precision
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        # gradients underflow in fp16, so the loss is scaled up, and steps that overflow are skipped
        self.scaler = self.scaler_class(self.device.type, enabled=precision == "fp16")

    def start(self) -> None:
        """Called once, before anything else."""

    def finish(self) -> None:
        """Called once, after everything else."""

    @property
    def builds(self) -> bool:
        """Whether this rank builds the full model before it is placed; the others keep its parameters on the meta device."""
        return True

    @property
    def data_parallel_rank(self) -> int:
        """The share of each batch that this rank works on."""
        return self.rank // self.model_parallel_size

    @property
    def random_rank(self) -> int:
        """Ranks with the same number draw the same random numbers, such as for dropout."""
        return self.data_parallel_rank

    @property
    def data_parallel_size(self) -> int:
        """The number of shares that a batch is split into."""
        return self.world_size // self.model_parallel_size

    # --- the module

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        """Wrap the module and build its optimizer, in the order that the strategy needs."""
        module = self.place(module)
        return module, self.optimizer(dict(module.named_parameters()), make_optimizer)

    def adopt(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        """The same for a module that its task has wrapped itself: it is not wrapped again."""
        module = module.to(self.device)
        return module, self.optimizer(dict(module.named_parameters()), make_optimizer)

    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Optimizer:
        return make_optimizer(parameters)

    def place(self, module: nn.Module) -> nn.Module:
        """Place a module for evaluation, without gradients or an optimizer."""
        return module.to(self.device)

    def unwrapped(self, module: nn.Module) -> nn.Module:
        """The module that each rank can run by itself, on data of its own."""
        return module

    def share_buffers(self, module: nn.Module) -> None:
        """Give all ranks the buffers of rank 0, such as a BatchNorm's statistics, which each has updated by examples of its own."""

    # --- a step

    def forward_backward(self, objective: Objective, microbatches: MicroBatches, denominator: float) -> LossSums:
        """Leave gradients in the modules that learn; return the losses, summed over this rank's microbatches.

        Gradients are those of the loss summed over all ranks and divided by `denominator`, however the batch is split.
        """
        return forward_backward(self, objective, microbatches, denominator)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        dtype = PRECISIONS[self.precision]
        return contextlib.nullcontext() if dtype == torch.float32 else torch.autocast(self.device.type, dtype)

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager[object]:
        """Gradients need not be exchanged while more microbatches are to come."""
        return contextlib.nullcontext()

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        """`loss` times `weight` is this rank's term of a sum over all ranks."""
        torch.autograd.backward(self.scaler.scale(loss), weight)

    def update(
        self, pairs: list[tuple[nn.Module, Optimizer]], clip_norm: float | None, alike: bool = True, judge: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Clip the gradients of one objective and step its optimizers; return the norm before clipping.

        Where the norm over all modules is not finite, no optimizer is stepped on any rank, which is decided on the device.
        `alike`: the strategy has wrapped the modules, so that data parallel ranks compute the same norm. `judge` returns NaN for a norm
        with which no optimizer shall be stepped.
        """
        norms = []
        for module, optimizer in pairs:
            self.scaler.unscale_(optimizer)
            norms.append(self.clip(module, optimizer, clip_norm if clip_norm is not None else float("inf")))
        norm = judge(norm_of(norms)) if judge else norm_of(norms)
        # ranks that share a model clip replicated parameters separately, and may differ in the last bit
        if not alike or self.model_parallel_size > 1:
            elsewhere = self.sum(norm.isfinite().logical_not())
            norm = torch.where(elsewhere > 0, torch.nan, norm)
        for _, optimizer in pairs:
            step_if_finite(optimizer, norm)  # not `scaler.step`, which decides for each optimizer separately
        self.scaler.update()
        return norm

    def clip(self, module: nn.Module, optimizer: Optimizer, longest: float) -> Tensor:
        """Scale the module's gradients down to at most a norm; return the norm before."""
        # the optimizer's list is at hand; collecting a module's parameters takes as long as the rest of the clipping in a small step
        return torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], longest)

    def clear(self, module: nn.Module, optimizer: Optimizer) -> None:
        """Free the module's gradients."""
        optimizer.zero_grad(set_to_none=True)

    # --- state: full tensors under full parameter names, whatever the strategy. All ranks take part, rank 0 receives it

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """What checkpoints hold. Not necessarily copies: they may share memory with the parameters."""
        plain = self.unwrapped(module)
        options = TRAINED if frozen_names(plain) else WHOLE
        return get_model_state_dict(plain, options=options)  # type: ignore[return-value]  # modules hold tensors alone

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer, keep: Keep) -> OptimizerState:
        """`keep` copies each tensor as soon as it is gathered, so that gathered tensors and their copies are never all in memory at once."""
        parameters = dict(self.unwrapped(module).named_parameters())

        def kept(value: Tensor, parameter: nn.Parameter) -> Tensor | None:
            whole = self.whole(value, parameter)
            return keep(whole) if self.rank == 0 else None

        return {"state": named_state(optimizer, parameters, kept), "param_groups": self.param_groups(optimizer, parameters)}

    def param_groups(self, optimizer: Optimizer, parameters: Parameters) -> ParameterGroups:
        """With the names of all parameters of the model, also where other ranks hold them."""
        return named_groups(optimizer, parameters)

    def load_state(self, module: nn.Module, optimizer: Optimizer, weights: dict[str, Tensor], optimizer_state: OptimizerState) -> None:
        plain = self.unwrapped(module)
        frozen = frozen_names(plain)
        done = set_model_state_dict(plain, {**weights}, options=TRAINED if frozen else WHOLE)
        if different := {*done.unexpected_keys, *(set(done.missing_keys) - frozen)}:
            raise SystemExit(f"the checkpoint has other weights than the model: {', '.join(sorted(different)[:5])}. Train the run again.")
        self.load_optimizer_state(optimizer, dict(plain.named_parameters()), optimizer_state)

    def load_optimizer_state(self, optimizer: Optimizer, parameters: Parameters, saved: OptimizerState) -> None:
        load_named(optimizer, parameters, saved, self.part)

    def whole(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        """The full tensor, gathered from all ranks, of a tensor in the optimizer's state."""
        return value.full_tensor() if isinstance(value, DTensor) else value

    def part(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        """The inverse of `whole`: this rank's shard."""
        if isinstance(value, DTensor):  # it is one already
            return value
        if isinstance(parameter, DTensor) and value.shape == parameter.shape:
            return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        return value

    # --- collectives

    def all_reduce_scalars(self, *numbers: float) -> list[float]:
        """Each number summed over all ranks, without waiting for the device."""
        return self.all_reduce_scalars_ahead(*numbers)()

    def all_reduce_scalars_ahead(self, *numbers: float) -> Callable[[], list[float]]:
        """The same, started now; the function that it returns waits for the result. So no rank waits for another."""
        return lambda: list(numbers)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in double precision."""
        return tensor.double()

    def all_gather_object(self, item: T) -> list[T]:
        """The items of all data parallel ranks, in order."""
        return [item]

    def wait(self) -> None:
        """A barrier."""

    def collectives(self) -> Collectives:
        """Those that this rank has entered, asked by another thread where nothing moves any more."""
        return Collectives()
