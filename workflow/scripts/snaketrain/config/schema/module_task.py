"""The arguments of `tasks/module.py` as classes: all that may be said of a training from the configuration alone.

Ground floor: they are looked through before any job starts, which is also how the names of its metrics are known.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from snaketrain.config.errors import expectation, nearest
from snaketrain.config.schema import LARGEST, Section, Use
from snaketrain.runtime.json_types import JsonObject
from snaketrain.tasks.metric_modes import Modes, said

Weight = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class Loss(Use):
    """What one prediction is compared by."""

    target: str | None = Field(
        "target", description="the field of the data that it is compared with; none: it is handed the prediction alone"
    )
    weight: Weight = Field(1.0, description="what it is multiplied by")


class Regulariser(Use):
    """What else predictions cost: a function or class that is called with them."""

    name: str | None = Field(None, description="what it is logged as; none: the name of the function")
    weight: Weight = Field(1.0, description="what it is multiplied by")
    predictions: list[str] | None = Field(None, description="which it is called with; none: all that its arguments name, or simply all")

    @property
    def called(self) -> str:
        return self.name or self.use.replace(":", ".").rpartition(".")[2]


class Metric(Use):
    """What is measured of one prediction."""

    prediction: str | None = Field(None, description="none: the first one")
    target: str | None = Field("target", description="the field that it is compared with; none: it is handed the prediction alone")
    mode: Literal["max", "min"] | None = Field(
        None, description="whether more or less of it is better; none: as `higher_is_better` of its class says"
    )


class ModuleSettings(Section):
    """Any `torch.nn.Module` on any data. An example's loss is the mean over its elements; each part is logged by its name, `loss_<name>`."""

    predictions: list[str] = Field(
        ["output"], description="names of what the model returns: in order, or keys where it returns them by name"
    )
    inputs: list[str] | None = Field(None, description="fields that the model is handed; none: all but the targets")
    losses: dict[str, Loss] = Field(description="by the name of the prediction", min_length=1)
    regularisers: list[Regulariser] = Field([], description="what predictions cost besides")
    metrics: dict[str, Metric] = Field({}, description="by the name that they are logged as, and that `select.metric` knows")

    @property
    def parts(self) -> list[str]:
        """The names of all that is added up to the loss."""
        return [*self.losses, *(regulariser.called for regulariser in self.regularisers)]

    @property
    def logged(self) -> tuple[str, ...]:
        """The names of all metrics; parts of a loss are told only where there are several."""
        return ("loss", *(f"loss_{part}" for part in self.parts if len(self.parts) > 1), *self.metrics)

    def modes(self, own: Modes) -> Modes:
        """Whether more or less of all that is logged is better; `own`: what the metrics' classes say. Of losses less is."""
        return dict.fromkeys(self.logged, "min") | {name: said(name, own[name], metric.mode) for name, metric in self.metrics.items()}

    @property
    def targets(self) -> set[str]:
        compared: list[Loss | Metric] = [*self.losses.values(), *self.metrics.values()]
        return {each.target for each in compared if each.target}

    @property
    def uses(self) -> list[str]:
        """The names of all code that it names."""
        return [each.use for each in (*self.losses.values(), *self.regularisers, *self.metrics.values())]

    def contradictions(self) -> Iterator[str]:
        used = {f"losses.{name}": [name] for name in self.losses}
        used |= {f"regularisers ({each.called})": each.predictions or [] for each in self.regularisers}
        used |= {f"metrics.{name}": [each.prediction] for name, each in self.metrics.items() if each.prediction}
        for where, names in used.items():
            for name in names:
                if name not in self.predictions:
                    yield f"{where}: `predictions` names no '{name}'{nearest(name, self.predictions)} It has: {', '.join(self.predictions)}"
        if twice := [name for name, count in Counter(self.parts).items() if count > 1]:
            yield f"two parts of the loss are named '{twice[0]}': give the regulariser another `name`"
        if twice := [name for name, count in Counter(self.logged).items() if count > 1]:
            yield f"metrics: '{twice[0]}' is the name of a loss: call the metric something else"


def problems(arguments: JsonObject) -> list[str]:
    """What is wrong with them, each with its path."""
    try:
        ModuleSettings.model_validate(arguments)
    except ValidationError as error:
        return [_problem(item) for item in error.errors()]
    return []


def _problem(item: ErrorDetails) -> str:
    path = ".".join(["train.task.arguments", *map(str, item["loc"])])
    if item["type"] == "extra_forbidden":
        known = {name for section in (ModuleSettings, Loss, Regulariser, Metric) for name in section.model_fields}
        return f"{path}: no such argument{nearest(str(item['loc'][-1]), sorted(known))}"
    if item["type"] == "missing":
        return f"{path}: is missing."
    return f"{path}: {expectation(item)}."
