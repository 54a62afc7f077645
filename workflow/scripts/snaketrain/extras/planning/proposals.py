"""The smallest change of a run with which it fits into the memory of its GPUs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from snaketrain.checking.planned import NotPlannable
from snaketrain.config.schema import Settings
from snaketrain.extras.planning.estimates import Estimate, processes_of
from snaketrain.orchestration.strategy_declarations import strategy_errors, strategy_info
from snaketrain.runtime.strict_json import JsonObject

GPUS_OF_A_NODE = 8
MOST_PROCESSES = 1024
TENSOR_DEGREES = 2, 4, 8


@dataclass(frozen=True)
class Proposal:
    changes: dict[str, object]  # settings by their dotted names
    estimate: Estimate


def proposal(estimate: Estimate, plan: Callable[[Settings], Estimate], report: Callable[[str], None]) -> Proposal | None:
    """The first candidate that fits. `plan` may raise NotPlannable; `report` is told what is tried."""
    limit, tried = estimate.limit or 0.0, dict[str, Estimate]()
    for changes in candidates(estimate.settings):
        run = changed(estimate.settings, changes)
        if next(strategy_errors(run), None):
            continue
        states_of = str((run.train.strategy, run.compute))
        if (same := tried.get(states_of)) and same.footprint.states + same.overhead > limit:
            continue  # smaller microbatches or fewer activations do not help
        report(described(changes))
        try:
            found = plan(run)
        except NotPlannable:
            continue
        tried[states_of] = found
        if found.fits:
            return Proposal(changes, found)
    return None


def candidates(run: Settings) -> Iterator[dict[str, object]]:
    """From those that change least: smaller microbatches, recomputed activations, another strategy, more processes."""
    yield from without_more_hardware(run, {}, processes_of(run.compute))
    if not strategy_info(run.train.strategy.use).shards_model:
        yield from without_more_hardware(run, {"train.strategy": {"use": "fsdp"}}, processes_of(run.compute))
    for degree in TENSOR_DEGREES:
        strategy = {
            "use": "tensor_parallel",
            "arguments": {"tensor": degree} | ({"shard": True} if processes_of(run.compute) > degree else {}),
        }
        yield {"train.strategy": strategy, "train.recompute_activations": True}
    for processes, size in larger(run):
        yield from without_more_hardware(run, size | {"train.strategy": {"use": "fsdp"}}, processes)


def without_more_hardware(run: Settings, always: dict[str, object], processes: int) -> Iterator[dict[str, object]]:
    if always:
        yield always
    for recompute in (False, True):
        change = always | ({"train.recompute_activations": True} if recompute and not run.train.recompute_activations else {})
        if recompute and change == always:
            return
        if recompute:
            yield change
        for microbatches in doublings(changed(run, always), processes):
            yield change | {"train.accumulate": microbatches}


def doublings(run: Settings, processes: int) -> Iterator[int]:
    """The number of microbatches, up to one example in each."""
    strategy = run.train.strategy
    shares = strategy_info(strategy.use).data_parallel_size(strategy.arguments, processes)
    most, number = (run.train.batch_size // shares if run.train.batch_tokens is None else 64), run.train.accumulate * 2
    while number <= most:
        yield number
        number *= 2


def larger(run: Settings) -> Iterator[tuple[int, dict[str, object]]]:
    """More processes on one node, then more nodes."""
    compute, processes = run.compute, processes_of(run.compute)
    of_node = compute.processes
    while (processes := processes * 2) <= MOST_PROCESSES:
        if compute.node_counts[0] == 1 and of_node * 2 <= GPUS_OF_A_NODE:
            of_node *= 2
            more: dict[str, object] = {"compute.processes": of_node}
            more |= {"compute.gpus": of_node} if compute.gpus else {}
            yield processes, more
        else:
            size: dict[str, object] = {"compute.nodes": str(processes // of_node)}
            if of_node != compute.processes:
                size |= {"compute.processes": of_node} | ({"compute.gpus": of_node} if compute.gpus else {})
            yield processes, size


def changed(run: Settings, changes: dict[str, object]) -> Settings:
    raw: JsonObject = run.model_dump(mode="json")
    for name, value in changes.items():
        section, _, key = name.partition(".")
        raw[section][key] = value
    return Settings.model_validate(raw)


def described(changes: dict[str, object]) -> str:
    """As in the configuration."""
    return ", ".join(f"{name}: {_written(value)}" for name, value in changes.items())


def _written(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_written(inner)}" for key, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
