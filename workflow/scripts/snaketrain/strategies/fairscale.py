"""fairscale's OSS with ShardedDataParallel, and its FullyShardedDataParallel, whose successor is `fsdp`."""

import contextlib

import torch
import torch.distributed as dist
from fairscale.nn import FullyShardedDataParallel, auto_wrap, enable_wrap
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import Tensor, nn
from torch.optim import Optimizer

from snaketrain.models.blocks import blocks
from snaketrain.strategies.base import MakeOptimizer
from snaketrain.strategies.ddp import SharedOptimizer
from snaketrain.strategies.distributed import Distributed
from snaketrain.strategies.shards import OptimizerState, Parameters, ShardedScaler


class FairscaleOss(SharedOptimizer):
    """Each rank keeps the gradients and optimizer state of its shard of the parameters only.

    `buffer_mb`: reduces small gradients together, in buffers that every rank keeps in full: faster, but takes more memory.
    """

    scaler_class = ShardedScaler
    wrappers = (ShardedDataParallel, *Distributed.wrappers)

    def __init__(self, buffer_mb: float = 0, **where: str):
        super().__init__(**where)
        self.buffer_numbers = int(buffer_mb * 2**20 / 4)

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        module, optimizer = super().prepare(module, make_optimizer)
        return ShardedDataParallel(module, optimizer, reduce_buffer_size=self.buffer_numbers), optimizer

    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Optimizer:
        return make_optimizer(parameters, sharded=OSS)

    def clip(self, module: nn.Module, optimizer: Optimizer, longest: float) -> Tensor:
        assert isinstance(optimizer, OSS)
        return optimizer.clip_grad_norm(longest)  # each rank has the gradients of its own shard only

    def clear(self, module: nn.Module, optimizer: Optimizer) -> None:
        # the wrapper keeps gradients as views into its buffers; the optimizer's zero_grad would detach them, and from then on
        # they would silently not be reduced
        module.zero_grad(set_to_none=True)


WRAPPERS = ("_fsdp_wrapped_module.", "_fpw_module.")  # parts of parameter names that wrappers add


class FairscaleFsdp(Distributed):
    """On GPUs only: parameters, gradients and optimizer state are sharded.

    `wrap_blocks`: gathers one block at a time, and not the whole model. The other arguments are those of `fsdp`.
    """

    devices = ("cuda",)  # it uses CUDA streams
    shards_model = True
    generates = False
    dcp_compatible = False
    scaler_class = ShardedScaler

    def __init__(self, wrap_blocks: bool = True, reshard_after_forward: bool = True, exchange_each_piece: bool = False, **where: str):
        super().__init__(**where)
        self.wrap_blocks, self.exchange_each_piece = wrap_blocks, exchange_each_piece
        # without flattening, parameter groups stay separate, and each parameter is sharded across all ranks
        self.options = {"reshard_after_forward": reshard_after_forward, "flatten_parameters": False, "clear_autocast_cache": True}

    def place(self, module: nn.Module) -> nn.Module:
        chosen = {id(block) for block in blocks(module)} if self.wrap_blocks else set()
        options = self.options | {"compute_device": self.device, "state_dict_device": torch.device("cpu")}
        with enable_wrap(auto_wrap_policy=None, wrapper_cls=FullyShardedDataParallel, **options):
            module = auto_wrap(module, lambda module, recurse, **_: recurse or id(module) in chosen)
        wrapped: nn.Module = FullyShardedDataParallel(module, **options)
        return wrapped.to(self.device)  # in this order, since the full model may not fit on a GPU

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager[object]:
        if more_to_come and not self.exchange_each_piece and isinstance(module, FullyShardedDataParallel):
            return module.no_sync()
        return super().accumulating(module, more_to_come)

    def clip(self, module: nn.Module, optimizer: Optimizer, longest: float) -> Tensor:
        if isinstance(module, FullyShardedDataParallel):
            return module.clip_grad_norm_(longest)
        return super().clip(module, optimizer, longest)

    # --- state: fairscale's functions for it support one parameter group only, and modify the optimizer while reading it

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        return module.state_dict() if isinstance(module, FullyShardedDataParallel) else super().weights(module)

    @torch.no_grad()
    def load_state(self, module: nn.Module, optimizer: Optimizer, weights: dict[str, Tensor], optimizer_state: OptimizerState) -> None:
        if not isinstance(module, FullyShardedDataParallel):
            return super().load_state(module, optimizer, weights, optimizer_state)
        parameters = dict(module.named_parameters())
        for name, tensor in [*parameters.items(), *module.named_buffers()]:
            for wrapper in WRAPPERS:
                name = name.replace(wrapper, "")
            if name in weights:
                tensor.copy_(self.part(weights[name], tensor))
        for part in module.modules():
            if isinstance(part, FullyShardedDataParallel):
                part.has_full_params = False  # the full parameters it gathered before are out of date
        self.load_optimizer_state(optimizer, parameters, optimizer_state)

    def whole(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        size = unsharded_size(parameter)
        if size is None or value.shape != parameter.shape:
            return value
        shares = [torch.empty_like(value) for _ in range(self.world_size)]
        dist.all_gather(shares, value)
        return torch.cat(shares)[: size.numel()].view(size)

    def part(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        size = unsharded_size(parameter)
        if size is None or value.shape != size:
            return value
        share = parameter.numel()
        padded = torch.nn.functional.pad(value.flatten(), (0, share * self.world_size - value.numel()))
        return padded[share * self.rank : share * (self.rank + 1)]


def unsharded_size(parameter: nn.Parameter) -> torch.Size | None:
    """The shape of the full parameter; None: it is not sharded."""
    return getattr(parameter, "_orig_size", None) if getattr(parameter, "_is_sharded", False) else None
