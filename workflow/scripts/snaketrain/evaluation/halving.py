"""Which runs of a search continue after a rung: the best, and those that a paired test cannot tell from the best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from snaketrain.config.schema.search import Search
from snaketrain.evaluation.paired import Contender, difference
from snaketrain.evaluation.predictions import Predictions
from snaketrain.evaluation.rounding import rounded, spoken


@dataclass(frozen=True)
class AtRung:
    """A run and what it predicts at a rung."""

    run: str
    value: float  # of the metric that decides; not finite: it diverged
    loss: float = math.inf  # which decides between equal values
    predictions: Predictions | None = None  # on the development set
    error: str = ""  # why it diverged
    note: str = ""  # what is different about its weights


@dataclass(frozen=True)
class Standing:
    run: str
    value: float
    continues: bool
    why: str


def decide(found: Sequence[AtRung], metric: str, mode: str, search: Search) -> list[Standing]:
    """Best first; of equal ones that of the lower loss, then in the order of their names."""
    sign = -1 if mode == "max" else 1

    def key(each: AtRung) -> tuple[float, float, str]:
        return (
            (sign * each.value if math.isfinite(each.value) else math.inf),
            (each.loss if math.isfinite(each.loss) else math.inf),
            each.run,
        )

    ranked = sorted(found, key=key)
    at_least = max(1, math.ceil(search.keep * len(ranked)))
    at_most = max(at_least, math.floor(search.keep_tied * len(ranked)))
    return [standing(place, each, ranked[0], metric, mode, at_least, at_most) for place, each in enumerate(ranked, 1)]


def standing(place: int, ours: AtRung, best: AtRung, metric: str, mode: str, at_least: int, at_most: int) -> Standing:
    if not math.isfinite(ours.value):
        return Standing(ours.run, ours.value, False, ours.error or f"its {spoken(metric)} is not a finite number")
    shown = f"dev {spoken(metric)} {rounded(ours.value)}, number {place}" + (f" ({ours.note})" if ours.note else "")
    if place <= at_least:
        return Standing(ours.run, ours.value, True, shown)
    if place > at_most:
        return Standing(ours.run, ours.value, False, f"{shown}; no more than {at_most} continue")
    pair = [Contender([each.value], [each.predictions]) for each in (best, ours)]
    tested = difference(metric, *(pair if mode == "max" else pair[::-1]))
    if tested is None:
        return Standing(
            ours.run, ours.value, False, f"{shown}; there is no paired test for {spoken(metric)}, so that only the best {at_least} continue"
        )
    if tested.significant:
        return Standing(ours.run, ours.value, False, f"{shown}; worse than {best.run} ({tested.test})")
    return Standing(ours.run, ours.value, True, f"{shown}; may be as good as {best.run} ({tested.test})")
