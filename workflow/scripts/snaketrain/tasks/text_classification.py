"""Sorts texts, or pairs of them, into classes, into several classes at once, or along a scale: as `data.label_kind` says."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snaketrain.labels.losses import KINDS
from snaketrain.models.pretrained import describe_model, make_model
from snaketrain.tasks.base import Batch, Modules, Task

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class TextClassification(Task):
    metrics: Mapping[str, Any] = {  # for each `data.label_kind`
        "class": {"loss": "min", "accuracy": "max", "macro_f1": "max"},
        "classes": {"loss": "min", "micro_f1": "max", "macro_f1": "max", "exact_match": "max"},
        "number": {"loss": "min", "mae": "min", "pearson": "max", "r2": "max"},
    }

    def build(self, model: dict[str, Any], folder: Path | None, data: dict[str, Any]) -> Modules:
        self.kind = KINDS[data["label_kind"]]
        labels = self.kind.outputs(data["label_names"]) | {"problem_type": self.kind.problem_type}
        if not labels["num_labels"]:
            raise SystemExit("data.label: is null: there is nothing to classify. Name the column of the label, or another train.task.")
        text = {"vocab_size": data["vocab_size"], "pad_token_id": data["pad_token_id"]}
        built = make_model(model, folder, labels, text)
        known = inspect.signature(built.forward).parameters  # BART, for one, knows no token types
        self.inputs = INPUTS[:2] if "attention_mask" in known and "token_type_ids" not in known else INPUTS
        return {"model": built}

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        return self.kind.losses(self.logits(modules, batch), batch["labels"]).sum()

    def outputs(self, modules: Modules, batch: Batch) -> Tensor:
        return self.logits(modules, batch).float()

    def evaluation_step(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels = batch["labels"]
        sums = {"count": torch.tensor(len(labels)), "loss": self.kind.losses(outputs, labels).sum()}
        return sums | self.kind.sums(outputs, labels)

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return {"loss": float(sums["loss"] / sums["count"])} | self.kind.measure(sums)

    def predict(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return self.kind.predict(outputs) | {"loss": self.kind.losses(outputs, batch["labels"])}

    def describe(self, modules: Modules, folder: Path) -> None:
        describe_model(modules["model"], folder)

    def logits(self, modules: Modules, batch: Batch) -> Tensor:
        return modules["model"](**{name: batch[name] for name in self.inputs if name in batch}).logits
