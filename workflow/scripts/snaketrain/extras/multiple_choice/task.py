"""Scores each choice of a question: by the head of an encoder, or by how probable a language model finds it."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from snaketrain.data.loading.examples import sequences
from snaketrain.data.loading.training_data import Batch
from snaketrain.labels import metrics_by_label_kind
from snaketrain.models.token_losses import NO_TARGET, can_be_probed, refuse_later_tokens, token_losses
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Modules
from snaketrain.tasks.text_classification import TextClassification


class MultipleChoice(TextClassification):
    metrics: Mapping[str, dict[str, str]] = metrics_by_label_kind()

    def __init__(self) -> None:
        super().__init__()

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        modules = super().build(model, folder, data)
        self.use, self.padding = model["use"], data["pad_token_id"]
        writes = getattr(modules["model"], "get_output_embeddings", lambda: None)() is not None
        self.by_likelihood = writes and not getattr(modules["model"].config, "is_encoder_decoder", False)
        if not self.by_likelihood and "MultipleChoice" not in type(modules["model"]).__name__:
            raise SystemExit(
                f"model.use: {self.use} neither has a head for choices nor continues texts. Name a class such as transformers.BertForMultipleChoice "
                "or transformers.LlamaForCausalLM."
            )
        if self.by_likelihood and can_be_probed(modules["model"]):
            refuse_later_tokens(modules["model"], self.use)
        return modules

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        return self.head.losses(self.scores(modules, batch)[..., 0], batch["labels"]).sum()

    def outputs(self, modules: Modules, batch: Batch) -> Tensor:
        return self.scores(modules, batch)

    def evaluation_step(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels = batch["labels"]
        losses = self.head.losses(outputs[..., 0], labels)
        return {"count": torch.tensor(len(labels)), "loss": losses.sum()} | self.head.sums(outputs, labels)

    def predict(self, outputs: Tensor, batch: Batch) -> Columns:  # type: ignore[override]
        best, normalized = (list(map(str, scores.argmax(-1).tolist())) for scores in outputs.unbind(-1))
        found: dict[str, Tensor | list[str]] = {"predicted": best, "loss": self.head.losses(outputs[..., 0], batch["labels"])}
        return found | self.head.predict(outputs) | {"normalized_predicted": normalized}

    def scores(self, modules: Modules, batch: Batch) -> Tensor:
        """Of each question and choice: the score, and its mean over the choice's tokens; -inf behind the choices of a question."""
        fills = {"input_ids": self.padding, "token_type_ids": 0, "scored": 0}
        question, choice, rows = sequences(batch, "choices", fills)
        found = self.likelihoods(modules, rows) if self.by_likelihood else self.by_head(modules, rows)
        table = found.new_full((*batch["choices"].shape, 2), -torch.inf)
        return table.index_put((question, choice), found)

    def by_head(self, modules: Modules, rows: Batch) -> Tensor:
        """Each choice as a question of its own with one choice, so that questions may have any number of them. It has no mean."""
        logits: Tensor = modules["model"](**{name: rows[name][:, None] for name in self.inputs if name in rows}).logits
        return logits.float().expand(-1, 2)

    def likelihoods(self, modules: Modules, rows: Batch) -> Tensor:
        """The log probability of all tokens of a choice after the question, and of one on average."""
        logits = modules["model"](input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], use_cache=False).logits
        scored = rows["scored"][:, 1:] > 0
        found = -token_losses(logits[:, :-1], rows["input_ids"][:, 1:].masked_fill(~scored, NO_TARGET)).sum(1)
        return torch.stack([found, found / scored.sum(1).clamp(min=1)], 1)
