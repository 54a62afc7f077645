"""How many examples of each training set the steps of a phase take: arithmetic alone, for the plans of trainings and of trunks."""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from snaketrain.extras.mixtures.settings import mixture_of

if TYPE_CHECKING:
    from snaketrain.config.schema import Train

FIELD = "mixture"  # of `train`: it decides the batches of some steps alone
WINDOW = 50  # steps whose examples are sorted by length together, where texts are padded
UNITS = 1 << 40  # of which a phase's shares are whole numbers, so that nothing is rounded when they are dealt out


class Dealt(NamedTuple):
    """A phase: the sets from which its steps take examples, and how many of all examples are of each."""

    begins: int  # after this step
    last: int
    sets: tuple[str, ...]
    shares: tuple[int, ...]  # of UNITS together, or nearly


def dealt(train: "Train", tokens: Mapping[str, float]) -> list[Dealt]:
    """The phases of a training; `tokens`: of each set, how many tokens an example has on average."""
    mixture, begins = mixture_of(train), 0
    assert mixture and train.steps, "it would be a contradiction"
    found: list[Dealt] = []
    for phase in mixture.all_phases:
        weights = {name: weight / (tokens[name] if mixture.by == "tokens" else 1) for name, weight in sorted(phase.sets.items())}
        total = sum(weights.values())
        shares = tuple(max(1, round(UNITS * (weight / total))) for weight in weights.values())
        last = phase.until or train.steps
        found.append(Dealt(begins, last, tuple(weights), shares))
        begins = last
    return found


def taken(shares: Sequence[int], examples: int) -> list[int]:
    """Of the first so many examples of a phase, how many are of each set.

    They are dealt out as seats by the method of Sainte-Laguë: the next one is of the set that has fewest for its share. One that is dealt
    out stays so, and at any time the shares are reached within rounding. All but the last few are known without dealing.
    """
    total, sure = sum(shares), max(0, 2 * examples - len(shares))
    counts = [(share * sure + total) // (2 * total) for share in shares]  # rounded shares of examples - len(shares) / 2: never too many
    while sum(counts) < examples:
        counts[min(range(len(shares)), key=lambda each: Fraction(2 * counts[each] + 1, shares[each]))] += 1
    return counts


def window_of(train: "Train") -> int:
    return 1 if train.packing or train.block_length else WINDOW


def stretches(train: "Train") -> list[tuple[str, int]]:
    """For the planning of trunks: what decides the batches of each phase, and its last step; none without a mixture."""
    mixture, begins = mixture_of(train), 0
    if mixture is None or train.steps is None:
        return []
    found: list[tuple[str, int]] = []
    for phase in mixture.all_phases:
        last, total = phase.until or train.steps, sum(phase.sets.values())
        decides = json.dumps([mixture.by, {name: weight / total for name, weight in phase.sets.items()}], sort_keys=True)
        rest = (last - begins) % window_of(train)  # the steps of its last window, which is shorter
        found += [(decides, last - rest)] if begins < last - rest else []
        found += [(f"{decides}, {rest} steps", last)] if rest else []
        begins = last
    return found
