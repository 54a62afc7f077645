"""Fingerprints of the weights at each step: a digest of all that they follow from. Pure functions, which load no torch.

Trainings with the same fingerprint at a step that are executed alike have the same weights there, bit for bit, so that none has to
compute them again. What decides the weights of every step is in `base`; the learning rates join step by step, so that trainings part
where their rates do. A setting, fact or module that is not listed here as harmless decides the weights.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.loaded_code import RECORDED, imported_packages
from snaketrain.runtime.manifests import Manifest, digest
from snaketrain.runtime.provenance import all_installed
from snaketrain.runtime.strict_json import Json, JsonObject

if TYPE_CHECKING:
    import torch

    from snaketrain.config.schema import Train
    from snaketrain.strategies.base import Strategy

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
EXECUTION = ("strategy", "accumulate", "precision")  # compared as they are executed: see `Execution`
EVALUATION_ARGUMENTS = {"module": "metrics", "causal_lm": "generate", "seq2seq": "generate"}  # of tasks, by name

# modules that decide no weights: they measure ...
MEASURING = (
    "snaketrain.tasks.metric_names",
    "snaketrain.tasks.metrics",
    "snaketrain.training.evaluation",
)
# ... or decide when a training ends, what it reports, and the learning rates, which are compared themselves. What else the metrics decide is
# in `early_stopping` too, and counts where they decide anything.
NOT_MEASURING = (
    "snaketrain.training.early_stopping",
    "snaketrain.training.metric_window",
    "snaketrain.training.schedules",
    "snaketrain.training.trajectory",
)

# what a manifest of prepared data has besides the training data
OTHER_FILES = ("dev.", "test.", "report.json")
OTHER_FACTS = ("name", "odd")
BY_SPLIT = ("splits", "datasets")


class Record(TypedDict):
    """What a checkpoint says about its trajectory."""

    fingerprint: str
    measures: str  # digest of what decides its metrics, besides its weights
    bad_steps: int  # the most non-finite steps in a row so far: with fewer allowed, the training would have rolled back
    execution: JsonObject  # how it was computed


@dataclass(frozen=True)
class Execution:
    """All that decides how a step is rounded: one training takes over the steps of another only where it is equal."""

    strategy: str
    arguments: JsonObject  # of the strategy
    processes: int
    nodes: int
    accumulate: int
    precision: str
    devices: list[str]  # their kinds
    versions: dict[str, str]

    def content(self) -> JsonObject:
        content: JsonObject = json.loads(json.dumps(hidden_in(vars(self))))  # as it is read from a checkpoint
        return content


def execution_of(train: "Train", strategy: "Strategy") -> Execution:
    """How this training is executed. All ranks take part, since each may run on another machine."""
    ranks = strategy.all_gather_object((platform.node(), kind_of(strategy.device)))
    nodes, devices = ({rank[number] for rank in ranks} for number in (0, 1))
    return Execution(
        type(strategy).__name__, train.strategy.arguments, strategy.world_size, len(nodes), train.accumulate, strategy.precision,
        sorted(devices), all_installed() | imported_packages(),
    )  # fmt: skip


def kind_of(device: "torch.device") -> str:
    """Of a GPU its name and the libraries that compute on it; of a CPU its model, instruction set and threads."""
    import torch

    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch declares no types
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    if device.type == "cpu":
        return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return device.type


def processor() -> str:
    """The model of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def execution_differences(theirs: JsonObject, ours: JsonObject) -> list[str]:
    """`processes 1, here 2`, for each difference between two executions."""
    one, other = ({name: value for name, value in each.items() if name != "versions"} | each["versions"] for each in (theirs, ours))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [f"{name} {as_text(one.get(name))}, here {as_text(other.get(name))}" for name in names]


def as_text(value: Json) -> str:
    return "none" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class Trajectory:
    """The fingerprints of one training."""

    def __init__(
        self, base: str, measures: str, execution: Execution, bad_steps_allowed: int, step_content: Callable[[int], bytes],
        planned: Collection[str] = (),
    ):  # fmt: skip
        """`step_content`: what joins the chain at a step; `planned`: the modules and files whose code is in the fingerprint, or does not matter."""
        self.planned = planned
        self.base, self.measures, self.execution = base, measures, execution
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
        return {"fingerprint": self.at(step), "measures": self.measures, "bad_steps": bad_steps, "execution": self.execution.content()}

    def contains(self, step: int, record: Record | None) -> bool:
        """Whether this training has the recorded weights at this step, bit for bit."""
        return record is not None and self.follows(step, record) and record["execution"] == self.execution.content()

    def follows(self, step: int, record: Record | None) -> bool:
        """Whether it has these weights at this step up to rounding: it may be executed otherwise."""
        return record is not None and record["bad_steps"] <= self.bad_steps_allowed and record["fingerprint"] == self.at(step)


def trajectory_of(
    settings: JsonObject, code: Mapping[str, str], inputs: dict[str, str], data: Manifest, execution: Execution,
    step_content: Callable[[int], bytes], observers: Collection[int] = (), exempt: Collection[str] = (), cadence: JsonObject | None = None, evaluations_count: bool = False,
) -> Trajectory:  # fmt: skip
    """`inputs`: digests of the weights to start from; `observers`: the numbers of callbacks that only observe; `exempt`: the files of these.

    `cadence`: what else decides when something is evaluated, saved or logged. `evaluations_count`: evaluations, checkpoints or logged
    figures change the training, so that whatever decides them counts.
    """
    measures = digest(
        VERSION, data_digest(data, "dev"), measuring_settings(settings), {name: now for name, now in code.items() if name in MEASURING}
    )
    moments = (*EXECUTION, *BY_THE_RATES, "rollbacks_allowed", "early_stopping")
    when = digest(settings | {"train": without(settings["train"], moments)}, cadence or {})
    parts: JsonObject = {
        "version": VERSION,
        "settings": weight_settings(settings, observers),
        "code": weight_code(code, exempt),
        "inputs": inputs,
        "data": data_digest(data, "train"),
    }
    if evaluations_count:
        parts |= {
            "when": when,
            "measures": measures,
            "schedule": settings["train"]["schedule"],
            "deciding": code.get("snaketrain.training.early_stopping"),
        }
    return Trajectory(digest(parts), measures, execution, settings["train"]["bad_steps_allowed"], step_content, frozenset(code))


def without(section: JsonObject, fields: Collection[str]) -> JsonObject:
    return {name: value for name, value in section.items() if name not in fields}


def weight_settings(settings: JsonObject, observers: Collection[int] = ()) -> JsonObject:
    """The settings that decide the weights."""
    train = without(settings["train"], (*BY_THE_RATES, *WITHOUT_EFFECT, *EXECUTION))
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


def files_of_observers(settings: JsonObject, observers: Collection[int]) -> set[str]:
    """The user's own files that hold callbacks which only observe, and nothing else that the settings name."""
    callbacks = settings["train"]["callbacks"]
    files = {each["use"].partition(":")[0] for number, each in enumerate(callbacks) if number in observers}
    others = settings | {"train": settings["train"] | {"callbacks": _counted_callbacks(callbacks, observers)}}
    named_elsewhere = strict_json.dumps(others, ensure_ascii=False)
    return {file for file in files if file.endswith(".py") and file not in named_elsewhere}


def weight_code(code: Mapping[str, str], exempt: Collection[str] = ()) -> dict[str, str]:
    """The digests of the modules that decide the weights; `exempt`: further ones that do not."""
    return {name: now for name, now in code.items() if name not in (*MEASURING, *NOT_MEASURING, *exempt) and not name.startswith(RECORDED)}


def data_digest(data: Manifest, split_name: str) -> str:
    """Of what a training learns from, `train`, or of what it is evaluated on, `dev`."""
    parts = [sha for name, sha in data.files.items() if name.startswith("parts/") and name.endswith(f"/{split_name}.arrow")]  # in order
    whole = {name: sha for name, sha in data.files.items() if not name.startswith("parts/")}
    if split_name == "train":
        files = {name: sha for name, sha in whole.items() if not name.startswith(OTHER_FILES)}
        facts = {key: value for key, value in data.facts.items() if key not in (*OTHER_FACTS, *BY_SPLIT)}
    else:
        files, facts = {name: sha for name, sha in whole.items() if name.startswith(f"{split_name}.")}, {}
    of_split = {key: data.facts[key].get(split_name) for key in BY_SPLIT if key in data.facts}
    return digest(files, facts, of_split, *([parts] if parts else []))
