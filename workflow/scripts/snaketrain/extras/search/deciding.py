"""Which runs of a search continue after a rung: the best, and those that a paired test cannot tell from the best.

Runs that differ only in their seed are one candidate, which is judged by their mean: they continue together, or not at all.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from snaketrain.evaluation.paired import Contender, difference
from snaketrain.evaluation.predictions import Predictions
from snaketrain.extras.search.top_level import Search
from snaketrain.runtime.strict_json import rounded, spoken
from snaketrain.tasks.metric_names import rank_key


@dataclass(frozen=True)
class AtRung:
    """A run and what it predicts at a rung."""

    run: str
    value: float  # of the metric that decides; not finite: it diverged
    loss: float = math.inf  # which decides between equal values
    predictions: Predictions | None = None  # on the development set
    error: str = ""  # why it diverged
    examples: str = ""  # digest of the development set
    note: str = ""  # what is different about its weights
    candidate: str = ""  # the same for runs that differ only in their seed; empty: it has no such others


@dataclass(frozen=True)
class Standing:
    run: str
    value: float
    continues: bool
    why: str


@dataclass(frozen=True)
class Candidate:
    """Settings, and their runs, one for each seed."""

    runs: Sequence[AtRung]

    @property
    def name(self) -> str:
        return self.runs[0].run + (f" and its {len(self.runs) - 1} other seeds" if len(self.runs) > 1 else "")

    @property
    def value(self) -> float:
        return sum(each.value for each in self.runs) / len(self.runs)

    @property
    def loss(self) -> float:
        return sum(each.loss for each in self.runs) / len(self.runs)

    @property
    def contender(self) -> Contender:
        return Contender([each.value for each in self.runs], [each.predictions for each in self.runs])


def decide(found: Sequence[AtRung], metric: str, mode: str, search: Search) -> list[Standing]:
    """Best first; of equal ones that of the lower loss, then in the order of their names."""
    same_set = "Give them the same development set: no data.split_seed, data.dev_fraction or data.limit_dev that differs."
    refuse_other_examples("search", ((each.examples, each.run) for each in found if each.examples), same_set)
    of_settings: dict[str, list[AtRung]] = {}
    for run in sorted(found, key=lambda run: run.run):
        of_settings.setdefault(run.candidate or run.run, []).append(run)
    ranked = sorted(map(Candidate, of_settings.values()), key=lambda each: (*rank_key(each.value, each.loss, mode), each.name))
    at_least = max(1, math.ceil(of_share(search.keep, len(ranked))))
    at_most = max(at_least, math.floor(of_share(search.keep_tied, len(ranked))))
    standings: list[Standing] = []
    for place, each in enumerate(ranked, 1):
        continues, why = standing(place, each, ranked[0], metric, mode, at_least, at_most)
        standings += [Standing(run.run, run.value, continues, why) for run in each.runs]
    return standings


def refuse_other_examples(place: str, measured: Iterable[tuple[str, str]], remedy: str) -> None:
    """Nothing follows from the order of runs that were measured on other examples. `measured`: the digest of the examples, and the run."""
    of_sets: dict[str, list[str]] = {}
    for examples, run in measured:
        of_sets.setdefault(examples, []).append(run)
    if len(of_sets) > 1:
        groups = "; ".join(", ".join(runs[:5]) for runs in of_sets.values())
        raise SystemExit(
            f"{place}: its runs were measured on different development examples ({groups}), so that they cannot be ranked. {remedy}"
        )


def of_share(share: float, number: int) -> float:
    """Without what a binary fraction adds: 0.07 of 100 are 7."""
    return round(share * number, 9)


def standing(place: int, ours: Candidate, best: Candidate, metric: str, mode: str, at_least: int, at_most: int) -> tuple[bool, str]:
    """Whether the runs of a candidate continue, and why."""
    several = len(ours.runs) > 1
    if lost := next((each for each in ours.runs if not math.isfinite(each.value)), None):
        return False, (lost.error or f"its {spoken(metric)} is not a finite number") + (f" ({lost.run})" if several else "")
    notes = [*([f"mean of {len(ours.runs)} seeds"] if several else []), *(each.note for each in ours.runs if each.note)]
    shown = f"dev {spoken(metric)} {rounded(ours.value)}, number {place}" + (f" ({'; '.join(notes)})" if notes else "")
    if place <= at_least:
        return True, shown
    if place > at_most:
        return False, f"{shown}; no more than {at_most} continue"
    pair = best.contender, ours.contender
    tested = difference(metric, *(pair if mode == "max" else pair[::-1]))
    if tested is None:
        return False, f"{shown}; there is no paired test for {spoken(metric)}, so that only the best {at_least} continue"
    if tested.significant:
        return False, f"{shown}; worse than {best.name} ({tested.test})"
    return True, f"{shown}; may be as good as {best.name} ({tested.test})"
