"""Predicts the label of texts or pairs of texts: one class, several classes or a number, depending on `data.label_kind`."""

import inspect
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from snaketrain.config.references import load
from snaketrain.config.schema.tasks import TextClassificationSettings
from snaketrain.data.loading.training_data import Batch
from snaketrain.labels import label_kind, metrics_by_label_kind
from snaketrain.models.pretrained import describe_model, make_model, read_config
from snaketrain.runtime.strict_json import Json, JsonObject
from snaketrain.tasks.base import Modules, Task
from snaketrain.tasks.losses import Summed, beside, by_position
from snaketrain.tasks.metrics import make_metric

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class TextClassification(Task):
    metrics: Mapping[str, dict[str, str]] = metrics_by_label_kind()
    of_text: tuple[str, ...] = ("vocab_size", "pad_token_id")  # fields of a new model's configuration, as the data gives them
    # of a derived class with an __init__ of its own
    given = TextClassificationSettings()
    own_loss: Summed | None = None

    def __init__(self, **arguments: Json):
        self.given = TextClassificationSettings.model_validate(arguments)
        if loss := self.given.loss:
            self.own_loss = Summed(loss.use, loss.arguments, "train.task.arguments.loss")

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        self.head = label_kind(data["label_kind"]).head
        of_rows = {name: make_metric(f"data.label_kind ({name})", use, {}) for name, use in self.head.of_rows.items()}
        self.measured = {**of_rows, **self.measured}
        labels = self.head.model_fields(data["label_names"])
        if not labels["num_labels"]:
            raise SystemExit("data.label: is null: there is nothing to classify. Name the column of the label, or another train.task.")
        self.training_losses = self.head.training_losses(self.given, data["label_names"], lambda: class_counts(data))
        if folder is not None:
            check_order(data["label_names"], read_config(load(model["use"]), folder).id2label or {})
        built = make_model(model, folder, labels, {name: data[name] for name in self.of_text})
        known = inspect.signature(built.forward).parameters  # BART, for example, takes no token types
        self.inputs = INPUTS[:2] if "attention_mask" in known and "token_type_ids" not in known else INPUTS
        return {"model": built}

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        logits, labels = self.logits(modules, batch), batch["labels"]
        if self.own_loss:
            return self.own_loss(by_position(beside(logits, labels)), len(labels), every=True)
        return self.training_losses(logits, labels).sum()

    def outputs(self, modules: Modules, batch: Batch) -> Tensor:
        return self.logits(modules, batch).float()

    def evaluation_step(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels = batch["labels"]
        sums = {"count": torch.tensor(len(labels)), "loss": self.head.losses(outputs, labels).sum()}
        return sums | self.head.sums(outputs, labels)

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return {"loss": float(sums["loss"] / sums["count"])} | self.head.measure(sums)

    def metric_inputs(self, metric: str, outputs: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        return self.head.metric_inputs(outputs, batch["labels"])

    def predict(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return self.head.predict(outputs) | {"loss": self.head.losses(outputs, batch["labels"])}

    def describe(self, modules: Modules, folder: Path) -> None:
        describe_model(modules["model"], folder)

    def logits(self, modules: Modules, batch: Batch) -> Tensor:
        return modules["model"](**{name: batch[name] for name in self.inputs if name in batch}).logits


def check_order(names: list[str], pretrained: Mapping[int, str] | Mapping[str, str]) -> None:
    """Pretrained weights know a class by its number."""
    known = [name for _, name in sorted((int(number), name) for number, name in pretrained.items())]
    ours, theirs = ([name.casefold() for name in each] for each in (names, known))
    if ours != theirs and sorted(ours) == sorted(theirs):
        raise SystemExit(
            f"data.labels: the classes are {', '.join(names)}, in this order, and those of model.source {', '.join(known)}. Name them in its order."
        )


def class_counts(data: JsonObject) -> tuple[list[int], int]:
    """How many training examples each class has, and how many there are."""
    train = data["splits"]["train"]
    if "label_counts" not in train:
        raise SystemExit(
            "train.task.arguments.class_weights: the examples come from a dataset class, whose classes are not counted. Give weights by name."
        )
    return train["label_counts"], train["examples"]
