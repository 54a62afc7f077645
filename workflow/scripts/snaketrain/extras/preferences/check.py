"""Refuses settings with which the loss of KTO would depend on how a batch is divided."""

from collections.abc import Iterator

from snaketrain.config.schema import Settings


def relevant_to(run: Settings) -> object:
    return run.train, run.compute


def problems_of_run(run: Settings) -> Iterator[str]:
    task = run.train.task
    if task.use != "preferences" or task.arguments.get("loss") != "kto":
        return
    why = "`kto` compares each answer with a mean over the whole batch, and a microbatch has only a part of it"
    if run.train.accumulate > 1:
        yield f"train.accumulate: is {run.train.accumulate}, but {why}. Set it to 1; more processes save memory as well."
    if run.compute.reduce_batch_on_oom:
        yield f"compute.reduce_batch_on_oom: is set, but {why}. Remove it; more processes save memory as well."
