"""The evaluation sets of all runs: how each is prepared, and which jobs evaluate on them."""

from functools import cached_property
from typing import NamedTuple

from snaketrain.config.schema import Data, EvaluationSet, Examples, Settings, Source
from snaketrain.orchestration.names import data_name, set_name, source_name
from snaketrain.runtime.strict_json import JsonObject

TEST = "test"


class PreparedSet(NamedTuple):
    """An evaluation set that is prepared on its own; runs with the same data share it."""

    name: str  # in the configuration
    data: str  # the name of the prepared training data
    reading: Data  # its only split is `test`

    @property
    def files(self) -> Examples | None:
        """None for a dataset class."""
        return self.reading.test if self.reading.test and self.reading.test.use is None else None

    def reads(self) -> dict[str, tuple[str, str]]:
        """The inputs of its preparation, by role: the stage and the name that made each."""
        fetched = {"files": ("fetch_input", source_name(self.files.source))} if self.files else {}
        return {"data": ("prepare_data", self.data)} | fetched


def run_of(name: str) -> str:
    """The run of a job's name, `run` or `run/evaluation set`."""
    return name.partition("/")[0]


def set_of(name: str) -> str:
    """The evaluation set of a job's name; the development set has no name of its own, so a job of a run alone has the test set."""
    return name.partition("/")[2] or TEST


class EvaluationSets:
    def __init__(self, runs: dict[str, Settings]):
        self.runs = runs

    @cached_property
    def names(self) -> dict[str, dict[str, str]]:
        """By run and evaluation set: the name of what is prepared for it."""
        return {
            run: {name: set_name(name, reading, settings.data) for name, reading in settings.sets.items()}
            for run, settings in self.runs.items()
        }

    @cached_property
    def prepared(self) -> dict[str, PreparedSet]:
        return {
            self.names[run][name]: PreparedSet(name, data_name(settings.data), reading)
            for run, settings in self.runs.items()
            for name, reading in settings.sets.items()
        }

    @cached_property
    def evaluations(self) -> list[str]:
        """`run/evaluation set` for each evaluation that is a job of its own; the test set is evaluated with the development set."""
        return [f"{run}/{name}" for run, settings in self.runs.items() for name in settings.evaluation_sets]

    @property
    def sources(self) -> list[Source]:
        """Of the files that are fetched."""
        return [each.files.source for each in self.prepared.values() if each.files]

    def read_by(self, evaluation: str) -> str | None:
        """The name of the set that an evaluation reads; None if its test set is prepared with the training data, or is missing."""
        return self.names[run_of(evaluation)].get(set_of(evaluation))

    def setting(self, evaluation: str) -> EvaluationSet:
        return self.runs[run_of(evaluation)].evaluation_sets[set_of(evaluation)]

    def reads(self, evaluation: str) -> dict[str, tuple[str, str]]:
        """What an evaluation reads besides the selection."""
        found = {"set": ("prepare_set", name)} if (name := self.read_by(evaluation)) else {}
        with_training = set_of(evaluation) != TEST and self.setting(evaluation).checkpoints == "all"
        return found | ({"training": ("train_model", run_of(evaluation))} if with_training else {})

    def settings(self, evaluation: str) -> JsonObject:
        """The sections by which an evaluation of its own becomes stale."""
        return {"evaluate": self.runs[run_of(evaluation)].evaluate.as_json, "set": {"checkpoints": self.setting(evaluation).checkpoints}}
