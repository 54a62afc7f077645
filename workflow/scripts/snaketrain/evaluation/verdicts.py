"""States in a sentence whether the best of several runs beats the next by more than chance."""

import math
import statistics

from snaketrain.evaluation.comparing import SeedGroup, best_first, comparable, dev_value, is_number


def verdict(groups: list[SeedGroup]) -> str:
    """One or two sentences for each set of runs that can be compared."""
    found = {by: gap_between_the_best(here, *by[1:]) for by, here in comparable(groups).items() if len(here) > 1}
    if len(groups) < 2:
        return "There is one configuration only: nothing to compare it with."
    if not found:
        return "Each configuration has data or a metric of its own: nothing to compare it with."
    if len(comparable(groups)) == 1:
        return next(iter(found.values()))
    return " ".join(f"On {data}, by {metric}: {words}" for (data, metric, _), words in found.items())


def gap_between_the_best(groups: list[SeedGroup], metric: str, mode: str) -> str:
    best, following = best_first(groups, metric, mode)[:2]
    split = "test" if all(is_number(g.get(f"test_{metric}")) for g in (best, following)) else "dev"
    ours, theirs = best.get(f"{split}_{metric}"), following.get(f"{split}_{metric}")
    if not (is_number(ours) and is_number(theirs)):
        return f"{best['run']} is best on the development set; without its {metric} it cannot be said by how much."
    gap = ours - theirs if mode == "max" else theirs - ours
    figures = f"{split} {metric} {shown(ours)} against {shown(theirs)}"
    margin, source = margin_of(best, following, split, metric)
    if margin is None:
        ahead = "is ahead of" if gap > 0 else f"{standing(best, following, metric)} is not better than"
        return f"{best['run']} {ahead} {following['run']}: {figures}. One seed each does not tell whether that is chance: sweep train.seed."
    if gap > margin:
        return (
            f"{best['run']} is better than {following['run']}: {figures}. The gap of {shown(gap)} is larger than {source}, {shown(margin)}."
        )
    chance = f"The gap of {shown(gap)} is within {source}, {shown(margin)}: it may be chance. "
    if gap < 0:
        chance = f"It is behind by {shown(-gap)} there ({source}: {shown(margin)}). "
    return (
        f"{best['run']} {standing(best, following, metric)} is not clearly better than {following['run']}: {figures}. {chance}"
        "More seeds or more examples would tell."
    )


def standing(best: SeedGroup, following: SeedGroup, metric: str) -> str:
    level = dev_value(best, metric) == dev_value(following, metric)
    return "was level on the development set, and" if level else "was ahead on the development set, but"


def margin_of(best: SeedGroup, following: SeedGroup, split: str, metric: str) -> tuple[float | None, str]:
    """The gap that other seeds or, for an accuracy, other examples may cause, whichever is larger, and its name. None: unknown."""
    margins = []
    deviations = [g.get(f"{split}_{metric}_deviation") for g in (best, following)]
    if known := [d for d in deviations if d is not None]:
        # a single run's spread is unknown: assume the other's
        margins.append((math.hypot(*(max(known) if d is None else d for d in deviations)), "the spread over seeds"))
    members = best["members"] + following["members"]
    if metric == "accuracy" and all(is_number(m.get(f"{split}_low")) for m in members):
        halves = [statistics.fmean((m[f"{split}_high"] - m[f"{split}_low"]) / 2 for m in g["members"]) for g in (best, following)]
        margins.append((math.hypot(*halves), "the uncertainty of both intervals"))
    return max(margins, default=(None, ""), key=lambda margin: margin[0])


def shown(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 10_000 else f"{value:.3g}"
