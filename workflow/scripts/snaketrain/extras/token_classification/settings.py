"""What contradicts token classification in a configuration. It adds no setting: `label_kind: tags` says what words and tags are."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings

TASK, KIND = "token_classification", "tags"
OTHER_TASKS = ("text_classification", "causal_lm", "masked_lm", "seq2seq")


def contradictions(run: "Settings") -> Iterator[str]:
    data, task = run.data, run.train.task.use
    if task == TASK and (data.label_kind != KIND or data.by_class):
        yield f"train.task {TASK} needs words with tags: name their columns in data.text and data.label, and set data.label_kind: {KIND}"
    if data.label_kind != KIND:
        return
    if task in OTHER_TASKS:
        yield f"data.label_kind is {KIND}, which train.task {task} does not read: use {TASK}"
    if data.pair:
        yield f"data.label_kind is {KIND}, but data.text names two columns ({', '.join(data.text)}): name the one with the words"
