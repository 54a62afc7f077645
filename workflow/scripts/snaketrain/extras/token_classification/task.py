"""Predicts the tag of each word from the word's first token."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from snaketrain.data.loading.training_data import Batch
from snaketrain.extras.token_classification import NO_LABEL, NO_TOKEN, SPACE
from snaketrain.extras.token_classification.label_kind import TagsHead
from snaketrain.labels import metrics_by_label_kind
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Modules
from snaketrain.tasks.losses import loss_of_learnt, named_loss
from snaketrain.tasks.text_classification import TextClassification


class WordOutputs(NamedTuple):
    logits: Tensor  # of each word
    predicted: Tensor  # the class of each word; NO_TOKEN, or NO_LABEL behind the sentence


class TokenClassification(TextClassification):
    metrics: Mapping[str, dict[str, str]] = metrics_by_label_kind()
    counts = "words"
    head: TagsHead

    def __init__(self, loss: JsonObject | None = None) -> None:
        """`loss`: one in place of the cross entropy, called with the logits and the classes of all words."""
        super().__init__()
        if loss is not None:
            self.own_loss = named_loss(loss)

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        if data["label_kind"] != "tags":
            raise SystemExit(f"data.label_kind: is {data['label_kind']}, but token_classification learns `tags`.")
        modules = super().build(model, folder, data)
        self.use, self.head = model["use"], TagsHead(data["label_names"])
        return modules

    def count(self, batch: Batch) -> int:
        return int((learnt(batch) != NO_LABEL).sum())

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        logits, labels = self.logits(modules, batch), learnt(batch)
        return loss_of_learnt(self.own_loss, logits, labels) if self.own_loss else self.head.losses(logits, labels).sum()

    def outputs(self, modules: Modules, batch: Batch) -> WordOutputs:  # type: ignore[override]
        logits, starts = self.logits(modules, batch).float(), batch["word_starts"]
        return WordOutputs(logits, logits.argmax(-1).where(starts >= 0, starts))

    def evaluation_step(self, outputs: WordOutputs, batch: Batch) -> dict[str, Tensor]:  # type: ignore[override]
        labels = learnt(batch)
        sums = {"count": (labels != NO_LABEL).sum(), "loss": self.head.losses(outputs.logits, labels).sum()}
        return sums | self.head.sums(outputs.predicted, given(batch))

    def metric_inputs(self, metric: str, outputs: WordOutputs, batch: Batch) -> tuple[Tensor, ...]:  # type: ignore[override]
        """A row for each word that has a token."""
        labels = learnt(batch)
        return outputs.logits[labels != NO_LABEL], labels[labels != NO_LABEL]

    def predict(self, outputs: WordOutputs, batch: Batch) -> Columns:  # type: ignore[override]
        """The mean loss of each sentence's words, and their tags."""
        labels = learnt(batch)
        loss = self.head.losses(outputs.logits, labels) / (labels != NO_LABEL).sum(1)
        tags = list(map(SPACE.join, self.head.tags(outputs.predicted)))
        return {"predicted": tags, "loss": loss, **self.head.predict(outputs.predicted)}

    def logits(self, modules: Modules, batch: Batch) -> Tensor:
        of_tokens, starts = super().logits(modules, batch), batch["word_starts"]
        if of_tokens.ndim != 3:
            raise SystemExit(
                f"model.use: {self.use} does not classify tokens. Name a class such as transformers.BertForTokenClassification."
            )
        return of_tokens.gather(1, starts.clamp(min=0)[..., None].expand(-1, -1, of_tokens.shape[-1]))


def given(batch: Batch) -> Tensor:
    """The class of each word; in data without labels NO_LABEL."""
    return pad(batch["labels"], (0, batch["word_starts"].shape[1] - batch["labels"].shape[1]), value=NO_LABEL)


def learnt(batch: Batch) -> Tensor:
    """Only of words that have a token, from which the class can be predicted."""
    return given(batch).masked_fill(batch["word_starts"] <= NO_TOKEN, NO_LABEL)
