"""The setting `data.shards`, and how it contradicts others."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer

from snaketrain.config.schema.base import Positive, is_null

if TYPE_CHECKING:
    from snaketrain.config.schema import Data, Settings

# All numbers of shards are recorded and compared as one, since they give the same result.
Shards = Annotated[Positive | None, PlainSerializer(lambda count: count and 1)]

FIELDS: dict[str, dict[str, tuple[Any, Any]]] = {
    "data": {
        "shards": (
            Shards,
            Field(
                None,
                exclude_if=is_null,
                le=10_000,
                description="for large data: prepare the files in this many jobs, each file once; dev and test are then split off by a hash of each text, and "
                "`labels` must list the classes. "
                "The number of jobs does not change the result; null: one job, and a split drawn among all rows",
            ),
        )
    }
}


def shards_of(data: "Data") -> int | None:
    """The setting, which the type that the core declares does not have."""
    return vars(data)["shards"]


def contradictions(run: "Settings") -> Iterator[str]:
    data = run.data
    if shards_of(data) is None:
        return
    if data.by_class:
        yield "data: `shards` divides files among jobs, but the examples come from a dataset class: remove `shards`"
    if data.train is None:
        yield "data: `shards` divides the files of `train`, which is not given: remove `shards`"
    if data.finds_classes:
        yield "data: with `shards` each file is prepared by itself, so that all must have the same classes: list them in `labels`, or remove `shards`"
    prepared_together = ("train", "dev") if data.own_test_set else ("train", "dev", "test")
    if limits := [f"`limit_{split}`" for split in prepared_together if getattr(data, f"limit_{split}") is not None]:
        yield f"data: {limits[0]} draws from all rows, but with `shards` each file is prepared separately: remove one of them"
