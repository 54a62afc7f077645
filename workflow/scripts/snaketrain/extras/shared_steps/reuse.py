"""Steps that need not be computed again: a training that begins takes over the deepest checkpoint of its trajectory from any other one.

Nothing of the other training is changed: its files are shared by hard links, and it may still be running.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.extras.shared_steps.trajectory import Fingerprints, Trajectory, recorded
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.journal import Event, all_events, as_line, last_attempt
from snaketrain.runtime.loaded_code import changed_files
from snaketrain.runtime.manifests import PRIVATE_FILE, write_checked, write_text
from snaketrain.runtime.run_folder import loaded_by, record_loaded
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.checkpoints.publishing import damage, publish_again
from snaketrain.training.checkpoints.ranking import CheckpointState, read_state
from snaketrain.training.early_stopping import EarlyStopping, Evaluations, evaluations
from snaketrain.training.execution import execution_differences
from snaketrain.training.plan import Plan, folder_name

if TYPE_CHECKING:
    from snaketrain.extras.shared_steps.cache import Cache

FILE = "reused.json"  # what is said of it, for MLflow
# events of steps; attempts and the machine's load were the other training's
COPIED = ("train", "eval", "samples", "checkpoint", "bad_step")
CACHED = ".cached"  # beside a training: what a team's cache has for it
SPEED = "_per_second"  # the end of the names of figures that are not copied: this training did not compute so fast
SHOWN = 10  # steps in a message


@dataclass(frozen=True)
class Reused:
    """What a training has taken over."""

    step: int
    steps: int  # of this training in all
    training: str  # the folder of the other one
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)  # evaluations that these settings ask for, of steps whose weights are gone

    @property
    def message(self) -> str:
        return f"took over {self.step} of {self.steps} steps from {name_of(Path(self.training))}"

    @property
    def missing(self) -> str:
        """What the new settings ask for and cannot be had; empty if nothing."""
        if not self.unknown:
            return ""
        shown = ", ".join(map(str, self.unknown[:SHOWN])) + (", ..." if len(self.unknown) > SHOWN else "")
        return f"not evaluated: {len(self.unknown)} steps that the settings ask for ({shown}), whose weights were not kept"


@dataclass(frozen=True)
class Beginning:
    """A training that is about to take its first step."""

    folder: Path
    trajectory: Trajectory
    plan: Plan
    stopping: EarlyStopping | None = None

    def would_compute(self, attempt: Event) -> bool:
        """Whether this training would have computed the same as an attempt of another one on its trajectory."""
        return "mixed" not in attempt and attempt.get("execution") == self.trajectory.execution

    @cached_property
    def evaluated_steps(self) -> list[int]:
        return list(filter(self.plan.evaluates_at, range(1, self.plan.steps + 1)))


@dataclass(frozen=True)
class Source:
    """Another training: its checkpoints on the trajectory, by step, and its evaluations, as far as they are still valid."""

    folder: Path
    checkpoints: dict[int, CheckpointState]
    evaluations: Evaluations


def reuse_steps(begun: Beginning, trunk: Path | None = None, cache: "Cache | None" = None) -> None:
    """Where this training has not begun yet, take over the checkpoints of another one. For rank 0, before the journal is opened.

    `trunk`: the folder of the training whose steps it is meant to take over.
    """
    if not begun.plan.steps or last_attempt(begun.folder / "journal.jsonl") is not None:
        return
    trainings, copies = trainings_beside(begun.folder), begun.folder.parent / CACHED
    if cache:
        trainings += copies_from(cache, begun, trainings, copies)
    reused = reuse(begun, trainings)
    shutil.rmtree(copies, ignore_errors=True)  # what was taken over has links of its own
    for line in (reused.message, reused.missing) if reused else ():
        if line:
            logging.info("%s", line)
    if trunk and reused is None:
        logging.warning("no step of %s is taken over: %s. This training takes all steps itself", name_of(trunk), refusal(begun, trunk))


def copies_from(cache: "Cache", begun: Beginning, trainings: Sequence[Path], copies: Path) -> list[Path]:
    """What a team's cache has more than the workspace."""
    known = max((step for step, _ in on_trajectory(begun, trainings)), default=0)
    try:
        copy = cache.bring(begun.trajectory, known, begun.plan.last, copies)
    except Exception as error:  # of any file system; without the cache all steps are taken here
        logging.warning("shared_steps.cache cannot be read: %s", hidden(f"{type(error).__name__}: {error}"))
        return []
    return [copy] if copy else []


def refusal(begun: Beginning, trunk: Path) -> str:
    """Why the steps of a trunk cannot be taken over."""
    states = [state for path in sorted(trunk.glob("checkpoints/step-*")) if (state := state_of(path))]
    for state in states:
        if (record := recorded(state)) and begun.trajectory.follows(state["step"], record):
            different = execution_differences(record["execution"], begun.trajectory.execution)
            return f"it is executed otherwise ({'; '.join(different)})" if different else "its checkpoints are damaged"
    return "its settings, data or code are others" if states else "its checkpoints are gone"


def reuse(begun: Beginning, trainings: Sequence[Path]) -> Reused | None:
    """Take over the deepest checkpoint of the trajectory from one of these folders; of equally deep ones from the first."""
    for step, source in sorted(on_trajectory(begun, trainings), key=lambda each: -each[0]):
        if reused := take_over(begun, source, step):
            return reused
    return None


def on_trajectory(begun: Beginning, trainings: Sequence[Path]) -> "list[tuple[int, Source]]":
    """The checkpoints from which this training may resume."""
    sources = [source for folder in trainings if (source := source_of(folder, begun)).checkpoints]
    limits = {source.folder: limit(begun, source.evaluations) for source in sources}
    return [(step, source) for source in sources for step in source.checkpoints if step <= limits[source.folder]]


def source_of(folder: Path, begun: Beginning) -> Source:
    if last_attempt(folder / "journal.jsonl") is None:  # it was ended while it took over another one's steps: parts are missing
        return Source(folder, {}, {})
    if not (changed := set(changed_files(loaded_by(folder)))).issubset(begun.trajectory.planned):
        logging.info("%s is not reused: %s changed since", name_of(folder), ", ".join(sorted(changed)))
        return Source(folder, {}, {})
    try:
        found = sorted(folder.glob("checkpoints/step-*"))
    except FileNotFoundError:  # it was just moved aside
        found = []
    on_plan = {
        state["step"]: state
        for state in map(state_of, found)
        if state and 0 < state["step"] <= begun.plan.last and begun.trajectory.contains(state["step"], recorded(state))
    }
    records = [record for state in on_plan.values() if (record := recorded(state))]
    alike = records and all(record["measures"] == begun.trajectory.measures for record in records)
    return Source(folder, on_plan, evaluations(folder, begun.would_compute) if alike else {})


def state_of(checkpoint: Path) -> CheckpointState | None:
    """None where it was just removed, by a training that is running, or cannot be read."""
    try:
        return read_state(checkpoint)
    except SystemExit as error:
        if checkpoint.exists():
            print(f"warning: {checkpoint} is not reused: {error}", flush=True)
        return None


def limit(begun: Beginning, known: Evaluations) -> float:
    """The last step from which the training may resume: where early stopping ends it, or cannot know whether it does."""
    if begun.stopping is None:
        return begun.plan.steps
    stopping = copy(begun.stopping)
    for step in begun.evaluated_steps:
        if stopping.metric not in known.get(step, {}):
            return step
        stopping.observe(known[step][stopping.metric])
        if stopping.decided:
            return step
    return begun.plan.steps


def take_over(begun: Beginning, source: Source, last: int) -> Reused | None:
    """The checkpoints up to `last`, the journal up to there, and the evaluations. None if the last one is damaged or gone."""
    kept = {step: state for step, state in source.checkpoints.items() if step <= last}
    known = {step: metrics for step, metrics in source.evaluations.items() if step <= last}
    if kept[last]["metrics"] is None and begun.plan.evaluates_at(last):
        known.pop(last, None)  # it is evaluated when the training resumes
    wanted = [step for step in begun.evaluated_steps if step <= last and step not in known]
    reused = Reused(last, begun.plan.last, str(shown(source.folder)), sorted(known.items()), [step for step in wanted if step not in kept])
    clear(begun.folder)
    write_checked(begun.folder / FILE, {"message": reused.message})
    for step in sorted(kept, reverse=True):
        if not copy_checkpoint(begun, source.folder, kept[step]) and step == last:
            clear(begun.folder)
            return None
    record_loaded(begun.folder, loaded_by(source.folder))  # which these steps follow from
    copy_journal(source.folder / "journal.jsonl", begun.folder / "journal.jsonl", reused)
    return reused


def clear(folder: Path) -> None:
    """Remove what an attempt left that was killed while it took over checkpoints; a training of its own has not begun."""
    (folder / FILE).unlink(missing_ok=True)
    (folder / "journal.jsonl").unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def copy_checkpoint(begun: Beginning, source: Path, state: CheckpointState) -> bool:
    """Whether it is intact. Metrics that these settings would not measure are left out."""
    name, measures = folder_name(state["step"]), begun.trajectory.measures
    final = begun.folder / "checkpoints" / name
    state.pop("settings", None)  # which were the other training's; what they have to do with these weights, the fingerprint says
    said = state["callbacks"][Fingerprints.__name__]
    if said["measures"] != measures:
        state = {**state, "metrics": None, "callbacks": {**state["callbacks"], Fingerprints.__name__: {**said, "measures": measures}}}
    try:
        publish_again(source / "checkpoints" / name, final, state)
        found = damage(final)
    except OSError as error:
        found = str(error)
    if found:
        print(f"warning: {source / 'checkpoints' / name} is not reused: {found}", flush=True)
        shutil.rmtree(final, ignore_errors=True)
        shutil.rmtree(final.with_name(f".{name}"), ignore_errors=True)
    return not found


def copy_journal(source: Path, target: Path, reused: Reused) -> None:
    """The events up to the step, so that curves and rankings are whole; negative numbers mark the attempts of the other training.

    What took how long is left out, and the time is now: it was not this training's.
    """
    known, now = dict(reused.evaluations), round(time.time(), 3)
    found = (event | {"attempt": -abs(event.get("attempt", 0)), "time": now} for event in valid(all_events(source), reused.step, known))
    last: JsonObject = {"event": "reused", **asdict(reused), "message": reused.message, "time": now, "attempt": 0}
    del last["evaluations"]
    write_text(target, "".join(map(as_line, [*map(without_speed, found), last])), PRIVATE_FILE)


def without_speed(event: Event) -> Event:
    left = {key: value for key, value in event.items() if key != "spent"}
    if event["event"] == "train":
        left["metrics"] = {name: value for name, value in event["metrics"].items() if not name.endswith(SPEED)}
    return left


def valid(events: Iterable[Event], last: int, known: Evaluations) -> Iterable[Event]:
    """Of evaluations those that are known: others are of weights that were lost when an attempt was killed, or by other measures."""
    for event in events:
        kind, step = event.get("event"), event.get("step", last + 1)
        if kind not in COPIED or step > last or (kind in ("eval", "samples") and step not in known):
            continue
        if kind != "eval" or json.dumps(event["metrics"]) == json.dumps(known[step]):  # as text, in which NaN is equal to itself
            yield event


def shown(folder: Path) -> Path:
    """Relative to the workspace where it is below."""
    return Path(os.path.relpath(folder)) if folder.resolve().is_relative_to(Path.cwd()) else folder


def name_of(training: Path) -> str:
    """How people call the training in a folder: `run x`, `trunk 7-steps-ab12`, `an earlier training of run x`."""
    training = training.resolve()
    if training.parent.name == "superseded":
        return f"an earlier training of {name_of(training.parents[1] / 'training')}"
    kind = {"runs": "run", "trunks": "trunk", CACHED: "the cache:"}.get(training.parents[1].name)
    return f"{kind} {training.parent.name}" if kind else str(training)


def trainings_beside(folder: Path) -> list[Path]:
    """The training folders of the workspace: this run's earlier ones, the newest first, trunks, then those of other runs, finished or not."""
    own = sorted((folder.parent / "superseded").glob(f"{folder.name}-*"), reverse=True)
    kind = folder.resolve().parents[1]
    if folder.name != "training" or kind.name not in ("runs", "trunks"):  # not in a workspace
        return own
    results = kind.parent
    others = [path for trainings in ("trunks", "runs") for path in sorted(results.glob(f"{trainings}/*/training"))]
    others += [
        path for trainings in ("trunks", "runs") for path in sorted(results.glob(f"{trainings}/*/superseded/training-*"), reverse=True)
    ]
    return [*own, *(each for each in others if folder.parent.resolve() not in each.parents)]
