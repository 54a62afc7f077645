"""One process on one device; and, by that, the interface of all strategies."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Single:
    rank, world_size = 0, 1

    def __init__(self, device: str = "auto", precision: str = "auto"):
        self.device = self._device("cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu"))
        on_gpu = self.device.type == "cuda"
        self.precision = precision if precision != "auto" else "fp16" if on_gpu else "fp32"
        # fp16 has too small a range for gradients: the loss is scaled up, and what overflows is skipped
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    def _device(self, kind: str) -> torch.device:
        return torch.device(kind)

    def start(self) -> None:
        """Called once, before anything else."""

    def finish(self) -> None:
        """Called once, after everything else."""

    # --- training

    def prepare(self, module: nn.Module, make_optimizer: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
        """Wrap the module and build its optimizer, in the order that this strategy needs."""
        module = module.to(self.device)
        return module, make_optimizer(module)

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module

    def autocast(self) -> contextlib.AbstractContextManager:
        return torch.autocast(self.device.type, PRECISIONS[self.precision], enabled=self.precision != "fp32")

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager:
        """While more pieces of the batch are to come, gradients need not be exchanged."""
        return contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        """`loss` is this process's part of a sum over all processes."""
        self.scaler.scale(loss).backward()

    def update(self, module: nn.Module, optimizer: Any, clip_norm: float | None) -> Tensor:
        """Clip, step, and clear the gradients; the gradients' norm before clipping."""
        self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm if clip_norm is not None else float("inf"))
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return norm

    # --- state, under the full names of the parameters, whatever the strategy

    def state(self, module: nn.Module, optimizer: Any) -> tuple[dict, dict]:
        return get_model_state_dict(module, options=WHOLE), get_optimizer_state_dict(module, optimizer, options=WHOLE)

    def load_state(self, module: nn.Module, optimizer: Any, weights: dict, optimizer_state: dict) -> None:
        set_model_state_dict(module, weights, options=WHOLE)
        set_optimizer_state_dict(module, optimizer, optimizer_state, options=WHOLE)

    # --- agreeing

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in double precision."""
        return tensor.double() if self.device.type != "mps" else tensor

    def any(self, flag: bool) -> bool:
        """Whether it is so on any process; the same answer on all."""
        return flag

    def everyones(self, item: Any) -> list[Any]:
        """Each process's item, in the order of ranks."""
        return [item]
