"""The setting `train.sampling`, and how it contradicts others."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from snaketrain.config.schema.base import Section, is_null

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings


class Sampling(Section):
    """How often an epoch takes the examples of a class: it has as many examples as without, and the same number of steps."""

    by: Literal["label"] = Field("label", description="what makes examples rare: their class")
    power: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5,
        description="a class with n examples has a share of the epoch that is proportional to n to this power; 0: all classes have equal shares",
    )


FIELDS = {
    "train": {
        "sampling": (
            Sampling | None,
            Field(
                None,
                exclude_if=is_null,
                description="take examples of rare classes more often, `{by: label, power: 0.5}`; null: each example once in an epoch",
            ),
        )
    }
}


def code(run: "Settings") -> list[Path]:
    """What decides which examples are trained on."""
    return [Path(__file__).with_name("sampling.py")] if run.train.sampling else []  # type: ignore[attr-defined]  # one of FIELDS


def contradictions(run: "Settings") -> Iterator[str]:
    if run.train.sampling is None:  # type: ignore[attr-defined]  # one of FIELDS
        return
    if run.train.steps == 0:
        yield "train: `sampling` has no effect, since `steps` is 0 and nothing is trained: remove it"
    elif run.data.by_class:
        yield "train: `sampling` needs the labels of files, and the examples come from a dataset class: let that one repeat its rare items"
    elif run.data.label is None or run.data.label_kind != "class":
        yield "train: `sampling` needs one class for each example: set `data.label` and `data.label_kind: class`, or remove it"
