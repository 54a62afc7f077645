"""What the evaluation of a run takes: which nodes, processes, memory and time."""

from collections.abc import Iterator

from snaketrain.config.schema import Compute, Settings
from snaketrain.orchestration.inspection.strategy_declarations import InvalidDeclaration, misfit, strategy_info


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
        size = {"nodes": "1", "processes": 1, "gpus": min(1, compute.gpus)}
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
    for nodes in compute.node_counts:
        unfit = misfit(run.train.strategy, info, nodes * compute.processes, compute.device, "compute.evaluation.processes")
        if unfit:
            yield f"{unfit}."
            return
