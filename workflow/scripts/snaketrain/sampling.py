"""Proposes the settings of runs by an Optuna sampler: each batch follows from the results of the runs before it.

The study is a file of Optuna's own, which its dashboard reads. Each proposal has a seed of its own, from that of the search and its
number, so that a killed search proposes the same as one that was not.
"""

import json
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState

from snaketrain.config.schema.search import Range, Sampling
from snaketrain.config.trials import FOLDER, Trial, Trials
from snaketrain.runtime.journal import all_events
from snaketrain.runtime.json_types import Json

RUNS = Path("results/runs")


class SampledSearch:
    def __init__(self, name: str, sampling: Sampling, mode: str, basis: str):
        """`basis`: a digest of the settings that its runs change."""
        self.name, self.sampling, self.basis = name, sampling, basis
        known = Trials.read(name).basis
        if known not in ("", basis):
            raise SystemExit(
                f"search.{name}: the settings that its runs change are others than those of its earlier runs, whose results say nothing about "
                "them. Give the search another name, or set them back."
            )
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = JournalStorage(JournalFileBackend(str(FOLDER / name / "study.log")))
        direction = StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE
        self.study = optuna.create_study(storage=storage, study_name=name, direction=direction, load_if_exists=True)
        self.write()

    @property
    def waiting(self) -> list[optuna.trial.FrozenTrial]:
        """Trials without a result yet."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state == TrialState.RUNNING]

    def propose(self) -> int:
        """A batch, or what is missing of one whose proposals were interrupted; returns how many are new."""
        done, at_once = len(self.study.get_trials(deepcopy=False)), self.sampling.at_once
        if self.waiting and done % at_once == 0:
            return 0
        last = min(self.sampling.trials, (done // at_once + 1) * at_once)
        space = {name: distribution(self.sampling.values(name)) for name in self.sampling.space}
        for number in range(done, last):
            self.study.sampler = TPESampler(seed=(self.sampling.seed + number) % 2**32, constant_liar=True)
            self.study.ask(space)
        self.write()
        return last - done

    def tell(self) -> None:
        """The results of the trials that have ended."""
        for trial in self.waiting:
            folder = RUNS / run_name(self.name, trial.number)
            if (folder / "selection/manifest.json").is_file():
                selection = json.loads((folder / "selection/selection.json").read_text(encoding="utf-8"))
                self.study.tell(trial.number, selection["winner"]["value"])
            elif failed(folder):
                self.study.tell(trial.number, state=TrialState.FAIL)
        self.write()

    def write(self) -> None:
        """For the workflow, which knows nothing of Optuna."""
        found = self.study.get_trials(deepcopy=False)
        trials = [
            Trial(run_name(self.name, each.number), dict(each.params), each.value if each.values else None, each.state == TrialState.FAIL)
            for each in found
        ]
        Trials(self.basis, trials).write(self.name)

    @property
    def best(self) -> Trial | None:
        done = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
        return Trials.read(self.name).trials[self.study.best_trial.number] if done else None


def run_name(search: str, number: int) -> str:
    return f"{search}-{number:03d}"


def failed(run: Path) -> bool:
    """Whether the training ended with an error of its own; one that was killed continues."""
    ends = [event for event in all_events(run / "training/journal.jsonl") if event.get("event") in ("attempt", "end")]
    return bool(ends) and ends[-1].get("status") == "FAILED"


def distribution(values: Range | list[Json]) -> BaseDistribution:
    if isinstance(values, list):
        return CategoricalDistribution(values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return IntDistribution(values.low, values.high, log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)
