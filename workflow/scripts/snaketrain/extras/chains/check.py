"""Finds problems of runs that start from other runs, before any job: those that do not exist, and circles."""

from collections.abc import Iterator

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Settings
from snaketrain.orchestration.names import initial


def bases(run: Settings) -> dict[str, str]:
    """The runs that it starts from, by the settings that name them."""
    named = {"model.source.run": run.model.source, "model.initial_weights.source.run": initial(run)}
    return {setting: source.from_run for setting, source in named.items() if source and source.from_run}


def problems_of_runs(runs: dict[str, Settings]) -> Iterator[str]:
    for name, run in runs.items():
        for setting, base in bases(run).items():
            if base not in runs:
                yield f"{setting}: there is no run {base!r}{nearest(base, runs)} Runs: {', '.join(runs)} (run {name})."
            elif circle := path_back(name, base, runs):
                yield f"{setting}: {' starts from '.join(circle)}, so that none of them can be the first. Let one start from files (run {name})."


def path_back(name: str, base: str, runs: dict[str, Settings]) -> list[str]:
    """The chain from a run to itself; empty if it ends elsewhere."""
    chains, seen = [[name, base]], {name}
    while chains:
        chain = chains.pop()
        if chain[-1] == name:
            return chain
        if chain[-1] not in seen and chain[-1] in runs:
            seen.add(chain[-1])
            chains += [[*chain, further] for further in bases(runs[chain[-1]]).values()]
    return []
