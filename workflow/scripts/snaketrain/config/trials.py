"""The runs that a search has sampled so far. `tools/sample_runs.py` records them before it starts the workflow that trains them."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from snaketrain.config.errors import ConfigurationError
from snaketrain.runtime.manifests import read_checked, write_checked
from snaketrain.runtime.strict_json import JsonObject

FOLDER = Path("results/searches")


@dataclass(frozen=True)
class Trial:
    run: str
    settings: JsonObject
    value: float | None = None  # of the selection metric, once it is known
    failed: bool = False  # it is no longer among the runs


@dataclass(frozen=True)
class Trials:
    basis: str = ""  # digest of the settings that they change
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def read(cls, search: str) -> "Trials":
        path = FOLDER / search / "trials.json"
        if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
            return cls()
        try:
            content = read_checked(path)
            return cls(content["basis"], [Trial(**each) for each in content["trials"]])
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                [
                    f"search.{search}: {path}: {error}. Put a copy of it back, or delete it and run sample_runs.py, which writes it again from study.log."
                ]
            ) from None

    def write(self, search: str) -> None:
        write_checked(FOLDER / search / "trials.json", asdict(self))


def is_sampled(given: object) -> bool:
    """Whether an entry of `search` proposes runs, instead of thinning out a sweep."""
    return isinstance(given, dict) and "space" in given


def sampled_searches(config: JsonObject) -> list[str]:
    given = config.get("search")
    return [str(name) for name, entry in given.items() if is_sampled(entry)] if isinstance(given, dict) else []


def sampled_runs(config: JsonObject) -> Iterator[tuple[str, str, JsonObject]]:
    """The search, the name and the changes of each run."""
    for search in sampled_searches(config):
        for trial in Trials.read(search).trials:
            if not trial.failed:
                yield search, trial.run, trial.settings
