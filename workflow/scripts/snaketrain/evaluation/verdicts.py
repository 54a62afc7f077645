"""States in a few sentences which configuration is best, by how much, and whether that is more than chance."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from snaketrain.evaluation.comparing import (
    FinishedRun,
    Row,
    SeedGroup,
    best_first,
    by_examples,
    comparable,
    dev_value,
    ranked,
    row,
    seed_groups,
)
from snaketrain.evaluation.paired import ERROR_RATE, Contender, Difference, difference, level_of
from snaketrain.evaluation.predictions import Predictions, of_the_same_examples
from snaketrain.runtime.manifests import digest, read_if_intact, write_checked
from snaketrain.runtime.strict_json import Json, is_number, rounded, shortened, spoken

Predicted = Callable[[str, str], Predictions | None]  # of a run, on a split
MOST_NAMED = 5  # runs in a warning


@dataclass
class Looks:
    """Remembers with which seeds configurations were compared, since adding seeds until one is better needs lower levels: see `level_of`."""

    seeds: dict[str, list[Json]] = field(default_factory=dict)  # by comparison, in the order of the looks: those of each configuration
    lost: bool = False  # whether earlier ones are not known

    @classmethod
    def read(cls, path: Path) -> "Looks":
        found = read_if_intact(path, "how often its comparisons were looked at before is not known, and they count as new")
        return cls(**found) if found else cls(lost=path.exists())

    def write(self, path: Path) -> None:
        write_checked(path, asdict(self))

    def number(self, comparison: str, seeds: Json) -> int:
        """Counted from 1; with the seeds of an earlier look it is that one again."""
        known = self.seeds.setdefault(comparison, [])
        if seeds not in known:
            known.append(seeds)
        return known.index(seeds) + 1


class Judged(NamedTuple):
    """What is said of the best two."""

    words: str
    gap: float = 0.0  # by which the best on the development set is ahead where they are tested
    tested: Difference | None = None

    @property
    def is_better(self) -> bool:
        return self.gap > 0 and self.tested is not None and self.tested.significant


def verdict(groups: list[SeedGroup], predicted: Predicted, looks: Looks | None = None) -> str:
    """One or two sentences for each set of runs that can be compared; mixed ones are not. `looks` gains those of this verdict."""
    looks = looks or Looks()
    groups = unmixed(groups)
    several = differing_examples(groups)
    found = {by: gap_between_the_best(here, *by[1:], predicted, looks).words for by, here in comparable(groups).items() if len(here) > 1}
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


def unmixed(groups: list[SeedGroup]) -> list[SeedGroup]:
    """Those without a training whose code or settings were changed in its middle, which is the result of neither."""
    return [group for group in groups if not any(member.get("mixed") for member in group["members"])]


def of_two(runs: list[FinishedRun], predicted: Predicted, looks: Looks, seen: Sequence[Collection[str]]) -> Judged:
    """The verdict on two configurations. `seen`: the runs with which they were looked at before."""
    count_looks(looks, runs, seen)
    groups = unmixed(seed_groups(runs, ranked(list(map(row, runs)))))
    if len(groups) != 2 or len(comparable(groups)) != 1:
        raise SystemExit(
            f"{', '.join(run['run'] for run in runs)}: cannot be compared, since they are not two configurations with the same data and metric, "
            "or code or settings of some were changed in the middle of their training."
        )
    [((_, metric, mode), _)] = comparable(groups).items()
    return gap_between_the_best(groups, metric, mode, predicted, looks)


def count_looks(looks: Looks, runs: list[FinishedRun], seen: Sequence[Collection[str]]) -> None:
    """`seen`: the runs of each earlier look, which decided whether there would be more."""
    for names in seen:
        earlier = [run for run in runs if run["run"] in names]
        for (_, metric, _), groups in comparable(seed_groups(earlier, ranked(list(map(row, earlier))))).items():
            looks.number(*compared(groups, tested_on(groups, metric), metric))


def tested_on(groups: Sequence[SeedGroup], metric: str) -> str:
    return "test" if all(is_number(group.get(f"test_{metric}")) for group in groups) else "dev"


def gap_between_the_best(groups: list[SeedGroup], metric: str, mode: str, predicted: Predicted, looks: Looks) -> Judged:
    best, second = best_first(groups, metric, mode)[:2]
    split = tested_on((best, second), metric)
    ours, theirs = best.get(f"{split}_{metric}"), second.get(f"{split}_{metric}")
    if not (is_number(ours) and is_number(theirs)):
        return Judged(f"{best['run']} is best on the development set, but its {spoken(metric)} is missing, so it is unknown by how much.")
    contenders = [contender(group, split, metric, predicted) for group in (best, second)]
    figures = f"{split} {spoken(metric)} {rounded(ours)} against {rounded(theirs)}{seeds_of((best, second), contenders)}"
    higher_first = contenders if mode == "max" else contenders[::-1]  # so that a positive gap is an advantage
    if of_other_examples((best, second), split, contenders):
        return Judged(
            f"{best['run']} and {second['run']}: {figures}. Their {split} sets have different examples or labels, so there is no order between them."
        )
    if identical(contenders):
        return Judged(f"{best['run']} and {second['run']} predict the same: {figures}.")
    gap = ours - theirs if mode == "max" else theirs - ours
    one_seed_each = all(len(each.values) == 1 for each in contenders)  # a test of two models, which no further seed repeats
    # also of all configurations together, of which with more seeds two others may be the best
    look = 1 if one_seed_each else max(looks.number(*compared(several, split, metric)) for several in ((best, second), groups))
    tested = difference(metric, higher_first[0], higher_first[1], level_of(look))
    if gap > 0:
        words = advantage(best["run"], second["run"], figures, gap, tested, one_seed_each)
    else:
        words = f"{best['run']} {standing(best, second, metric)} {second['run']}: {figures}{behind(gap, tested)}."
    return Judged(words + (again(look) if look > 1 else ""), gap, tested)


def compared(groups: Sequence[SeedGroup], split: str, metric: str) -> tuple[str, Json]:
    """What identifies the comparison of configurations on these examples, and their seeds, whichever is the best."""
    sides = sorted((group["configuration"], sorted(member["train.seed"] for member in group["members"])) for group in groups)
    digests = sorted({str(group.get(f"{split}_examples_digest")) for group in groups})
    return digest([configuration for configuration, _ in sides], split, metric, digests), [seeds for _, seeds in sides]


def again(look: int) -> str:
    before = "once" if look == 2 else f"{look - 1} times"
    return (
        f" They were compared {before} before with fewer or other seeds, so they are now tested at a level of {100 * level_of(look):.3g} % "
        f"instead of {100 * ERROR_RATE:.0f} %: otherwise, adding seeds until one is better would call equal ones better too often."
    )


def contender(group: SeedGroup, split: str, metric: str, predicted: Predicted) -> Contender:
    members = [member for member in group["members"] if is_number(member.get(f"{split}_{metric}"))]
    return Contender([member[f"{split}_{metric}"] for member in members], [predicted(member["run"], split) for member in members])


def of_other_examples(groups: Sequence[SeedGroup], split: str, contenders: Sequence[Contender]) -> bool:
    """Data of one name may be split or limited differently, or be other data altogether."""
    saved = saved_predictions(contenders)
    differ = len({group.get(f"{split}_examples_digest") for group in groups}) > 1
    return differ or (len(saved) > 1 and not of_the_same_examples(saved))


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
    return f"{100 * (1 - tested.level):.4g} % interval {rounded(tested.low)} to {rounded(tested.high)}; {tested.test}"


def below_baseline(rows: list[Row]) -> dict[str, str]:
    """Runs that a constant answer equals or beats, each with its figures."""
    found = {}
    for line in rows:
        metric, split = line["selected_by"], "test" if is_number(line.get("test_baseline")) else "dev"
        value, baseline = line.get(f"{split}_{metric}"), line.get(f"{split}_baseline")
        if is_number(value) and is_number(baseline) and (value <= baseline if line["mode"] == "max" else value >= baseline):
            found[line["run"]] = f"{split} {spoken(metric)} {rounded(value)} against {rounded(baseline)}"
    return found


def warnings(rows: list[Row], looks: Looks) -> list[str]:
    mixed = [f"{row['run']} ({row['mixed']})" for row in rows if row.get("mixed")]
    told = [f"Warning: mixed, and so neither ranked nor in the verdict: {shortened(mixed, MOST_NAMED)}."] if mixed else []
    if found := [f"{run} ({figures})" for run, figures in below_baseline(rows).items()]:
        told.append(f"Warning: no better than their baseline, the best constant answer: {shortened(found, MOST_NAMED)}.")
    if looks.lost:
        told.append(
            "Warning: results/comparison/looks.json was damaged, so that earlier comparisons of the same configurations with fewer seeds do "
            'not lower the level of the verdict. If there were any, it says "better" too often.'
        )
    return told
