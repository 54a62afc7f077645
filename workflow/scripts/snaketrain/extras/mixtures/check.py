"""Finds training sets that no run uses, before any job."""

from collections.abc import Iterator

from snaketrain.config.schema import Settings
from snaketrain.extras.mixtures.settings import MAIN, mixture_of, sets_of


def problems_of_runs(runs: dict[str, Settings]) -> Iterator[str]:
    used = {name for run in runs.values() for name in taken_by(run)}
    for name in dict.fromkeys(name for run in runs.values() if run.data.train for name in (MAIN, *sets_of(run.data)) if name not in used):
        place = "data.train" if name == MAIN else f"data.train_sets.{name}"
        yield f"{place}: no run's train.mixture takes examples of it. Give it a weight, or remove it."


def taken_by(run: Settings) -> list[str]:
    mixture = mixture_of(run.train)
    return mixture.sets_in_order if mixture else [MAIN]
