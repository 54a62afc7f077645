"""Metrics that a configuration names, of `train.metrics`, `evaluate.metrics` and the task `module`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from snaketrain.config.schema.base import Name, Use
from snaketrain.runtime.json_types import Json


class Metric(Use):
    """A metric: a short name of `tasks/metric_names.py`, a class of torchmetrics, or your own class or function."""

    mode: Literal["max", "min"] | None = Field(
        None, description="whether higher or lower is better; null: as `higher_is_better` of its class says"
    )


def named(value: Json) -> Json:
    """Short names can be listed, `[matthews_correlation, f1]`, or be keys without a value: each is logged under its own name."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        if unnamed := next((use for use in value if "." in use or ":" in use), None):
            raise ValueError(f"{unnamed!r} needs a name to be logged by: write it as `name: {unnamed}`")
        if twice := next((name for name in value if value.count(name) > 1), None):
            raise ValueError(f"names {twice!r} twice: name it once")
        value = dict.fromkeys(value)
    return {name: {"use": name} if metric is None else metric for name, metric in value.items()} if isinstance(value, dict) else value


Metrics = Annotated[dict[Name, Metric], BeforeValidator(named)]
