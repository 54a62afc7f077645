"""States in a few sentences which configuration is best, by how much, and whether that is more than chance."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from snaketrain.evaluation.comparing import Row, SeedGroup, best_first, by_examples, comparable, dev_value
from snaketrain.evaluation.paired import Contender, Difference, difference
from snaketrain.evaluation.predictions import Predictions, of_the_same_examples
from snaketrain.runtime.rounding import is_number, rounded, spoken

Predicted = Callable[[str, str], Predictions | None]  # of a run, on a split
MOST_NAMED = 5  # runs in a warning


def verdict(groups: list[SeedGroup], predicted: Predicted) -> str:
    """One or two sentences for each set of runs that can be compared; mixed ones are not."""
    groups = [group for group in groups if not any(member.get("mixed") for member in group["members"])]
    several = differing_examples(groups)
    found = {by: gap_between_the_best(here, *by[1:], predicted) for by, here in comparable(groups).items() if len(here) > 1}
    if len(groups) < 2:
        return "There is only one configuration: nothing to compare it with."
    if not found:
        return f"Each configuration has its own data or metric: there is nothing to compare it with.{several}"
    if len(comparable(groups)) == 1:
        return next(iter(found.values()))
    return " ".join(f"On {data}, by {spoken(metric)}: {words}" for (data, metric, _), words in found.items()) + several


def differing_examples(groups: list[SeedGroup]) -> str:
    """Which runs were measured on other examples of data of one name, so that there is no order between them."""
    sets = {name: here for name, here in by_examples(groups).items() if name != here[0]["data"]}
    if not sets:
        return ""
    named = "; ".join(f"{name}: {', '.join(group['run'] for group in here[:MOST_NAMED])}" for name, here in sets.items())
    return f" Development sets of other examples are not ranked against each other ({named})."


def gap_between_the_best(groups: list[SeedGroup], metric: str, mode: str, predicted: Predicted) -> str:
    best, second = best_first(groups, metric, mode)[:2]
    split = "test" if all(is_number(g.get(f"test_{metric}")) for g in (best, second)) else "dev"
    ours, theirs = best.get(f"{split}_{metric}"), second.get(f"{split}_{metric}")
    if not (is_number(ours) and is_number(theirs)):
        return f"{best['run']} is best on the development set, but its {spoken(metric)} is missing, so it is unknown by how much."
    contenders = [contender(group, split, metric, predicted) for group in (best, second)]
    figures = f"{split} {spoken(metric)} {rounded(ours)} against {rounded(theirs)}{seeds_of((best, second), contenders)}"
    higher_first = contenders if mode == "max" else contenders[::-1]  # so that a positive gap is an advantage
    if of_other_examples(contenders):
        return f"{best['run']} and {second['run']}: {figures}. Their {split} sets have different examples or labels, so there is no order between them."
    if identical(contenders):
        return f"{best['run']} and {second['run']} predict the same: {figures}."
    tested = difference(metric, *higher_first)
    gap = ours - theirs if mode == "max" else theirs - ours
    one_seed_each = all(len(each.values) == 1 for each in contenders)
    if gap > 0:
        words = advantage(best["run"], second["run"], figures, gap, tested, one_seed_each)
    else:
        words = f"{best['run']} {standing(best, second, metric)} {second['run']}: {figures}{behind(gap, tested)}."
    return words


def contender(group: SeedGroup, split: str, metric: str, predicted: Predicted) -> Contender:
    members = [member for member in group["members"] if is_number(member.get(f"{split}_{metric}"))]
    return Contender([member[f"{split}_{metric}"] for member in members], [predicted(member["run"], split) for member in members])


def of_other_examples(contenders: Sequence[Contender]) -> bool:
    """Data of one name may be split or limited differently, or be other data altogether."""
    saved = saved_predictions(contenders)
    return len(saved) > 1 and not of_the_same_examples(saved)


def saved_predictions(contenders: Sequence[Contender]) -> list[Predictions]:
    return [each for contender in contenders for each in contender.predictions if each is not None]


def identical(contenders: Sequence[Contender]) -> bool:
    """Whether each run has predicted, to the last saved digit, what its counterpart has."""
    ours, theirs = (contender.predictions for contender in contenders)
    return len(ours) == len(theirs) and all(
        a is not None and b is not None and a.table.equals(b.table) for a, b in zip(ours, theirs, strict=True)
    )


def seeds_of(groups: Sequence[SeedGroup], contenders: Sequence[Contender]) -> str:
    """How many seeds the figures are means of: without those whose metric is undefined, such as a correlation with constant predictions."""
    used, of_all = [len(each.values) for each in contenders], [len(group["runs"]) for group in groups]
    if used == of_all and len(set(used)) == 1:
        return f" ({used[0]} seeds each)" if used[0] > 1 else ""
    ours, theirs = (f"{some}" if some == every else f"{some} of {every}" for some, every in zip(used, of_all, strict=True))
    return f" (means over {ours} and {theirs} seeds)"


def advantage(best: str, second: str, figures: str, gap: float, tested: Difference | None, one_seed_each: bool) -> str:
    if tested is None:
        return f"{best} is ahead of {second}: {figures}. One seed each does not tell whether that is chance: sweep train.seed."
    words = f"{figures}. The gap is {rounded(gap)} ({interval(tested)})"
    if not tested.significant:
        return f"{best} is not clearly better than {second}: {words}: it may be chance. More seeds or more examples would tell."
    if one_seed_each:
        return (
            f"{best} is ahead of {second}: {words}. These two models differ by more than chance; whether their settings do, "
            "more seeds would tell: sweep train.seed."
        )
    return f"{best} is better than {second}: {words}."


def standing(best: SeedGroup, second: SeedGroup, metric: str) -> str:
    level = dev_value(best, metric) == dev_value(second, metric)
    return (
        "was level on the development set, and is not better than" if level else "was ahead on the development set, but is not better than"
    )


def behind(gap: float, tested: Difference | None) -> str:
    if gap == 0:
        return ". They are level there"
    of_gap = f" ({interval(replace(tested, low=0 - tested.high, high=0 - tested.low))})" if tested else ""
    return f". It is behind by {rounded(-gap)} there{of_gap}"


def interval(tested: Difference) -> str:
    return f"95 % interval {rounded(tested.low)} to {rounded(tested.high)}; {tested.test}"


def below_baseline(rows: list[Row]) -> dict[str, str]:
    """Runs that a constant answer equals or beats, each with its figures."""
    found = {}
    for row in rows:
        metric, split = row["selected_by"], "test" if is_number(row.get("test_baseline")) else "dev"
        value, baseline = row.get(f"{split}_{metric}"), row.get(f"{split}_baseline")
        if is_number(value) and is_number(baseline) and (value <= baseline if row["mode"] == "max" else value >= baseline):
            found[row["run"]] = f"{split} {spoken(metric)} {rounded(value)} against {rounded(baseline)}"
    return found


def warnings(rows: list[Row]) -> list[str]:
    mixed = [f"{row['run']} ({row['mixed']})" for row in rows if row.get("mixed")]
    told = [f"Warning: mixed, and so neither ranked nor in the verdict: {named(mixed)}."] if mixed else []
    found = [f"{run} ({figures})" for run, figures in below_baseline(rows).items()]
    return told + ([f"Warning: no better than their baseline, the best constant answer: {named(found)}."] if found else [])


def named(found: Sequence[str]) -> str:
    return ", ".join(found[:MOST_NAMED]) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")
