"""The section `verdicts` of the configuration: two runs, and after how many seeds of each they are compared."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from snaketrain.config.errors import bad_name, nearest, problems_of, shown
from snaketrain.config.schema import Section, Settings
from snaketrain.config.sweeps import Change, of_dev_sets
from snaketrain.runtime.strict_json import Json, JsonObject

KEY = "verdicts"
SEED = "train.seed"


class SequentialVerdict(Section):
    """Trains two runs with more and more seeds, until one is better or further seeds would hardly tell."""

    runs: list[str] = Field(min_length=2, max_length=2, description="names of the two, among `runs`")
    looks: list[Annotated[int, Field(gt=1)]] = Field(
        [3, 5, 10], min_length=1, description="numbers of seeds of each run after which they are compared; the last is the most"
    )

    def contradictions(self) -> Iterator[str]:
        if self.looks != sorted(set(self.looks)):
            yield f"`looks` ({', '.join(map(str, self.looks))}) must rise: name each number once, the smallest first"
        if len(set(self.runs)) == 1:
            yield f"`runs` names {self.runs[0]} twice: name two runs"

    def of_run(self, run: str, seeds: int) -> list[str]:
        """The run and its first further seeds."""
        return [run, *(with_seed(run, number) for number in range(1, seeds))]

    def at(self, look: int) -> list[str]:
        """All that are compared at a look, which are counted from 1."""
        return [name for run in self.runs for name in self.of_run(run, self.looks[look - 1])]


TABLES = {"`verdicts`: for a comparison, by any name": SequentialVerdict}  # for the reference of the settings


def with_seed(run: str, number: int) -> str:
    return f"{run}-seed+{number}"


def seed_of(settings: Json, default: Json) -> Json:
    """As given with a dotted name, or below `train`."""
    train = settings.get("train") if isinstance(settings, dict) else None
    below = train.get("seed", default) if isinstance(train, dict) else default
    return settings.get(SEED, below) if isinstance(settings, dict) else None


def reseeded(settings: JsonObject, seed: int) -> JsonObject:
    train = settings.get("train")
    return settings | ({"train": train | {"seed": seed}} if isinstance(train, dict) and "seed" in train else {SEED: seed})


def read_verdicts(config: JsonObject) -> dict[str, SequentialVerdict]:
    """Those without errors."""
    given = config.get(KEY)
    entries = given.items() if isinstance(given, dict) else []
    return {str(name): SequentialVerdict.model_validate(each) for name, each in entries if not problems_of(SequentialVerdict, each, KEY)}


def changes(config: JsonObject) -> Iterator[Change]:
    """The runs with further seeds: of each run as many as one of its verdicts may need."""
    runs, most = config.get("runs"), dict[str, int]()
    for verdict in read_verdicts(config).values():
        most |= {run: max(most.get(run, 0), verdict.looks[-1]) for run in verdict.runs}
    for run, seeds in most.items():
        settings = (runs.get(run, ()) if isinstance(runs, dict) else ()) or {}
        first = seed_of(settings, seed_of(config, 0))
        if isinstance(runs, dict) and run in runs and isinstance(first, int):  # what is wrong with the others is told elsewhere
            yield from (Change(with_seed(run, number), f"runs.{run}", reseeded(settings, first + number)) for number in range(1, seeds))


def problems(config: JsonObject, changes: Mapping[str, Change], runs: Mapping[str, Settings]) -> Iterator[str]:
    """`runs`: those that are valid so far."""
    given = config.get(KEY)
    if given is None:
        return
    if not isinstance(given, dict):
        yield f"{KEY}: expects names of comparisons with their settings below them, not {shown(given)}."
        return
    known = [str(name) for name in config.get("runs") or {}]
    for name, settings in given.items():
        where = f"{KEY}.{name}"
        if message := bad_name(str(name)):
            yield f"{shown(where)[1:-1]}: {message}"
        elif found := problems_of(SequentialVerdict, settings, where):
            yield from found
        else:
            verdict = SequentialVerdict.model_validate(settings)
            for run in verdict.runs:
                if run not in known:
                    yield f"{where}.runs: there is no run {run!r}{nearest(run, known)} Name two of `runs`: {', '.join(known) or 'there are none'}."
            yield from _different_measures(where, {run: runs[run] for run in verdict.runs if run in runs})
            yield from _bases(where, verdict, runs)


def _different_measures(where: str, runs: Mapping[str, Settings]) -> Iterator[str]:
    """Runs can only be compared by the same metric on the same examples."""
    if len({repr((run.data, run.model, run.train.model_copy(update={"seed": 0}), run.select)) for run in runs.values()}) < len(runs):
        yield f"{where}: its runs differ only in train.seed or in what trains nothing, so there is nothing to compare. Name two configurations."
    for setting, values in {
        "data.name": {run.data.name for run in runs.values()},
        "data.test": {str(run.data.test) for run in runs.values()},
        **of_dev_sets(runs.values()),
        "select.metric": {run.select.metric for run in runs.values()},
        "select.mode": {str(run.select.mode) for run in runs.values()},
    }.items():
        if len(values) > 1:
            yield f"{where}: its runs differ in {setting} ({', '.join(sorted(values))}), so they cannot be compared. Use one value for both."


def _bases(where: str, verdict: SequentialVerdict, runs: Mapping[str, Settings]) -> Iterator[str]:
    """Seeds that another run starts from, though the verdict may not need them."""
    perhaps = set(verdict.at(len(verdict.looks))) - set(verdict.at(1))
    for run, settings in runs.items():
        for setting, base in settings.model.bases.items():
            if base in perhaps:
                yield f"{where}: may not train {base}, which run {run} starts from ({setting}). Name {base.partition('-seed+')[0]} there, or a run of its own."
