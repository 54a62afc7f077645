"""The settings `data.train_sets` and `train.mixture`, and how they contradict others."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from snaketrain.config.schema.base import Positive, Section, is_null
from snaketrain.config.schema.evaluation import bad_file_name
from snaketrain.config.schema.model import Examples

if TYPE_CHECKING:
    from snaketrain.config.schema import Data, Settings

MAIN = "train"  # how a mixture calls `data.train`
HERE = Path(__file__).parent

Weights = Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class Phase(Section):
    """Steps that take examples in the same shares."""

    until: Positive | None = Field(None, description="its last step; null, for the last phase alone: until the training ends")
    sets: Weights = Field(
        description="the weight of each training set, `train` or one of `data.train_sets`, such as `{train: 0.7, code: 0.3}`"
    )


class Mixture(Section):
    """From which training sets the examples of each batch are taken."""

    by: Literal["examples", "tokens"] = Field(
        "examples",
        description="what the weights divide: the examples of each batch, or the tokens, by the mean length of each set's examples",
    )
    sets: Weights | None = Field(None, description="the weight of each training set, where there is one phase; as in [Phase](#phase)")
    phases: list[Phase] = Field([], description="instead of `sets`: phases that follow one another, each until a step")

    @property
    def all_phases(self) -> list[Phase]:
        return [Phase(sets=self.sets)] if self.sets else self.phases

    @property
    def sets_in_order(self) -> list[str]:
        """All sets, those of earlier phases first: later ones change no number of an example before them."""
        return list(dict.fromkeys(name for phase in self.all_phases for name in sorted(phase.sets)))

    def contradictions(self) -> Iterator[str]:
        if bool(self.sets) == bool(self.phases):
            yield "give `sets`, the weights of one phase, or `phases`, a list of them, and not both"
            return
        *earlier, last = self.all_phases
        if last.until is not None:
            yield f"the last phase ends with the training: remove its `until` ({last.until}), or add a phase after it"
        if without := [number for number, phase in enumerate(earlier, 1) if phase.until is None]:
            yield f"phase {without[0]} has no `until`, and phases follow it: name its last step"
        ends = [phase.until for phase in earlier if phase.until is not None]
        for first, second in pairwise(ends):
            if second <= first:
                yield f"a phase until step {second} follows one until step {first}: let `until` increase"


FIELDS = {
    "data": {
        "train_sets": (
            dict[str, Examples],
            Field(
                {},
                exclude_if=lambda value: not value,
                description="further training sets by name, such as `{code: {path: code.jsonl}}`, for `train.mixture`; read as `train` is, with its classes",
            ),
        )
    },
    "train": {
        "mixture": (
            Mixture | None,
            Field(
                None,
                exclude_if=is_null,
                description="take the examples of each batch from several training sets; null: from `data.train`",
            ),
        )
    },
}


def sets_of(data: "Data") -> dict[str, Examples]:
    """The field of `data`, which the type that the core declares does not have."""
    found: dict[str, Examples] = data.train_sets  # type: ignore[attr-defined]
    return found


def mixture_of(train: Section) -> Mixture | None:
    found: Mixture | None = train.mixture  # type: ignore[attr-defined]  # as above
    return found


def code(run: "Settings") -> list[Path]:
    """What decides which examples are trained on."""
    return [HERE / name for name in ("sampling.py", "phases.py")] if mixture_of(run.train) else []


def contradictions(run: "Settings") -> Iterator[str]:
    data, train = run.data, run.train
    sets, mixture = sets_of(data), mixture_of(train)
    for name in sets:
        yield from bad_file_name("data.train_sets", name)
        if name == MAIN:
            yield f"data.train_sets: {name!r} stands for data.train: use another name"
    if sets and data.train is None:
        yield "data.train_sets are mixed with data.train, which is missing: name one of them there"
    if sets and data.by_class:
        yield "data.train_sets are files of text, but the examples come from a dataset class: let that one mix them"
    if sets and getattr(data, "shards", None):
        yield "data.train_sets are prepared in one job each, not in shards: remove data.shards, or name all files in data.train"
    if mixture is None:
        return
    known = [MAIN, *sets]
    for name in mixture.sets_in_order:
        if name not in known:
            yield f"train.mixture: there is no training set {name!r}; there are {', '.join(known)}: name one of them, or add it to data.train_sets"
    if data.by_class and not sets:
        yield "train.mixture needs files of text, but the examples come from a dataset class: let that one mix them"
    if train.steps is None:
        yield "train.mixture needs the number of steps, since phases end at steps and sets have epochs of their own: set train.steps"
    for phase in mixture.all_phases:
        if train.steps and phase.until and phase.until >= train.steps:
            yield f"train.mixture: a phase until step {phase.until} leaves none of the {train.steps} steps to the last one: let it end before train.steps"
    if train.batch_tokens is not None:
        yield "train.mixture deals out the examples of a batch, of which `batch_tokens` gives no number: set train.batch_size instead"
    if getattr(train, "sampling", None):
        yield "train.mixture and train.sampling both say which examples are taken: remove one of them"
