"""Runs two steps and an evaluation of a training on fake tensors, and says what they took."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from snaketrain.checking.planned import PlannedData, PlannedModel, adapt
from snaketrain.checking.trying import fake_world, without_values
from snaketrain.config.references import load
from snaketrain.config.schema import Compute, Settings, Train
from snaketrain.data.loading.batches import MicroBatch, in_order, shard_batch
from snaketrain.data.loading.training_data import Batch
from snaketrain.extras.planning.footprints import Footprint, Pipeline, Work, World, combined
from snaketrain.extras.planning.ledger import Ledger
from snaketrain.models import Value
from snaketrain.models.adapters import frozen_names
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.losses import MicroBatches
from snaketrain.strategies.mesh import Mesh
from snaketrain.strategies.pipeline import Pipelined
from snaketrain.strategies.shards import local_optimizer
from snaketrain.tasks.causal_lm import CausalLm
from snaketrain.training.batch_limits import BatchLimits
from snaketrain.training.building import build, make_task, make_train_state, start_strategy
from snaketrain.training.checkpoints.rank_state import averaged_tensors
from snaketrain.training.plan import Plan, batches_of
from snaketrain.training.state import TrainState
from snaketrain.training.step import take_step
from snaketrain.training.weight_average import WeightAverage, begun

STEPS = 2  # the optimizer has a state from the second on, and DTensor has found its shardings
MOST_BATCHES = 20_000  # that are looked at


@dataclass(frozen=True)
class Shares:
    """What one process computes of the largest batch of a training, microbatch by microbatch, and of the largest of an evaluation."""

    training: list[tuple[MicroBatch, Batch]]
    evaluation: Batch | None
    examples: int  # of the whole batch
    steps: int | None  # of the whole training; unknown before the data is prepared, unless the settings say it
    mean_size: float  # of the batches of an epoch, of that of the largest


@dataclass(frozen=True)
class Traced:
    footprint: Footprint
    shares: Shares
    strategy: Strategy


def footprint(run: Settings, model: PlannedModel, data: PlannedData, processes: int, precision: str) -> Traced:
    pipeline = Pipeline.of(run, processes)
    ranks = pipeline.traced(processes)
    depth = None if run.train.freeze or run.train.groups else _depth(run, model, data)
    found = [_at_depth(run, model, data, World(processes, rank, pipeline), precision, depth) for rank in ranks]
    return Traced(combined([each.footprint for each in found], list(ranks.values())), found[0].shares, found[0].strategy)


def _at_depth(run: Settings, model: PlannedModel, data: PlannedData, world: World, precision: str, depth: int | None) -> Traced:
    """Of a deep model with equal blocks two shallow ones are traced."""
    depths = world.pipeline.depths
    if depth is None or depth <= depths[1] + 1:
        return trace(run, model, data, world, precision)
    few, more = (trace(run, model, data, world, precision, blocks) for blocks in depths)
    return Traced(few.footprint.extended(more.footprint, depths, depth), few.shares, few.strategy)


def _depth(run: Settings, model: PlannedModel, data: PlannedData) -> int | None:
    with without_values(), FakeTensorMode(allow_non_fake_inputs=True), Ledger():
        return depth_of(build(make_task(run.train, data.facts), run.train, model.settings, None, data.facts))


def trace(run: Settings, model: PlannedModel, data: PlannedData, world: World, precision: str, depth: int | None = None) -> Traced:
    train = run.train.model_copy(update={"compile": False})  # which keeps at most as much
    with fake_world(world.processes, world.rank):
        strategy = start_strategy(train, "cpu", "bf16" if precision == "fp8" else precision)  # float8 products keep what is kept in bf16
        shares = largest_shares(run, data, strategy.data_parallel_size)
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, Ledger() as ledger:
            task = make_task(train, data.facts)
            modules = build(task, train, model.settings, None, data.facts)
            modules = {name: adapt(module, run, model) for name, module in modules.items()}
            if depth is not None:
                cut(modules, depth)
            built = float(sum(parameter.nbytes for module in modules.values() for parameter in module.parameters()))
            state = make_train_state(task, train, modules, strategy)
            begin_average(state, train)
            tensors = [p for module in state.modules.values() for p in (*module.parameters(), *module.buffers())]
            ledger.mark([tensors, state.averages], "parameters")
            microbatches = [(each, _fake(fake, batch)) for each, batch in shares.training]
            few = world.pipeline.few(microbatches)
            with watched(state, ledger), attention(run, state):
                for _ in range(STEPS):
                    first = len(ledger.events)
                    work = step(state, few, ledger)
                if shares.evaluation is not None:
                    evaluate(state, _fake(fake, shares.evaluation), ledger)
                if len(few) < len(microbatches):
                    fewer = few[: world.pipeline.ranks]
                    work = step(state, fewer, ledger).extended(work, (len(fewer), len(few)), len(microbatches))
            moments = {phase: dict[str, float](parts) for phase, parts in ledger.peaks(first).items()}
            found = Footprint(moments, work.flops, work.exchanged, state.parameters, *saved(state), built)
    return Traced(found, shares, strategy)


def runs_on_gpu(compute: Compute) -> bool:
    return compute.required_device == "cuda" or (compute.memory_gb_of_gpu is not None and compute.device != "cpu")


def attention(run: Settings, state: TrainState) -> AbstractContextManager[object]:
    """GPUs have no fused kernel for fp32 attention in which heads share keys: torch keeps the scores of all pairs of tokens. With a mask,
    which causal_lm gives for packed texts alone, transformers repeats the keys instead."""
    in_fp32 = runs_on_gpu(run.compute) and state.strategy.precision in ("fp32", "tf32")
    shared = any(heads_share_keys(module) for module in state.plain_modules().values())
    unmasked = isinstance(state.task, CausalLm) and not run.train.packing
    return sdpa_kernel(SDPBackend.MATH) if in_fp32 and shared and unmasked else nullcontext()


def heads_share_keys(module: nn.Module) -> bool:
    config = getattr(module, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    return bool(heads != getattr(config, "num_key_value_heads", heads))


@torch.no_grad()
def begin_average(state: TrainState, train: Train) -> None:
    """If a callback keeps an average of the weights. Callbacks are not made, since they may write files."""
    found = [load(each.use) for each in train.callbacks]
    if any(isinstance(each, type) and issubclass(each, WeightAverage) for each in found):
        state.averages = {name: begun(averaged_tensors(module)) for name, module in state.plain_modules().items()}


def step(state: TrainState, microbatches: MicroBatches, ledger: Ledger) -> Work:
    flops, exchanged = ledger.flops, ledger.exchanged.copy()
    ledger.phase = "forward"
    take_step(state, microbatches, 1.0, 0.0)
    ledger.mark((value for values in _optimizer_states(state) for value in values), "optimizer")
    ledger.phase = "between"
    return Work(ledger.flops - flops, ledger.exchanged - exchanged)


@torch.no_grad()
def evaluate(state: TrainState, batch: Batch, ledger: Ledger) -> None:
    """As `training.evaluation` does for each batch, without generating answers."""
    for module in state.modules.values():
        module.eval()
    ledger.phase, before = "evaluation: forward", ledger.made_up
    try:
        with state.strategy.autocast():
            state.task.evaluation_step(state.task.outputs(state.plain_modules(), batch), batch)
    except Exception as error:
        if not (_reads_values(error) or ledger.made_up > before or _pipelines(state)):  # in a pipeline, another rank has the outputs
            raise


def _reads_values(error: Exception) -> bool:
    """Fake tensors have none, and numbers that are made up lead anywhere: what an evaluation computes up to there is known, which is the largest part."""
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException) or ".numpy()" in str(error)


@contextmanager
def watched(state: TrainState, ledger: Ledger) -> Iterator[None]:
    """Tell the ledger what the code is doing, and what tensors are for."""
    strategy = state.strategy
    backward, update = strategy.backward, strategy.update

    @wraps(backward)
    def watched_backward(loss: Tensor, weight: Tensor) -> None:
        backward(loss, weight)
        ledger.mark((p.grad for module in state.modules.values() for p in module.parameters()), "gradients")
        ledger.mark_living("backward", "gradients")  # those of microbatches, which are not reduced yet
        ledger.phase = "forward"

    @wraps(update)
    def watched_update(*arguments: Value, **options: Value) -> Tensor:
        ledger.mark((p.grad for module in state.modules.values() for p in module.parameters()), "gradients")
        ledger.phase = "update"
        return update(*arguments, **options)

    hooks = [hook for module in running(state) for hook in _hooks(module, ledger)]
    setattr(strategy, "backward", watched_backward)  # noqa: B010 - mypy refuses to replace a method of one object
    setattr(strategy, "update", watched_update)  # noqa: B010
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _pipelines(state: TrainState) -> dict[nn.Module, Pipelined]:
    return state.strategy.pipelines if isinstance(state.strategy, Mesh) else {}


def running(state: TrainState) -> list[nn.Module]:
    """Whose forward pass computes what a process has of a module: in a pipeline, the models of its stages."""
    pipelines, modules = _pipelines(state), [*state.modules.values()]
    return [
        part for module in modules for part in ([stage.model for stage in pipelines[module].stages] if module in pipelines else [module])
    ]


def _hooks(module: nn.Module, ledger: Ledger) -> list[RemovableHandle]:
    """What comes after a module's forward pass is the loss, up to the gradient of its output."""

    def enter(word: str) -> None:
        evaluates = ledger.phase.startswith("evaluation: ")
        ledger.phase = f"evaluation: {word}" if evaluates else word

    def after(_module: nn.Module, _inputs: object, output: Value) -> None:
        found = [each for each in tree_leaves(_plain(output)) if isinstance(each, Tensor)]
        ledger.mark(found, "loss")
        enter("loss")
        for tensor in [each for each in found if each.requires_grad][:1]:
            tensor.register_hook(lambda _: enter("backward"))  # type: ignore[no-untyped-call]  # torch's

    return [module.register_forward_pre_hook(lambda *_: enter("forward")), module.register_forward_hook(after)]


def _plain(output: Value) -> Value:
    """The outputs of transformers' models as a tuple."""
    return output.to_tuple() if hasattr(output, "to_tuple") else output


def _fake(fake: FakeTensorMode, batch: Batch) -> Batch:
    return {name: fake.from_tensor(tensor) for name, tensor in batch.items()}


def _optimizer_states(state: TrainState) -> list[list[object]]:
    return [list(values.values()) for optimizer in state.optimizers.values() for values in local_optimizer(optimizer).state.values()]


def saved(state: TrainState) -> tuple[float, float]:
    """The bytes of the weights and of the optimizer's state in a checkpoint, over all processes."""
    weights = optimizer_state = trained = kept = 0.0
    for name, module in state.plain_modules().items():
        frozen = frozen_names(module)
        parameters = dict(module.named_parameters())
        weights += sum(p.numel() * p.element_size() for key, p in parameters.items() if key not in frozen)
        weights += sum(average.numel() * average.element_size() for average in state.averages.get(name, {}).values())
        states = local_optimizer(state.optimizers[name]).state
        trained += sum(p.numel() for p in parameters.values() if p.requires_grad)
        for parameter, values in states.items():  # under zero1, of the parameters whose state this rank keeps
            kept += parameter.numel()
            optimizer_state += sum(value.numel() * value.element_size() for value in values.values() if isinstance(value, Tensor))
    return weights, optimizer_state * (trained / kept if kept else 0.0)


# --- the largest batches


def largest_shares(run: Settings, data: PlannedData, data_parallel_size: int) -> Shares:
    """Of the batches of the first epoch."""
    train = run.train
    if data.assumed:  # how many batches an epoch has is not known
        planned, steps = batches_of(train, data.train.lengths), train.steps
    else:
        plan = Plan.of(train, data.train.lengths)
        planned, steps = plan.batches, plan.steps
    # a stream shows no lengths: its first batch stands for all
    lengths = np.ones(train.batch_size, int) if data.train.lengths is None else np.maximum(data.train.lengths[:], 1)
    looked_at = 1 if data.train.lengths is None else MOST_BATCHES
    number_of_batches = min(planned.count(0), looked_at, *([steps] if steps is not None else []))
    batches = [planned.batch(0, number) for number in range(number_of_batches)]
    sizes = [_size(batch, lengths, train.packing) for batch in batches]
    largest = batches[int(np.argmax(sizes))]
    # ranks take turns in order of length, so that the last has the longest examples, and the first may have one more
    ranks = [shard_batch(largest, train.accumulate, rank, data_parallel_size) for rank in sorted({0, data_parallel_size - 1})]
    share = max(ranks, key=lambda microbatches: sum(_size(np.array(each.ids), lengths, train.packing) for each in microbatches))
    return Shares(
        [(microbatch, data.train.batch(microbatch.ids, 0)) for microbatch in share], _evaluated(run, data, data_parallel_size),
        len(largest), steps, float(np.mean(sizes) / max(sizes)),
    )  # fmt: skip


def _size(ids: np.ndarray, lengths: np.ndarray, packing: bool) -> int:
    return int(lengths[ids].sum() if packing else len(ids) * lengths[ids].max())


def _evaluated(run: Settings, data: PlannedData, data_parallel_size: int) -> Batch | None:
    """The first batch of an evaluation, which has the longest examples."""
    if not len(data.dev):
        return None
    limits = BatchLimits.of(run.train, run.train.accumulate, data_parallel_size)
    first = in_order(data.dev.lengths, *limits.over(data_parallel_size))[0]
    (microbatch,) = shard_batch(first, 1, 0, data_parallel_size)
    return data.dev.batch(microbatch.ids)


# --- depth


def depth_of(modules: dict[str, nn.Module]) -> int | None:
    """How many equal blocks the modules have; None where they have none, or lists of different ones or of different lengths."""
    lists = [found for module in modules.values() for found in block_lists(module)]
    depths = {len(found) for found in lists}
    alike = all(_shapes(block) == _shapes(found[0]) for found in lists for block in found)
    kinds = {kind for module in modules.values() for kind in getattr(getattr(module, "config", None), "layer_types", None) or ()}
    return depths.pop() if len(depths) == 1 and alike and len(kinds) <= 1 else None


def cut(modules: dict[str, nn.Module], depth: int) -> None:
    """Keep only the first blocks."""
    for module in modules.values():
        for found in block_lists(module):
            del found[depth:]
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "num_hidden_layers"):
            config.num_hidden_layers = depth


def block_lists(module: nn.Module) -> list[nn.ModuleList]:
    """The outermost lists of modules with parameters, whose entries are what `models.blocks.blocks` returns."""
    if isinstance(module, nn.ModuleList) and len(module) > 1:
        return [module] if any(True for _ in module.parameters()) else []
    return [found for child in module.children() for found in block_lists(child)]


def _shapes(block: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, parameter.shape) for name, parameter in block.named_parameters()]
