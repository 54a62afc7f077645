"""The setting `data.stride`, and what contradicts question answering in a configuration."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from snaketrain.config.schema.base import Positive, is_null

if TYPE_CHECKING:
    from snaketrain.config.schema import Data, Settings

TASK, KIND, OTHER_TASKS = "question_answering", "answers", ("text_classification", "causal_lm", "masked_lm", "seq2seq")

FIELDS: dict[str, dict[str, tuple[Any, Any]]] = {
    "data": {
        "stride": (
            Positive | None,
            Field(
                None,
                exclude_if=is_null,
                description="with `label_kind: answers`: the tokens that two neighbouring windows of a long context have in common; null: a third of "
                "`max_length`",
            ),
        )
    }
}
OF_EACH_SET = ("stride",)


def stride_of(data: "Data") -> int:
    """The setting, which the type that the core declares does not have."""
    given: int | None = vars(data)["stride"]
    return (data.max_length or 0) // 3 if given is None else given


def contradictions(run: "Settings") -> Iterator[str]:
    data, task = run.data, run.train.task.use
    if task == TASK and (data.label_kind != KIND or data.by_class):
        yield f"train.task {TASK} needs questions, contexts and answers: name their columns in data.text and data.label, and set data.label_kind: {KIND}"
    if vars(data)["stride"] is not None and data.label_kind != KIND:
        yield f"data.stride is for data.label_kind: {KIND}, but data.label_kind is {data.label_kind}: remove it"
    if data.label_kind != KIND:
        return
    if task in OTHER_TASKS:
        yield f"data.label_kind is {KIND}, which train.task {task} does not read: use {TASK}"
    if not data.pair:
        yield f"data.label_kind is {KIND}, but data.text names one column ({data.text[0]}): name those of the question and the context, in this order"
    if task == TASK and (run.train.metrics or run.evaluate.metrics):
        yield f"train.metrics and evaluate.metrics: train.task {TASK} predicts texts, which these do not compare: remove them"
