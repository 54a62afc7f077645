"""One process that stands for any rank of many: torch's fake process group, whose collectives return at once."""

import contextlib
import os
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # registers what collectives return for fake tensors
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed._mesh_layout import _MeshLayout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import distributed as ddp
from torch.testing._internal.distributed.fake_pg import FakeStore

from snaketrain.models import Value
from snaketrain.strategies import pipeline
from snaketrain.strategies.splitting import Dispatch


@contextlib.contextmanager
def fake_world(processes: int, rank: int = 0) -> Iterator[None]:
    """Within, this process is a rank of so many, all of them on one machine."""
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    deterministic = torch.are_deterministic_algorithms_enabled()
    with patch.dict(os.environ, ranks), real_meshes(), without_comparison(), without_moving(), without_values():
        dist.init_process_group("fake", rank=rank, world_size=processes, store=FakeStore())
        try:
            yield
        finally:
            dist.destroy_process_group()
            # meshes of different ranks are equal for DTensor, which would use groups of this world in the next
            _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
            torch.use_deterministic_algorithms(deterministic)  # which a run's settings may have changed


@contextlib.contextmanager
def real_meshes() -> Iterator[None]:
    """A mesh is a tensor of ranks whose values are read, also by FSDP2 when it joins two of them: it must not be fake."""
    with (
        patch.object(DeviceMesh, "__init__", _outside_fake_mode(DeviceMesh.__init__)),
        patch.object(_MeshLayout, "remap_to_tensor", _outside_fake_mode(_MeshLayout.remap_to_tensor)),
    ):
        yield


@contextlib.contextmanager
def without_comparison() -> Iterator[None]:
    """In C++, DDP reads values that fake tensors and the fake process group do not have: the shapes of its parameters on other ranks,
    the order of its buckets, which stays as it is if parameters may be unused, and the result of an all-reduce."""
    making = ddp.DistributedDataParallel.__init__

    def make(module: ddp.DistributedDataParallel, *arguments: Value, **options: Value) -> None:
        making(module, *arguments, **options | {"find_unused_parameters": True, "static_graph": False})
        module.register_comm_hook(None, reduce_bucket)

    with (
        patch.object(ddp, "_verify_param_shape_across_processes", lambda *_, **__: None),
        patch.object(ddp.DistributedDataParallel, "__init__", make),
    ):
        yield


def reduce_bucket(_: object, bucket: torch._C._distributed_c10d.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP does with a bucket of gradients by itself."""
    buffer, done = bucket.buffer(), torch.futures.Future[torch.Tensor]()
    dist.all_reduce(buffer)
    done.set_result(buffer)
    return done


@contextlib.contextmanager
def without_moving() -> Iterator[None]:
    """Modules are on the CPU already; moving one there would swap its parameters, which torch refuses for fake tensors."""
    moving = nn.Module.to

    def to(module: nn.Module, *where: Value, **options: Value) -> nn.Module:
        return module if where == (torch.device("cpu"),) and not options else moving(module, *where, **options)

    with patch.object(nn.Module, "to", to):
        yield


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """What depends on values: objects, of which each rank keeps its own; whether a pipeline's hidden states stay as they are; which tokens
    go to which expert; and torch's grouped matrix product, whose version for fake tensors takes bf16 alone, unlike transformers' own."""
    from transformers.integrations import moe

    with (
        patch.object(dist, "broadcast_object_list", lambda *_, **__: None),
        patch.object(pipeline, "passes_unchanged", lambda *_: True),
        patch.object(Dispatch, "sizes", _evenly),
        patch.object(moe, "_can_use_grouped_mm", lambda *_: False),
    ):
        yield


def _evenly(dispatch: Dispatch, chosen: torch.Tensor) -> tuple[list[int], list[int], torch.Tensor]:
    """As many pairs of a token and an expert for each rank."""
    each, over = divmod(len(chosen), dispatch.ranks)
    sizes = [each + (rank < over) for rank in range(dispatch.ranks)]
    return sizes, sizes, chosen.new_empty(dispatch.ranks * dispatch.here)


def _outside_fake_mode(function: Callable[..., Value]) -> Callable[..., Value]:
    def outside(*arguments: Value, **options: Value) -> Value:
        with unset_fake_temporarily():
            return function(*arguments, **options)

    return outside
