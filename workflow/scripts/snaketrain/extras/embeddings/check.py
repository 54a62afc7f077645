"""Refuses settings with which the negatives, and with them the result, would depend on how a batch is divided."""

from collections.abc import Iterator

from snaketrain.config.schema import Settings
from snaketrain.orchestration.strategy_declarations import InvalidDeclaration, strategy_info


def relevant_to(run: Settings) -> object:
    return run.train, run.compute


def problems_of_run(run: Settings) -> Iterator[str]:
    train, compute = run.train, run.compute
    if train.task.use != "embeddings":
        return
    why = "`embeddings` compares each pair with all others of its batch, and a microbatch has only some of them"
    instead = "More processes and train.recompute_activations save memory as well"
    if train.accumulate > 1:
        yield f"train.accumulate: is {train.accumulate}, but {why}. Set it to 1. {instead}."
    if compute.reduce_batch_on_oom:
        yield f"compute.reduce_batch_on_oom: is set, but {why}. Remove it. {instead}."
    try:
        shares = strategy_info(train.strategy.use).data_parallel_size(train.strategy.arguments, compute.processes)
    except InvalidDeclaration:  # reported elsewhere
        return
    if shares != compute.processes:
        yield f"train.strategy: with `{train.strategy.use}` some processes see the same pairs, which `embeddings` does not know. Use `ddp` or `fsdp`."
