"""Finds problems of `evaluation_sets` before any job: files and columns that are missing, rows that are trained on, names that meet on a cluster."""

from collections.abc import Iterator

from snaketrain.config.errors import placed_in
from snaketrain.config.schema import Settings
from snaketrain.data.surveying import check
from snaketrain.extras.evaluation_sets.settings import sets_of
from snaketrain.orchestration.preflight import files, is_prepared, local_files


def relevant_to(run: Settings) -> object:
    return run.data, sets_of(run)


def problems_of_run(run: Settings) -> Iterator[str]:
    """Of the sets that are not prepared yet."""
    trained_on = {file.resolve() for file in local_files(run.data).get("train", ())}
    for name, each in sets_of(run).items():
        place, reading = f"evaluation_sets.{name}", each.reading(run.data)
        if is_prepared(name, reading, run.data):
            continue
        problems = [f"{place}: {problem}" for problem in files("", each)]
        if (given := local_files(reading)) and not problems:
            problems = [placed_in(place, problem.removeprefix("data.test: ")) for problem in check(reading, given, needs_labels=True)]
        yield from problems
        if reading.where == run.data.where and (both := sorted(trained_on & {file.resolve() for file in given.get("test", ())})):
            yield f"{place}: {both[0]} is among the files of data.train too. Name others, or other rows of it by `where`."


def problems_of_runs(runs: dict[str, Settings]) -> Iterator[str]:
    """Evaluations whose jobs have the same name on a cluster, which is how a workflow recognises those of a killed one."""
    found: dict[str, str] = {}
    for run, settings in runs.items():
        for name in sets_of(settings):
            other = found.setdefault(f"{run}_{name}", run)
            if other != run:
                yield f"evaluation_sets.{name}: run {run} with this set, and run {other} with another, are both {run}_{name} on a cluster. Rename one."
