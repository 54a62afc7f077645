"""Ranks in a grid whose parameters are sharded with PyTorch's FSDP2: `fsdp` and `hsdp`. `mesh` adds other dimensions."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from snaketrain.config.sizes import DIMENSIONS, InvalidShape, MeshShape, mesh_shape
from snaketrain.models import Value
from snaketrain.models.blocks import blocks
from snaketrain.models.weights import ATTRIBUTE, Source, UnreadWeights, give_memory, has_memory, unread_weights
from snaketrain.strategies.base import PRECISIONS, T
from snaketrain.strategies.distributed import Distributed, all_gather
from snaketrain.strategies.shards import ShardedScaler, clip_sharded, local_tensor, shard_like


class Dimension(Protocol):
    """A way to divide a module's work, besides sharding it."""

    def apply(self, module: nn.Module) -> nn.Module:
        """The module with this rank's part of the work. Parameters keep their names, since checkpoints go by them."""


class MeshBase(Distributed):
    """What all points of the grid have in common.

    `reshard_after_forward`: frees gathered blocks until the backward pass, which saves memory and costs another all-gather.
    `cpu_offload`: keeps shards in CPU memory, where the optimizer then runs.
    `exchange_each_piece`: with `train.accumulate`, reduces gradients after each microbatch: less memory, more communication.
    `build_once`: only rank 0 builds the model and broadcasts its shards; otherwise every rank builds it on the CPU and keeps its own.
    Of pretrained weights in safetensors files each rank reads only its shards, so that none builds the model.
    """

    shards_model = True
    reads_slices = True
    scaler_class = ShardedScaler
    shape = MeshShape()  # until the number of ranks is known
    always: ClassVar[tuple[str, ...]] = ()  # dimensions of the mesh even if they have one rank, which are left out otherwise

    def __init__(
        self,
        reshard_after_forward: bool = True,
        cpu_offload: bool = False,
        exchange_each_piece: bool = False,
        build_once: bool = False,
        **where: str,
    ):
        super().__init__(**where)
        self.reshard_after_forward, self.exchange_each_piece, self.build_once = reshard_after_forward, exchange_each_piece, build_once
        self.offloads = cpu_offload
        self.offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if cpu_offload else OffloadPolicy()
        self.wanted: Mapping[str, int | None] = {}  # degrees of the dimensions; without any, all ranks shard

    # --- the mesh

    def start(self) -> None:
        super().start()
        try:
            self.shape = mesh_shape(self.wanted, self.world_size, "the number of processes")
        except InvalidShape as error:
            raise SystemExit(f"{error}.") from None
        self.model_parallel_size = self.shape.model_parallel_size
        self.mesh = self.make_mesh()
        self.dimensions = self.make_dimensions()

    def make_mesh(self) -> DeviceMesh:
        """How parameters are placed: ranks of `expert` and `context` hold different shards, as those of `shard` do."""
        shape = self.shape
        sizes = {"pipeline": shape.pipeline, "replicate": shape.replicate, "tensor": shape.tensor}
        sizes["shard"] = shape.shard * shape.expert * shape.context
        used = {name for name, size in sizes.items() if size > 1} | set(self.always)
        if "replicate" in used or not used:
            used.add("shard")
        return self.grid({name: sizes[name] for name in DIMENSIONS if name in used})

    def make_fine_mesh(self) -> DeviceMesh:
        """The same ranks with every dimension for itself. It connects them again, so make it once, and only where it is needed."""
        sizes = {name: getattr(self.shape, name) for name in DIMENSIONS}
        return self.grid({name: size for name, size in sizes.items() if size > 1})

    def grid(self, sizes: dict[str, int]) -> DeviceMesh:
        return init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def make_dimensions(self) -> list[Dimension]:
        """In the order in which they are applied to a module, before it is sharded."""
        return []

    @property
    def data_parallel_rank(self) -> int:
        return self.shape.data_parallel_rank(self.rank)

    @property
    def random_rank(self) -> int:
        return self.shape.random_rank(self.rank)

    def all_gather_object(self, item: T) -> list[T]:
        return all_gather(item)[: self.world_size // self.shape.pipeline : self.shape.context * self.shape.tensor]

    # --- the module

    @property
    def builds(self) -> bool:
        return self.rank == 0 or not self.build_once

    def place(self, module: nn.Module) -> nn.Module:
        if unread := unread_weights(module):
            module = self.shard_module(module)
            self.give_memory(module)
            read_slices(module, unread)
            return module
        if not self.build_once:
            return self.shard_module(module)
        whole = module.state_dict() if self.builds else {}
        module = self.shard_module(module)
        if not has_memory(module):
            self.give_memory(module)
        set_model_state_dict(module, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        for buffer in module.buffers():  # some are not in the state dict, and may have been initialised at random
            dist.broadcast(buffer, 0)
        return module

    def give_memory(self, module: nn.Module) -> None:
        give_memory(module, torch.device("cpu") if self.offloads else self.device, self.device)

    def shard_module(self, module: nn.Module) -> nn.Module:
        """Keep this rank's part of the work, and its shard of each parameter."""
        for dimension in self.dimensions:
            module = dimension.apply(module)
        if not self.sharded_over:
            return module.to(self.device) if has_memory(module) else module
        for root in self.roots(module):
            self.shard_blocks(root, self.mesh[self.sharded_over])
        return module

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """The dimensions of the mesh over which FSDP2 shards or replicates parameters."""
        return tuple(name for name in ("replicate", "shard") if name in (self.mesh.mesh_dim_names or ()))

    def roots(self, module: nn.Module) -> list[nn.Module]:
        """What is run by itself, with the parameters of the module."""
        return [module]

    def shard_blocks(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Shard each block, then everything outside of blocks, such as tied embeddings, as one group."""
        dtype = PRECISIONS[self.precision]
        # parameters are gathered in half precision; autocast stays on, for operations that need fp32
        precision = MixedPrecisionPolicy(param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32)
        any_mesh = partial(fully_shard, mp_policy=precision, offload_policy=self.offload)
        shard = partial(any_mesh, mesh=mesh, ignored_params=self.shard_apart(module, any_mesh))
        for block in blocks(module):
            shard(block, reshard_after_forward=self.reshard_after_forward)
        shard(module)
        if hasattr(module, "generate"):  # of transformers: it calls parts of the model by themselves
            register_fsdp_forward_method(module, "generate")
            # by which transformers knows that all ranks must run the model equally often
            module._is_fsdp_managed_module = True  # type: ignore[assignment]  # torch expects tensors and modules
        return module

    def shard_apart(self, module: nn.Module, shard: Callable[..., object]) -> set[nn.Parameter]:
        """Shard over another mesh what needs one; the parameters that are not to be sharded at all."""
        return set()

    # --- a step

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager[object]:
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(self.exchange_each_piece or not more_to_come)
        return super().accumulating(module, more_to_come)

    def clip(self, module: nn.Module, optimizer: Optimizer, longest: float) -> Tensor:
        return clip_sharded(module.parameters(), longest)


class Fsdp(MeshBase):
    """Each rank keeps a shard of every parameter, gradient and optimizer state; blocks are gathered one at a time, while they compute."""

    trains_adapters = True


class Hsdp(MeshBase):
    """fsdp within groups of `shard` ranks and ddp between the groups, so that most communication stays where the network is fast."""

    degrees: ClassVar = {"shard": "data_parallel"}

    def __init__(self, shard: int, **options: Value):
        super().__init__(**options)
        self.wanted = {"replicate": -1, "shard": shard}


# --- Reads weights from files into the shards that a rank keeps, of each tensor only its slice.

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each rank reads for itself


class TheseFiles(FileSystem):
    """All that the reader sees of a folder, which may hold other weights as well."""

    def __init__(self, files: Iterable[Path]):
        self.files = [str(file) for file in files]

    def ls(self, path: object) -> list[str]:
        return self.files


@torch.no_grad()
def read_slices(module: nn.Module, unread: UnreadWeights) -> None:
    """Fill a sharded module that has memory, but no values yet."""
    state = module.state_dict()
    reader = HuggingFaceStorageReader(str(unread.files[0].parent))
    reader.fs = TheseFiles(unread.files)
    here = {name: source for name, source in unread.sources.items() if name in state}  # other stages of a pipeline hold others
    wanted = {key: tensor for name, source in here.items() for key, tensor in destinations(state[name], source)}
    load(wanted, storage_reader=reader, no_dist=True)
    for name, value in ((name, value) for name, value in unread.initialized.items() if name in state):
        local, own = local_tensor(state[name]), local_tensor(shard_like(value, state[name]))
        assert local is not None and own is not None
        local.copy_(own)
    delattr(module, ATTRIBUTE)
    logging.info("%d tensors are read by slices; %d are not in the files and are initialised", len(here), len(unread.initialized))


def destinations(tensor: Tensor, source: Source) -> Iterator[tuple[str, Tensor]]:
    """Where what is in the files belongs. Experts are cut along the first dimension alone, so that a rank reads its own as a whole."""
    if isinstance(source, str):
        yield source, tensor
        return
    local, first = tensor, 0
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        first = tensor.__create_chunk_list__()[0].offsets[0] if len(local) else 0  # type: ignore[no-untyped-call]  # torch has no types for it
        assert local.shape[1:] == tensor.shape[1:], "FSDP2 and `expert` cut the first dimension"
    for expert, keys in zip(local, source[first : first + len(local)], strict=True):
        yield from zip(keys, expert.chunk(len(keys)), strict=True)
