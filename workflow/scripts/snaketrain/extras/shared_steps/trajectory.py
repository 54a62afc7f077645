"""Fingerprints of the weights at each step: a digest of all that they follow from.

Trainings with the same fingerprint at a step that are executed alike have the same weights there, bit for bit, so that none has to
compute them again. What decides the weights of every step is in `base`; the learning rates join step by step, so that trainings part
where their rates do. A setting, fact or module that is not listed here as harmless decides the weights.
"""

import hashlib
import struct
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from snaketrain.config.references import load
from snaketrain.config.schema import Train
from snaketrain.config.schema.of_extras import constants
from snaketrain.config.schema.train import PLATEAU
from snaketrain.data.loading.batches import Batches
from snaketrain.orchestration.code_digest import code_digests
from snaketrain.runtime import strict_json
from snaketrain.runtime.loaded_code import RECORDED
from snaketrain.runtime.manifests import Manifest, digest
from snaketrain.runtime.strict_json import Json, JsonObject
from snaketrain.tasks.base import Task
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.ranking import CheckpointState, read_state
from snaketrain.training.plan import Plan, folder_name
from snaketrain.training.state import TrainState

if TYPE_CHECKING:
    from snaketrain.training.trainer import Trainer
    from train_model import Attempt

VERSION = 3  # of what is digested here: fingerprints of another version are never equal

# fields of the section `train`; all others decide the weights
BY_THE_RATES = ("schedule", "warmup", "epochs", "steps")  # these do so only through the learning rates
WITHOUT_EFFECT = (
    "metrics",
    "evaluations_per_epoch",
    "evaluate_every",
    "save_every",
    "save_every_minutes",
    "early_stopping",
    "bad_steps_allowed",  # compared with what has happened: see `Record.bad_steps`
    "rollbacks_allowed",
)
EXECUTION = ("strategy", "accumulate", "precision")  # compared as they are executed
EVALUATION_ARGUMENTS = {"module": "metrics", "causal_lm": "generate", "seq2seq": "generate"}  # of tasks, by name

# modules that decide no weights: they measure ...
MEASURING = ("snaketrain.tasks.metric_names", "snaketrain.tasks.metrics", "snaketrain.training.evaluation")
# ... or decide when a training ends, what it reports, and the learning rates, which are compared themselves. What else the metrics decide is
# in `early_stopping` too, and counts where they decide anything.
NOT_MEASURING = tuple(f"snaketrain.training.{name}" for name in ("early_stopping", "execution", "metric_window", "schedules"))

# what a manifest of prepared data has besides the training data
OTHER_FILES = ("report.json",)
OTHER_FACTS = ("name", "odd")
BY_SPLIT = ("splits", "datasets")


class Record(TypedDict):
    """What a checkpoint says about its trajectory."""

    fingerprint: str
    measures: str  # digest of what decides its metrics, besides its weights
    bad_steps: int  # the most non-finite steps in a row so far: with fewer allowed, the training would have rolled back
    execution: JsonObject  # how it was computed


class Trajectory:
    """The fingerprints of one training."""

    def __init__(
        self, base: str, measures: str, execution: JsonObject, bad_steps_allowed: int, step_content: Callable[[int], bytes],
        planned: Collection[str] = (),
    ):  # fmt: skip
        """`step_content`: what joins the chain at a step; `planned`: the modules and files whose code is in the fingerprint, or does not matter."""
        self.base, self.measures, self.execution, self.planned = base, measures, execution, planned
        self.bad_steps_allowed, self.step_content = bad_steps_allowed, step_content
        self._chains = {0: hashlib.sha256(base.encode())}  # as they are after some steps

    def at(self, step: int) -> str:
        """The fingerprint of the weights after a step."""
        if step not in self._chains:
            before = max(known for known in self._chains if known < step)
            chain = self._chains[before].copy()
            for each in range(before + 1, step + 1):
                chain.update(self.step_content(each))
            self._chains[step] = chain
        return self._chains[step].hexdigest()[:32]

    def record(self, step: int, bad_steps: int) -> Record:
        return {"fingerprint": self.at(step), "measures": self.measures, "bad_steps": bad_steps, "execution": self.execution}

    def contains(self, step: int, record: Record | None) -> bool:
        """Whether this training has the recorded weights at this step, bit for bit."""
        return record is not None and self.follows(step, record) and record["execution"] == self.execution

    def follows(self, step: int, record: Record) -> bool:
        """Whether it has these weights at this step up to rounding: it may be executed otherwise."""
        return record["bad_steps"] <= self.bad_steps_allowed and record["fingerprint"] == self.at(step)


class Fingerprints(Callback):
    """Each checkpoint says which weights it has."""

    observes_only = True

    def __init__(self, trajectory: Trajectory, checkpoints: Path):
        self.trajectory, self.checkpoints = trajectory, checkpoints
        self.apply = True

    def on_train_start(self, state: TrainState) -> None:
        """Where the restored weights also follow from how the training was executed, no other one has these, nor those of later steps."""
        if state.step:
            self.apply = self.trajectory.contains(state.step, recorded(read_state(self.checkpoints / folder_name(state.step))))

    def facts(self, trainer: "Trainer") -> JsonObject:
        """Nothing if the weights also follow from when memory ran out, or from which checkpoint there was to roll back to."""
        if not self.apply or trainer.accumulation.number != trainer.train.accumulate or trainer.bad_steps.rollbacks:
            return {}
        return dict(self.trajectory.record(trainer.state.step, trainer.bad_steps.longest))


def recorded(state: CheckpointState) -> Record | None:
    """What a checkpoint says about its trajectory."""
    return cast("Record | None", state.get("callbacks", {}).get(Fingerprints.__name__))


def trajectory_of_attempt(attempt: "Attempt") -> Trajectory:
    given, train, observing = attempt.job.given, attempt.plan.train, observers(attempt.plan.train)
    inputs = {role: content for role, content in attempt.inputs.items() if role != "data"}
    cadence: JsonObject = {"log_every": attempt.arguments.log_every, **vars(attempt.selection)}
    return trajectory_of(
        given.settings, given.code, inputs, attempt.data, attempt.execution, attempt.plan,
        observing, observing_files(given.settings, given.code, observing), cadence if evaluations_count(train, attempt.task) else None,
    )  # fmt: skip


def observers(train: Train) -> set[int]:
    """The numbers of the callbacks that declare to only observe."""
    return {number for number, each in enumerate(train.callbacks) if getattr(load(each.use), "observes_only", False)}


def evaluations_count(train: Train, task: Task) -> bool:
    """Whether evaluations, checkpoints or logged figures can change the weights."""
    definers = [each for each in type(task).__mro__ if each is not Task and {"validation_epoch", "state_dict"} & vars(each).keys()]
    keeps_state = any(not vars(each).get("evaluates_only", False) for each in definers)
    return train.trainer is not None or train.schedule.use == PLATEAU or len(observers(train)) < len(train.callbacks) or keeps_state


def trajectory_of(
    settings: JsonObject, code: Mapping[str, str], inputs: dict[str, str], data: Manifest, execution: JsonObject, plan: Plan,
    observers: Collection[int] = (), exempt: Collection[str] = (), cadence: JsonObject | None = None,
) -> Trajectory:  # fmt: skip
    """`inputs`: digests of the weights to start from; `observers`: the numbers of callbacks that only observe; `exempt`: the files of these.

    `cadence`: what else decides when something is evaluated, saved or logged, where that changes the weights, so that all of it counts.
    """
    measures = digest(
        VERSION, data_digest(data, "dev"), measuring_settings(settings), {name: now for name, now in code.items() if name in MEASURING}
    )
    parts: JsonObject = {
        "version": VERSION,
        "settings": weight_settings(settings, observers),
        "code": weight_code(code, exempt),
        "inputs": inputs,
        "data": data_digest(data, "train"),
    }
    if cadence is not None:
        moments = (*EXECUTION, *BY_THE_RATES, "rollbacks_allowed", "early_stopping")
        parts |= {
            "when": digest(settings | {"train": without(settings["train"], moments)}, cadence),
            "measures": measures,
            "schedule": settings["train"]["schedule"],
            "deciding": code.get("snaketrain.training.early_stopping"),
        }
    content = partial(step_content, plan, cadence=cadence is not None)
    return Trajectory(digest(parts), measures, execution, settings["train"]["bad_steps_allowed"], content, frozenset(code))


def step_content(plan: Plan, step: int, cadence: bool) -> bytes:
    """What a step adds to the fingerprint, to the last bit; `cadence`: also what happens after it."""
    rates = [plan.learning_rate_at(step), *(part for group in sorted(plan.group_rates_at(step).items()) for part in group)]
    after = [plan.evaluates_at(step), plan.saves_at(step), step == plan.steps] if cadence else []
    begins = plan.batches.begins(step) if isinstance(plan.batches, Batches) else b""
    return struct.pack(f"<{len(rates)}d{len(after)}?", *rates, *after) + begins


def without(section: JsonObject, fields: Collection[str]) -> JsonObject:
    return {name: value for name, value in section.items() if name not in fields}


def weight_settings(settings: JsonObject, observers: Collection[int] = ()) -> JsonObject:
    """The settings that decide the weights."""
    train = without(settings["train"], (*BY_THE_RATES, *WITHOUT_EFFECT, *EXECUTION, *constants("phases", "FIELD")))
    task = train["task"]
    train |= {
        "task": task | {"arguments": without(task["arguments"], _evaluation_arguments(task))},
        "callbacks": _counted_callbacks(train["callbacks"], observers),
        "groups": [without(group, ["schedule"]) for group in train["groups"]],
    }
    return without(settings, ["select"]) | {"train": train}


def measuring_settings(settings: JsonObject) -> list[Json]:
    """The settings that decide the metrics of given weights, besides those that decide the weights."""
    train = settings["train"]
    return [train.get("metrics"), [train["task"]["arguments"].get(name) for name in _evaluation_arguments(train["task"])]]


def _evaluation_arguments(task: JsonObject) -> list[str]:
    """Those of a task that only its evaluation uses."""
    return [name] if (name := EVALUATION_ARGUMENTS.get(task["use"])) else []


def _counted_callbacks(callbacks: list[Json], observers: Collection[int]) -> list[Json]:
    return [each for number, each in enumerate(callbacks) if number not in observers]


def observing_files(settings: JsonObject, code: Collection[str], observers: Collection[int]) -> set[str]:
    """The user's own files that hold callbacks which only observe, and nothing that the settings name or the other own files import."""
    callbacks = settings["train"]["callbacks"]
    files = {each["use"].partition(":")[0] for number, each in enumerate(callbacks) if number in observers}
    others = settings | {"train": settings["train"] | {"callbacks": _counted_callbacks(callbacks, observers)}}
    named_elsewhere = strict_json.dumps(others, ensure_ascii=False)
    found = {file for file in files if file.endswith(".py") and file not in named_elsewhere}
    own = {name for name in code if name.endswith(".py")} if found else set()
    return found - {name for file in own - found for name in code_digests(file)}


def weight_code(code: Mapping[str, str], exempt: Collection[str] = ()) -> dict[str, str]:
    """The digests of the modules that decide the weights; `exempt`: further ones that do not."""
    return {name: now for name, now in code.items() if name not in (*MEASURING, *NOT_MEASURING, *exempt) and not name.startswith(RECORDED)}


def data_digest(data: Manifest, split_name: str) -> str:
    """Of what a training learns from, `train`, or of what it is evaluated on, `dev`."""
    parts = [sha for name, sha in data.files.items() if name.startswith("parts/") and name.endswith(f"/{split_name}.arrow")]  # in order
    whole = {name: sha for name, sha in data.files.items() if not name.startswith("parts/")}
    if split_name == "train":
        # what is taken of further training sets joins step by step
        others = (*OTHER_FILES, *(f"{split}." for split in data.facts["splits"] if split != "train"))
        files = {name: sha for name, sha in whole.items() if not name.startswith(others)}
        facts = {key: value for key, value in data.facts.items() if key not in (*OTHER_FACTS, *BY_SPLIT)}
    else:
        files, facts = {name: sha for name, sha in whole.items() if name.startswith(f"{split_name}.")}, {}
    of_split = {key: data.facts[key].get(split_name) for key in BY_SPLIT if key in data.facts}
    return digest(files, facts, of_split, *([parts] if parts else []))
