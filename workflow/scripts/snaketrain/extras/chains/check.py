"""Finds problems of runs that start from other runs, before any job: those that do not exist, and circles."""

from collections.abc import Iterator

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Settings


def problems_of_runs(runs: dict[str, Settings]) -> Iterator[str]:
    for name, run in runs.items():
        for setting, base in run.model.bases.items():
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
            chains += [[*chain, further] for further in runs[chain[-1]].model.bases.values()]
    return []
