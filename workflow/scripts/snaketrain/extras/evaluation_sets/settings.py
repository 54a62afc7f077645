"""The section `evaluation_sets`: further examples on which trained models are evaluated, and how they are read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from snaketrain.config.schema.base import Positive
from snaketrain.config.schema.data import CellByColumn, Data, NameByLabel
from snaketrain.config.schema.evaluation import ReadFiles, bad_file_name, other_number_of_texts
from snaketrain.config.schema.model import Examples
from snaketrain.labels import label_kind

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings

RESERVED = ("train", "dev", "test")
ONLY_FOR_FILES = ("text", "target", "label", "labels", "where", "format", "encoding", "columns")


class EvaluationSet(ReadFiles, Examples):
    """Examples on which the trained model is evaluated: where they are, as in [Examples](#examples), and how they are read."""

    target: str | None = Field(None, description="null: as `data.target`")
    label: str | None = Field(None, description="null: as `data.label`")
    labels: NameByLabel | None = Field(
        None,
        description="names of the training data's classes by the label in the file, such as `{neg: negative, pos: positive}`; null: as `data.labels`",
    )
    where: CellByColumn | None = Field(None, description="null: as `data.where`; {}: all rows")
    limit: Positive | None = Field(None, description="use only this many examples, drawn by `data.split_seed`")
    checkpoints: Literal["selected", "all"] = Field(
        "selected", description="`all`: besides the selected checkpoint, every one that `compute.keep_checkpoints` has kept is evaluated"
    )

    @property
    def examples(self) -> Examples:
        return Examples.model_construct(**{name: getattr(self, name) for name in Examples.model_fields})

    def reading(self, data: Data) -> Data:
        """The settings of the training data with these instead."""
        given = {name: getattr(self, name) for name in ("target", "label", "labels", "where") if getattr(self, name) is not None}
        return data.of_set(self.examples, self.limit, slices=[], **self.differences, **given)

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if self.use is not None and (given := [name for name in ONLY_FOR_FILES if getattr(self, name) is not None]):
            yield f"`{given[0]}` is for files, but `use` names a dataset class: remove one of them"


SECTIONS: dict[str, tuple[Any, Any]] = {
    "evaluation_sets": (
        dict[str, EvaluationSet],
        Field(
            {},
            description="Further sets on which the selected model is evaluated, by name: `evaluation_sets: {imdb: {path: imdb.jsonl}}` writes "
            "`results/runs/<run>/sets/imdb/`. A set that is added or changed is prepared and evaluated on its own; nothing else reruns but the comparison.",
        ),
    )
}


def sets_of(run: "Settings") -> dict[str, EvaluationSet]:
    return run.evaluation_sets  # type: ignore[attr-defined]  # a section of SECTIONS


def contradictions(run: "Settings") -> Iterator[str]:
    data = run.data
    for name, each in sets_of(run).items():
        place = f"evaluation_sets.{name}"
        yield from bad_file_name("evaluation_sets", name)
        if name in RESERVED:
            yield f"evaluation_sets: {name!r} is the name of a split of `data`: use another name, or set data.{name}"
        if (each.use is not None) != data.by_class:
            kinds = ("a dataset class", "files of text") if each.use is not None else ("files of text", "a dataset class")
            yield f"{place} is {kinds[0]}, but the training data is {kinds[1]}: use the same kind for both"
            continue
        yield from other_number_of_texts(f"{place}.text", each, data)
        for setting in ("target", "label"):
            if getattr(each, setting) is not None and getattr(data, setting) is None:
                yield f"{place}.{setting} names a column, but data.{setting} is null, so the model was not trained on one: remove it"
        yield from _label_problems(place, each, data)


def _label_problems(place: str, each: EvaluationSet, data: Data) -> Iterator[str]:
    if each.labels is None:
        return
    if data.label is None or not label_kind(data.label_kind).has_classes:
        yield f"{place}.labels names classes, but the training data has none: remove it"
    elif data.labels is not None and (unknown := sorted(set(each.labels.values()) - set(data.labels.values()))):
        yield f"{place}.labels has the class {unknown[0]!r}, which data.labels does not name: use one of {', '.join(sorted(set(data.labels.values())))}"
