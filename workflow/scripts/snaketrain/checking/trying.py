"""Builds what a run trains and takes one step, on tensors without memory: nothing is computed, and a large model takes no more than a small one.

Also one process that stands for any rank of many: torch's fake process group, whose collectives return at once.
"""

import contextlib
import logging
import os
import resource
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # registers what collectives return for fake tensors
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.distributed._mesh_layout import _MeshLayout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import distributed as ddp
from torch.testing._internal.distributed.fake_pg import FakeStore

from snaketrain.checking import Unknown
from snaketrain.checking.planned import NotPlannable, PlannedModel, adapt, planned_data
from snaketrain.config.schema import Settings
from snaketrain.config.schema.data import stream_data_problems
from snaketrain.config.schema.train import stream_training_problems
from snaketrain.data.loading.batches import MicroBatch
from snaketrain.data.loading.streams import is_stream
from snaketrain.data.loading.training_data import Batch, Items, make, numbered, own_facts, precomputed
from snaketrain.models import Value, token_losses
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.strategies import pipeline
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.splitting import Dispatch
from snaketrain.tasks.base import Task
from snaketrain.tasks.metrics import OfRows
from snaketrain.training.building import DataInfo, build, make_train_state
from snaketrain.training.plan import Plan
from snaketrain.training.step import take_step

Made = TypeVar("Made")
EXAMPLES = 2  # of a batch
LONGEST = 16_384  # tokens of an assumed text
MOST_GIB = 4  # that trying with memory may take
BEYOND = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException, NotImplementedError, MemoryError)


@dataclass(frozen=True)
class Sample:
    """A batch of what a run trains on, and what is known of its data. `steps`: of the training, where the data is prepared."""

    batch: Batch | None
    facts: JsonObject
    steps: int | None = None
    problems: Sequence[str] = ()  # of a stream, which has no length


def sample_of(run: Settings, results: Path) -> Sample:
    """Of prepared data, of a dataset class, or of texts as long as the settings allow."""
    data = run.data
    few = {"batch_size": EXAMPLES, "batch_tokens": None, "accumulate": 1}
    small = run.model_copy(update={"train": run.train.model_copy(update=few)})
    if max(data.max_length or 0, run.train.block_length or 0, data.max_target_length or 0) > LONGEST:
        raise Unknown
    scratch = Path(tempfile.mkdtemp(prefix="check-"))
    try:
        found = planned_data(small, results, scratch)
        batch = found.train.batch(list(range(EXAMPLES)), 0) if found.train.lengths is not None and len(found.train) >= EXAMPLES else None
        steps = None if found.assumed or found.train.lengths is None else Plan.of(run.train, found.train.lengths).steps
        sample = Sample(batch and {name: tensor.clone() for name, tensor in batch.items()}, found.facts, steps)
        weakref.finalize(sample, shutil.rmtree, scratch, ignore_errors=True)  # a task may read its tokenizer
        return sample
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, NotPlannable):
            return _of_class(run)
        raise


def _of_class(run: Settings) -> Sample:
    """The first items of a dataset class; nothing of a stream, which is read once, and of files that are not fetched yet."""
    source = run.data.train
    if source is None or source.use is None:
        raise Unknown
    dataset = make(source.use, source.arguments, "data.train")
    facts = own_facts(dataset) | {"name": run.data.name, "label_kind": run.data.label_kind}
    if is_stream(dataset):
        problems = [*stream_data_problems(run.data), *stream_training_problems(run.train)]
        return Sample(None, facts, problems=problems)
    items = numbered(dataset, source.use, "data.train")
    chosen = range(min(EXAMPLES, len(items)))
    shapes = precomputed(items, source.use, np.array([], np.int64))
    computed = {field: np.zeros((len(chosen), *values.shape[1:]), values.dtype) for field, values in shapes.items()}
    return Sample(Items(items, source.use, chosen, run.data.fields, 0, computed).batch(chosen) if chosen else None, facts)


# --- without memory, or where that is impossible, with little


def tried(make: Callable[[], Made], own: bool) -> Made:
    """What `make` returns without memory. Code that a user wrote may need values: its failure counts if it fails with them too."""
    try:
        with without_memory():
            return make()
    except (SystemExit, Unknown):
        raise
    except BEYOND:
        if not own:
            raise Unknown from None
    except Exception:
        if not own:
            raise
    with little_memory():
        return make()


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """The probe of what a model attends to compares values."""
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it prints what is raised anyway
    probes = patch.object(token_losses, "_differ", lambda *_, **__: False)
    with probes, without_values(), without_moving(), FakeTensorMode(allow_non_fake_inputs=True):
        yield


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """What does not fit is not known, and no fault."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() if Path("/proc/self/statm").exists() else 0
    limit = used + MOST_GIB * 2**30
    resource.setrlimit(resource.RLIMIT_DATA, (limit if soft == resource.RLIM_INFINITY else min(soft, limit), hard))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise Unknown from None
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


# --- what is tried


def built(run: Settings, task: Task, model: PlannedModel, facts: JsonObject) -> dict[str, nn.Module]:
    return build(task, run.train, model.settings, None, DataInfo(facts))


def step(run: Settings, task: Task, model: PlannedModel, sample: Sample) -> None:
    """One step of the training, and a batch of an evaluation, with the metrics that a user wrote."""
    train = run.train.model_copy(update={"compile": False})
    modules = {name: adapt(module, run, model) for name, module in built(run, task, model, sample.facts).items()}
    strategy = Strategy("cpu", "fp32")
    state = make_train_state(task, train, modules, strategy)
    if sample.batch is None:
        return
    batch = {name: _here(tensor) for name, tensor in sample.batch.items()}
    take_step(state, [(MicroBatch(tuple(range(EXAMPLES))), batch)], 1.0, 0.0)
    with torch.no_grad(), strategy.autocast():
        for module in state.modules.values():
            module.eval()
        outputs = task.outputs(state.plain_modules(), batch)
        task.evaluation_step(outputs, batch)
        for name, metric in task.measured.items():
            if name in own_metrics(run) and not isinstance(metric, OfRows):
                metric.sums(*task.metric_inputs(name, outputs, batch))


def own_metrics(run: Settings) -> set[str]:
    """Those of a user's file."""
    return {name for name, metric in (*run.train.metrics.items(), *run.evaluate.metrics.items()) if ":" in metric.use}


def _here(tensor: Tensor) -> Tensor:
    """In the current mode: without memory where modules are."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode.from_tensor(tensor) if isinstance(mode, FakeTensorMode) else tensor.clone()


# --- any rank of many


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
    """Modules are on the CPU already. Moving one there, or changing its type, as for adapters, would swap its parameters, which torch refuses for
    fake tensors."""
    moving = nn.Module.to

    def to(module: nn.Module, *where: Value, **options: Value) -> nn.Module:
        device, dtype, *_ = torch._C._nn._parse_to(*where, **options)
        if device not in (None, torch.device("cpu")):
            return moving(module, *where, **options)
        made: dict[Tensor, Tensor] = {}  # of parameters that modules share
        for tensors in [vars(part)[each] for part in module.modules() for each in ("_parameters", "_buffers")]:
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_floating_point() and dtype not in (None, tensor.dtype):
                    if tensor not in made:
                        cast = tensor.detach().to(dtype)
                        made[tensor] = nn.Parameter(cast, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else cast
                    tensors[name] = made[tensor]
        return module

    with patch.object(nn.Module, "to", to):
        yield


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """What depends on values: objects, of which each rank keeps its own; whether a pipeline's hidden states stay as they are; which tokens
    go to which expert; and torch's grouped matrix product, whose version for fake tensors takes bf16 alone, unlike transformers' own."""
    from transformers import initialization
    from transformers.integrations import moe

    with (
        patch.object(dist, "broadcast_object_list", lambda *_, **__: None),
        patch.object(pipeline, "passes_unchanged", lambda *_: True),
        patch.object(Dispatch, "sizes", _evenly),
        patch.object(moe, "_can_use_grouped_mm", lambda *_: False),
        patch.dict(initialization.TORCH_INIT_FUNCTIONS, {"trunc_normal_": lambda tensor, *_, **__: tensor}),
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
