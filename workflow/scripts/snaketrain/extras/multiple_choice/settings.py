"""What contradicts multiple choice in a configuration. It adds no setting: `label_kind: choice` says what questions and choices are."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings

TASK, KIND = "multiple_choice", "choice"
OTHER_TASKS = ("text_classification", "causal_lm", "masked_lm", "seq2seq")


def contradictions(run: "Settings") -> Iterator[str]:
    data, task = run.data, run.train.task.use
    if task == TASK and (data.label_kind != KIND or data.by_class):
        yield f"train.task {TASK} needs questions with choices: name their columns in data.text, that of the answer in data.label, and set data.label_kind: {KIND}"
    if data.label_kind != KIND:
        return
    if task in OTHER_TASKS:
        yield f"data.label_kind is {KIND}, which train.task {task} does not read: use {TASK}"
    if not data.pair:
        yield f"data.label_kind is {KIND}, but data.text names one column ({data.text[0]}): name those of the question and of the choices, in this order"
    if task == TASK and (run.train.metrics or run.evaluate.metrics):
        yield f"train.metrics and evaluate.metrics are for a fixed number of classes, which the choices of train.task {TASK} are not: remove them"
