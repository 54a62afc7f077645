"""Refuses what a reference cannot have, and settings with which the loss of KTO would depend on how a batch is divided."""

from collections.abc import Iterator

from snaketrain.config.schema import Settings
from snaketrain.extras.preferences import WITH_REFERENCE


def relevant_to(run: Settings) -> object:
    return run.train, run.compute, run.model


def problems_of_run(run: Settings) -> Iterator[str]:
    task = run.train.task
    if task.use != "preferences":
        return
    loss = task.arguments.get("loss", "dpo")
    for name in ("mismatched", "reference"):
        given = {split: bool(source.arguments.get(name)) for split, source in run.data.sources.items() if source.use}
        if lacking := [split for split, has in given.items() if has < max(given.values())]:
            yield f"data.{lacking[0]}.arguments.{name}: is missing, and {max(given, key=given.__getitem__)} has it. Give it to all sets, or to none."
    if loss in WITH_REFERENCE and run.model.source is None:
        yield f"model.source: is missing: `{loss}` holds the model to where it started, and one with random weights knows nothing. Name trained weights."
    if run.model.adapters and run.model.adapters.lora_dropout:
        yield "model.adapters.lora_dropout: has no effect, since preferences are learnt without dropout. Remove it."
    if loss == "reward" and "pad_token_id" in run.model.arguments:
        yield "model.arguments.pad_token_id: is set by the tokenizer. Remove it."
    if loss != "kto":
        return
    why = "`kto` compares each answer with a mean over the whole batch, and a microbatch has only a part of it"
    if run.train.accumulate > 1:
        yield f"train.accumulate: is {run.train.accumulate}, but {why}. Set it to 1; more processes save memory as well."
    if run.compute.reduce_batch_on_oom:
        yield f"compute.reduce_batch_on_oom: is set, but {why}. Remove it; more processes save memory as well."
