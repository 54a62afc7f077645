"""Sorts texts, or pairs of them, into classes."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from snaketrain.loading import load
from snaketrain.tasks.base import Batch, Task, Update


class TextClassification(Task):
    metrics = ("loss", "accuracy", "macro_f1")

    def build(self, model: dict[str, Any], folder: Path | None, data: dict[str, Any]) -> dict[str, nn.Module]:
        names = data["label_names"]
        labels = {"num_labels": len(names), "id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
        kind = load(model["use"])
        if folder is not None:
            return {"model": kind.from_pretrained(folder, local_files_only=True, **labels, **model["arguments"])}
        if getattr(kind, "config_class", None) is None:
            raise SystemExit(
                f"model.use: {model['use']} cannot start at random. Name a class such as transformers.BertForSequenceClassification, or give model.source."
            )
        text = {"vocab_size": data["vocab_size"], "pad_token_id": data["pad_token_id"]}
        return {"model": kind(kind.config_class(**(text | labels | model["arguments"])))}

    def training_step(self, modules: dict[str, nn.Module], batch: Batch, update: Update) -> None:
        update("model", cross_entropy(self._logits(modules, batch), batch["labels"], reduction="sum", ignore_index=-100))

    def evaluation_step(self, modules: dict[str, nn.Module], batch: Batch) -> dict[str, Tensor]:
        logits, labels = self._logits(modules, batch).float(), batch["labels"]
        classes = logits.shape[-1]
        pairs = labels * classes + logits.argmax(-1)  # a label and a prediction as one number, to count them in one go
        return {
            "count": torch.tensor(len(labels)),
            "loss": cross_entropy(logits, labels, reduction="sum", ignore_index=-100),
            "confusion": one_hot(pairs, classes * classes).sum(0).view(classes, classes),
        }

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        confusion = sums["confusion"]
        right = confusion.diagonal()
        # a class that is neither there nor predicted counts as 0, as in scikit-learn with zero_division=0
        f1 = 2 * right / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
        return {
            "loss": float(sums["loss"] / sums["count"]),
            "accuracy": float(right.sum() / sums["count"]),
            "macro_f1": float(f1.mean()),
        }

    def predict(self, modules: dict[str, nn.Module], batch: Batch) -> dict[str, Tensor]:
        logits = self._logits(modules, batch).float()
        loss = cross_entropy(logits, batch["labels"], reduction="none", ignore_index=-100)
        return {"probabilities": logits.softmax(-1), "loss": loss}

    def describe(self, modules: dict[str, nn.Module], folder: Path) -> None:
        config = getattr(modules["model"], "config", None)
        if config is not None:
            config.architectures = [type(modules["model"]).__name__]
            config.save_pretrained(folder)

    @staticmethod
    def _logits(modules: dict[str, nn.Module], batch: Batch) -> Tensor:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
        return modules["model"](**inputs).logits
