"""Proposes the settings of runs by an Optuna sampler: each batch follows from the results of the runs before it.

The study is a file of Optuna's own, which its dashboard reads. Each proposal has a seed of its own, from that of the search and its
number, so that a killed search proposes the same as one that was not.
"""

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from snaketrain.extras.search.deciding import refuse_other_examples
from snaketrain.extras.search.top_level import FOLDER, Range, SampledRuns, Trial, Trials
from snaketrain.runtime.journal import all_events
from snaketrain.runtime.manifests import read_manifest, read_result
from snaketrain.runtime.strict_json import Json, JsonObject, is_number

RUNS = Path("results/runs")
warnings.filterwarnings("ignore", "Choices for a categorical distribution")  # mappings and lists, which the storage below can hold
LOCK_SECONDS = 10  # after which the lock of a killed process is removed; writing takes milliseconds


class SampledSearch:
    def __init__(
        self, name: str, sampling: SampledRuns, mode: str, basis: str, why_impossible: Callable[[JsonObject], str] = lambda run: ""
    ):
        """`basis`: a digest of the settings that its runs change; `why_impossible`: an error in the settings of a run, or nothing."""
        self.name, self.sampling, self.basis, self.why_impossible = name, sampling, basis, why_impossible
        known = Trials.read(name)
        if known.basis not in ("", basis):
            raise SystemExit(
                f"search.{name}: the settings that its runs change are others than those of its earlier runs, whose results say nothing about "
                "them. Give the search another name, or set them back."
            )
        self.space = {setting: distribution(sampling.values(setting)) for setting in sampling.space}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        direction = StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE
        self.study = optuna.create_study(storage=open_storage(name), study_name=name, direction=direction, load_if_exists=True)
        self._check_study(known)
        self._check_space()
        self.write()

    def _check_study(self, known: Trials) -> None:
        """Optuna's file has no checksum: what was recorded of its trials must still be there."""
        found = self._trials()
        for number, trial in enumerate(known.trials):
            now = found[number] if number < len(found) else None
            if not now or now.settings != trial.settings or (trial.value is not None and now.value != trial.value):
                says = f"{now.settings} with the result {now.value}" if now else "nothing"
                raise SystemExit(
                    f"{FOLDER / self.name}/study.log: was changed after it was written: of {trial.run} it says {says}, and trials.json {trial.settings} with "
                    f"{trial.value}. Put a copy of it back, or give the search another name."
                )

    def _check_space(self) -> None:
        """A range may grow or shrink; a list must stay as it was."""
        for trial in self.study.get_trials(deepcopy=False):
            for setting in trial.distributions.keys() & self.space.keys():
                try:
                    check_distribution_compatibility(trial.distributions[setting], self.space[setting])
                except ValueError:
                    raise SystemExit(
                        f"search.{self.name}.space.{setting}: is no longer what it was for the first runs, {shown(trial.distributions[setting])}. "
                        "One study takes values from one list, or from ranges of one scale: set it back, or give the search another name."
                    ) from None

    @property
    def waiting(self) -> list[FrozenTrial]:
        """Trials without a result yet."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state == TrialState.RUNNING]

    def propose(self) -> int:
        """A batch, or what is missing of one whose proposals were interrupted; returns how many are new."""
        done, at_once = len(self.study.get_trials(deepcopy=False)), self.sampling.at_once
        if self.waiting and done % at_once == 0:
            return 0
        last = min(self.sampling.trials, (done // at_once + 1) * at_once)
        for number in range(done, last):
            self._check_folder(RUNS / run_name(self.name, number))
            self.study.sampler = TPESampler(seed=(self.sampling.seed + number) % 2**32, constant_liar=True)
            self.study.ask(self.space)
        self._leave_out_impossible()
        self.write()
        return last - done

    def _check_folder(self, run: Path) -> None:
        """Results of a run that was not proposed yet are not its own."""
        if run.exists():
            raise SystemExit(
                f"search.{self.name}: {run} is there before this run was proposed; it is of an earlier search of this name, or of another "
                "configuration. Move or delete it, or give the search another name."
            )

    def _leave_out_impossible(self) -> None:
        """Values that exclude each other count as a failed trial, from which the sampler learns."""
        for trial in self.waiting:
            run = run_name(self.name, trial.number)
            if not (RUNS / run).exists() and (why := self.why_impossible(trial.params)):
                print(f"warning: {run} is left out, as a failed trial: {why}", file=sys.stderr, flush=True)
                self.study.tell(trial.number, state=TrialState.FAIL)

    def tell(self) -> None:
        """The results of the trials that have ended."""
        for trial in self.waiting:
            folder = RUNS / run_name(self.name, trial.number)
            if (manifest := folder / "selection/manifest.json").is_file():
                selection = read_result(read_manifest(manifest), "selection.json")
                self.study.tell(trial.number, selection["winner"]["value"])
            elif failed(folder):
                self.study.tell(trial.number, state=TrialState.FAIL)
        same_data = "Set the data back, or give the search another name."  # such as of a file that has changed between two batches
        refuse_other_examples(f"search.{self.name}", self._measured(), same_data)
        self.write()

    def _measured(self) -> Iterator[tuple[str, str]]:
        """The digest of the development examples of each finished run, and the run."""
        for run in (run_name(self.name, trial.number) for trial in self._done):
            if (manifest := RUNS / run / "evaluation/manifest.json").is_file():
                yield read_result(read_manifest(manifest), "dev_results.json").get("examples_digest", ""), run

    def write(self) -> None:
        """For the workflow, which knows nothing of Optuna."""
        Trials(self.basis, self._trials()).write(self.name)

    def _trials(self) -> list[Trial]:
        return [
            Trial(run_name(self.name, each.number), dict(each.params), each.value if each.values else None, each.state == TrialState.FAIL)
            for each in self.study.get_trials(deepcopy=False)
        ]

    @property
    def _done(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]

    @property
    def best(self) -> Trial | None:
        """Of equal ones that of the lower loss, then the earlier."""
        if not self._done:
            return None
        equal = [trial.number for trial in self._done if trial.value == self.study.best_value]
        return Trials.read(self.name).trials[min(equal, key=lambda number: (self._loss(number), number))]

    def _loss(self, number: int) -> float:
        manifest = RUNS / run_name(self.name, number) / "selection/manifest.json"
        winner = read_result(read_manifest(manifest), "selection.json")["winner"] if manifest.is_file() else {}
        loss = winner.get("metrics", {}).get("loss")
        return loss if is_number(loss) else math.inf


def open_storage(search: str) -> JournalStorage:
    """The file of a study, without what a killed process left: half a line, to which the next one would be added, or a lock."""
    log = (FOLDER / search / "study.log").resolve()  # Optuna would wait for ever for a lock whose file it does not find
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and (whole := log.read_bytes().rfind(b"\n") + 1) < log.stat().st_size:
        os.truncate(log, whole)
    return JournalStorage(JournalFileBackend(str(log), JournalFileSymlinkLock(str(log), LOCK_SECONDS)))


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


def shown(known: BaseDistribution) -> str:
    if isinstance(known, CategoricalDistribution):
        return f"the list {json.dumps(known.choices)}"
    assert isinstance(known, IntDistribution | FloatDistribution)
    return f"a range of {'whole ' if isinstance(known, IntDistribution) else ''}numbers{' on a logarithmic scale' if known.log else ''}"
