"""The arguments of the tasks that come with snaketrain."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from snaketrain.config.errors import nearest, problems_of
from snaketrain.config.schema import Metric, Use
from snaketrain.config.schema.base import LARGEST, Fraction, Section
from snaketrain.config.schema.train import with_names_of_their_own
from snaketrain.runtime.strict_json import JsonObject

# --- The arguments of `tasks/text_classification.py` as a class: how the loss weighs examples. Nothing here imports torch.

CHECKED_BY_CLASS = ("module", "text_classification")  # tasks whose arguments are declared here

ClassWeight = Annotated[float, Field(ge=0, le=LARGEST)]


class TextClassificationSettings(Section):
    """The loss that is trained. Evaluations report the plain one, so that runs with different losses can be compared."""

    class_weights: Literal["balanced"] | dict[str, ClassWeight] | None = Field(
        None,
        description="the weight of each class by name, 1 if it is left out; `balanced`: the rarer a class is in the training data, the larger its weight. With `label_kind: classes`, the weight of having the class",
    )
    label_smoothing: Fraction = Field(0.0, description="the share of the right answer's probability that is spread over all answers")
    focal_gamma: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="the focal loss: an example's loss times (1 - probability of the right answer) to this power"
    )

    loss: Use | None = Field(
        None,
        description="a loss in place of these: a function or class, called with the logits and the labels, as `torch.nn.MultiMarginLoss` is",
    )

    def contradictions(self) -> Iterator[str]:
        if self.loss and (self.class_weights or self.label_smoothing or self.focal_gamma):
            yield "loss: takes the place of class_weights, label_smoothing and focal_gamma; remove these, or give them to it as its arguments"
        if self.label_smoothing and self.focal_gamma:
            yield "label_smoothing and focal_gamma: the focal loss is of the right answer alone; keep one of the two"

    def refuse_unknown_classes(self, names: Sequence[str]) -> None:
        if isinstance(self.class_weights, dict) and (unknown := next((name for name in self.class_weights if name not in names), None)):
            raise SystemExit(
                f"train.task.arguments.class_weights: there is no class {unknown!r}{nearest(unknown, names)} Classes: {', '.join(names)}."
            )


# --- The arguments of `tasks/module.py` as classes: losses, regularisers and metrics that the configuration declares.
#
# Nothing here imports torch: they are checked before any job starts, which is also how the names of the metrics are known.

Weight = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class Loss(Use):
    """A loss of one prediction."""

    target: str | None = Field(
        "target", description="the field of the data that the prediction is compared with; null: only the prediction is passed"
    )
    weight: Weight = Field(1.0, description="its weight in the sum")


class Regulariser(Use):
    """A further term of the loss: a function or class that is called with predictions."""

    name: str | None = Field(None, description="the name under which it is logged; null: the name of the function")
    weight: Weight = Field(1.0, description="its weight in the sum")
    predictions: list[str] | None = Field(
        None, description="the predictions that it is called with; null: those that its parameters are named after, or else all"
    )

    @property
    def called(self) -> str:
        return self.name or self.use.replace(":", ".").rpartition(".")[2]


class PredictionMetric(Metric):
    """A metric of one prediction."""

    prediction: str | None = Field(None, description="the prediction it is computed from; null: the first one")
    target: str | None = Field("target", description="the field that the prediction is compared with; null: only the prediction is passed")


class ModuleSettings(Section):
    """Any `torch.nn.Module` on any data. An example's loss is the mean over its elements; of several parts, each is logged by its name, `loss_<name>`."""

    predictions: list[str] = Field(["output"], description="names of the model's outputs: in order, or the keys if it returns a dictionary")
    inputs: list[str] | None = Field(
        None, description="fields that are passed to the model; null: all but the targets, or of these those that its `forward` names"
    )
    losses: dict[str, Loss] = Field(description="losses by the name of the prediction", min_length=1)
    regularisers: list[Regulariser] = Field([], description="further terms of the loss")
    metrics: Annotated[dict[str, PredictionMetric], AfterValidator(with_names_of_their_own)] = Field(
        {}, description="metrics by the name under which they are logged, and by which `select.metric` selects"
    )

    @property
    def parts(self) -> list[str]:
        """The names of all terms of the loss."""
        return [*self.losses, *(regulariser.called for regulariser in self.regularisers)]

    @property
    def logged(self) -> tuple[str, ...]:
        """The names of all metrics; the terms of the loss are logged only if there are several."""
        return ("loss", *(f"loss_{part}" for part in self.parts if len(self.parts) > 1), *self.metrics)

    @property
    def targets(self) -> set[str]:
        compared: list[Loss | PredictionMetric] = [*self.losses.values(), *self.metrics.values()]
        return {each.target for each in compared if each.target}

    def contradictions(self) -> Iterator[str]:
        used = {f"losses.{name}": [name] for name in self.losses}
        used |= {f"regularisers ({each.called})": each.predictions or [] for each in self.regularisers}
        used |= {f"metrics.{name}": [each.prediction] for name, each in self.metrics.items() if each.prediction}
        for where, names in used.items():
            for name in names:
                if name not in self.predictions:
                    yield f"{where}: there is no prediction '{name}'{nearest(name, self.predictions)} `predictions` has: {', '.join(self.predictions)}"
        if not any((*(loss.weight for loss in self.losses.values()), *(each.weight for each in self.regularisers))):
            yield "the weights of all losses are 0, so that nothing is learnt: give one of them another weight"
        if twice := [name for name, count in Counter(self.parts).items() if count > 1]:
            yield f"two parts of the loss are named '{twice[0]}': give the regulariser another `name`"
        if twice := [name for name, count in Counter(self.logged).items() if count > 1]:
            yield f"metrics: '{twice[0]}' is the name of a loss: call the metric something else"


def problems(arguments: JsonObject, settings: type[Section] = ModuleSettings) -> list[str]:
    """All errors in the arguments of a task, each with its path."""
    return problems_of(settings, arguments, "train.task.arguments", "argument")
