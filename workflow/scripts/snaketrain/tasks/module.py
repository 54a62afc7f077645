"""Any module on any data, from the configuration alone: predictions by name, a loss for each, regularisers and metrics.

Its arguments are in `config/schema/tasks.py`.
"""

import operator
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor, nn

from snaketrain.config.references import load
from snaketrain.config.schema.tasks import ModuleSettings
from snaketrain.data.loading.training_data import Batch
from snaketrain.models.pretrained import describe_model, make_model
from snaketrain.runtime.strict_json import Json, JsonObject
from snaketrain.tasks.base import Modules, Task
from snaketrain.tasks.losses import Summed, arguments_of, beside, by_position, call, constant_answer
from snaketrain.tasks.metric_names import MODES, modes_of_module
from snaketrain.tasks.metrics import Measuring, make_metric

Predictions = dict[str, Tensor]  # by name
WHERE = "train.task.arguments"
MOST_SHOWN = 100  # values of a prediction per example, in the table of predictions


class Module(Task):
    metrics: Mapping[str, str | None] = {}  # named by its arguments

    def __init__(self, **arguments: Json):
        self.given = ModuleSettings.model_validate(arguments)
        self.losses = {name: Summed(each.use, each.arguments, f"{WHERE}.losses.{name}") for name, each in self.given.losses.items()}
        self.regularisers = {
            each.called: Summed(each.use, each.arguments, f"{WHERE}.regularisers ({each.called})") for each in self.given.regularisers
        }
        self.measured = {
            name: make_metric(f"{WHERE}.metrics.{name}", each.use, each.arguments) for name, each in self.given.metrics.items()
        }
        own = {name: MODES.get(getattr(metric, "higher_is_better", None)) for name, metric in self.measured.items()}
        self.metrics = modes_of_module(self.given, own)

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        cls = load(model["use"])
        if folder is not None and not hasattr(cls, "from_pretrained"):
            raise SystemExit(f"model.source: {model['use']} has no `from_pretrained`. Give its weights as model.initial_weights instead.")
        of_transformers = folder is not None or getattr(cls, "config_class", None)
        module = make_model(model, folder, {}, {}) if of_transformers else cls(**model["arguments"])
        if not isinstance(module, nn.Module):
            raise SystemExit(f"model.use: {model['use']} creates a {type(module).__name__}, not a torch.nn.Module. Name another.")
        self.takes = arguments_of(module.forward)  # before a strategy wraps it
        self.label_names = data.get("label_names") or []
        return {"model": module}

    def training_step(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        return self.parts(self.predictions(modules, batch), batch)

    def outputs(self, modules: Modules, batch: Batch) -> Predictions:
        return self.predictions(modules, batch)

    def evaluation_step(self, outputs: Predictions, batch: Batch) -> dict[str, Tensor]:
        parts = self.parts(outputs, batch)
        sums = {"count": torch.tensor(self.count(batch)), "loss": reduce(operator.add, parts.values())}
        return sums | {f"loss_{name}": loss for name, loss in parts.items() if name}

    def metric_inputs(self, metric: str, outputs: Predictions, batch: Batch) -> tuple[Tensor, ...]:
        """A metric of `train.metrics` compares the first prediction with the target of its loss."""
        first, given = self.given.predictions[0], self.given.metrics.get(metric)
        compared = given or self.given.losses.get(first) or next(iter(self.given.losses.values()))
        prediction = outputs[given.prediction or first] if given else outputs[first]
        return tuple(beside(prediction, self.target(batch, compared.target, f"metrics.{metric}.target")))

    def predict(self, outputs: Predictions, batch: Batch) -> dict[str, Tensor]:
        """The predictions with their targets, unless they are large; for classes the probabilities, like other classifiers."""
        if classes := self.classes(outputs):
            name, target = classes
            logits, labels = outputs[name], batch[target]
            losses = nn.functional.cross_entropy(logits, labels, reduction="none")
            return {"probabilities": logits.softmax(-1), "label": labels, "loss": losses}
        targets = {column: batch[field] for field, column in self.columns.items() if field in batch}
        shown: dict[str, Tensor] = {}
        for name, value in outputs.items():
            loss = self.given.losses.get(name)
            column = self.columns.get(loss.target or "", "") if loss else ""
            shown |= {name: value} | ({column: targets[column]} if column in targets else {})
        return {name: value for name, value in (shown | targets).items() if value.numel() <= MOST_SHOWN * self.count(batch)}

    @property
    def columns(self) -> dict[str, str]:
        """The column of each target in the table of predictions."""
        taken = (*self.given.predictions, "id", "ids", "text", "text_pair")
        return {field: f"target_{field}" if field in taken else field for field in sorted(self.given.targets)}

    def baselines(self, rows: dict[str, Tensor]) -> dict[str, JsonObject]:
        """Losses and metrics of constant answers: the mean of the targets, or the shares of the classes."""
        losses, (first, *_) = self.given.losses, self.given.losses
        if first not in rows and "probabilities" in rows:  # `predict` returns classes in another form
            rows = {first: rows["probabilities"], self.columns[losses[first].target or ""]: rows["label"]}
        outputs = {name: rows[name] for name in self.given.predictions if name in rows}
        targets = {field: rows[column] for field, column in self.columns.items() if column in rows}
        if outputs.keys() != losses.keys() or targets.keys() != self.given.targets:
            return {}  # too large for the table, or without a target
        answers = {name: constant_answer(loss.use, outputs[name], targets.get(loss.target or "")) for name, loss in losses.items()}
        known = {name: answer for name, answer in answers.items() if answer}
        if len(known) < len(answers):
            return {}
        words = "; ".join(f"{name}: {answer}" if len(known) > 1 else answer for name, (_, answer) in known.items())
        measuring = Measuring(self)
        measuring.add({name: constant for name, (constant, _) in known.items()}, targets, self.count(targets))
        return {"constant": {"answer": words} | measuring.metrics()}

    def classes(self, predictions: Predictions) -> tuple[str, str] | None:
        """The prediction whose values are logits of the data's classes, and its target; None unless it is the only prediction."""
        (name, loss), *others = self.given.losses.items()
        if others or loss.target is None or not loss.use.endswith(("CrossEntropyLoss", "cross_entropy")):
            return None
        return (name, loss.target) if predictions[name].shape[1:] == (len(self.label_names),) else None

    def describe(self, modules: Modules, folder: Path) -> None:
        if hasattr(getattr(modules["model"], "config", None), "save_pretrained"):
            describe_model(modules["model"], folder)

    def predictions(self, modules: Modules, batch: Batch) -> Predictions:
        """The outputs of the model by name, in full precision."""
        names = self.given.inputs or [name for name in batch if name not in self.given.targets | {"ids"}]
        inputs = {name: self.field(batch, name, "inputs") for name in names}
        returned = self.named(call(modules["model"], inputs, self.takes, every=self.given.inputs is not None))
        return {name: value.float() if value.dtype in (torch.float16, torch.bfloat16) else value for name, value in returned.items()}

    def named(self, returned: object) -> Predictions:
        names = self.given.predictions
        if isinstance(returned, dict):
            if missing := [name for name in names if name not in returned]:
                raise SystemExit(
                    f"{WHERE}.predictions: the model returns no '{missing[0]}', but {', '.join(returned)}. Name some of these."
                )
            return {name: returned[name] for name in names}
        values = returned if isinstance(returned, tuple | list) else [returned]
        if len(values) != len(names):
            count = f"{len(values)} values" if len(values) > 1 else "1 value"
            raise SystemExit(
                f"{WHERE}.predictions: the model returns {count}, but {len(names)} are named ({', '.join(names)}). Name each, in order."
            )
        return dict(zip(names, values, strict=True))

    def parts(self, predictions: Predictions, batch: Batch) -> dict[str, Tensor]:
        """The weighted terms of the loss by name; a single term has an empty name."""
        examples = self.count(batch)
        found: dict[str, Tensor] = {}
        for name, loss in self.given.losses.items():
            values = beside(predictions[name], self.target(batch, loss.target, f"losses.{name}.target"))
            found[name] = loss.weight * self.losses[name](by_position(values), examples, every=True)
        for each in self.given.regularisers:
            named = {name: predictions[name] for name in each.predictions or self.given.predictions}
            found[each.called] = each.weight * self.regularisers[each.called](named, examples, every=each.predictions is not None)
        return found if len(found) > 1 else {"": found.popitem()[1]}

    def target(self, batch: Batch, name: str | None, where: str) -> Tensor | None:
        return None if name is None else self.field(batch, name, where)

    @staticmethod
    def field(batch: Batch, name: str, where: str) -> Tensor:
        if name not in batch:
            known = ", ".join(known for known in batch if known != "ids")
            raise SystemExit(f"{WHERE}.{where}: the data has no field '{name}'. It has: {known}. Name one of them.")
        return batch[name]
