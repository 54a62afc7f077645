"""Builds a task's modules, and the state in which they are trained or evaluated."""

import logging
import os
import pickle
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from snaketrain.config.references import load
from snaketrain.config.schema import InitialWeights, Metric, Model, Train
from snaketrain.config.schema.train import PLATEAU
from snaketrain.config.sizes import compile_error
from snaketrain.models.adapters import config_of
from snaketrain.models.blocks import compile_blocks, recompute_activations, use_float8
from snaketrain.models.weights import NeedsWholeModel, load_weights, unread_weights, without_memory
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.strict_json import Json, JsonObject, shortened
from snaketrain.strategies import make_strategy
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Task
from snaketrain.tasks.metric_names import modes_of
from snaketrain.tasks.metrics import metrics_of_settings
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.ranking import Selection
from snaketrain.training.early_stopping import EarlyStopping, ReduceOnPlateau
from snaketrain.training.optimizers import check_groups, freeze, nothing_to_update, optimizer_of, parameter_groups
from snaketrain.training.state import Spikes, TrainState
from snaketrain.training.weight_average import WeightAverage

MOST_NAMES = 10  # logged of each kind
PICKLED = (".pt", ".pth", ".bin")


def start_from(modules: dict[str, nn.Module], folder: Path, chosen: InitialWeights) -> None:
    """Copy tensors of the same name, once `part` is replaced by `into`; log or refuse those without a counterpart."""
    part = chosen.part or ""
    into = part if chosen.into is None else chosen.into
    given = {into + name.removeprefix(part): tensor for name, tensor in read(folder).items() if name.startswith(part)}
    wanted = {name: tensor for name, tensor in named(modules).items() if name.startswith(into)}
    fits = {name for name in given.keys() & wanted.keys() if given[name].shape == wanted[name].shape}
    filled = {place(wanted[name]) for name in fits}
    problems = {
        "not in the file": [name for name, tensor in wanted.items() if name not in given and place(tensor) not in filled],
        "not in the model": sorted(given.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {list(given[name].shape)} -> {list(wanted[name].shape)}" for name in sorted((given.keys() & wanted.keys()) - fits)
        ],
    }
    mismatches = "; ".join(f"{len(names)} {what}: {shortened(names, MOST_NAMES)}" for what, names in problems.items() if names)
    if mismatches and (chosen.strict or not fits):
        raise SystemExit(
            f"model.initial_weights: do not match the model: {mismatches}. Correct `part` ({chosen.part}) and `into` ({into or None}), "
            "or set `strict: false` to take what fits."
        )
    with torch.no_grad():
        for name in fits:
            wanted[name].copy_(given[name])
    logging.info("initial weights: %d tensors of %s%s", len(fits), part or "the whole file", f"; {mismatches}" if mismatches else "")


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors in a folder. If the files are several modules, names begin with the file's name; shards of one model have plain names."""
    files = sorted(folder.rglob("*.safetensors")) or sorted(path for path in folder.rglob("*") if path.suffix in PICKLED)
    if not files:
        raise SystemExit(
            f"model.initial_weights.source: no .safetensors or .pt file in {folder}. Name a folder that has one, such as selection/model of a run."
        )
    one_model = len(files) == 1 or any(folder.rglob("*.index.json"))
    return {(name if one_model else f"{file.stem}.{name}"): tensor for file in files for name, tensor in tensors(file).items()}


def tensors(file: Path) -> dict[str, Tensor]:
    """The state dict in a file; of a pickled one nothing but tensors is loaded."""
    if file.suffix == ".safetensors":
        return load_file(file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise SystemExit(
            f"model.initial_weights.source: {file.resolve()} is not loaded, since it is more than tensors, or damaged: {str(error).splitlines()[0]} "
            "Save its state_dict() with safetensors.torch.save_file where you trust it."
        ) from None
    if isinstance(found, dict) and found.keys() & {"state_dict", "model"}:  # as trainers save it
        found = found.get("state_dict", found.get("model"))
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise SystemExit(
            f"model.initial_weights.source: {file.resolve()} has no state dict, tensors by name. Save one: torch.save(module.state_dict(), path)."
        )
    return found


def named(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The tensors to be filled, under the names that `read` gives."""
    return {
        (name if len(modules) == 1 else f"{module_name}.{name}"): tensor
        for module_name, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def place(tensor: Tensor) -> tuple[int, torch.Size]:
    """The same for tensors that share memory: files hold tied tensors only once."""
    return tensor.data_ptr(), tensor.shape


class DataInfo(dict[str, Json]):
    """Facts about the data; if a task needs one that is missing, an error says what to do."""

    def __missing__(self, name: str) -> NoReturn:
        raise SystemExit(
            f"train.task: needs `{name}`, which this data does not give. Name another task; or if the data is a dataset class, "
            f"give it a method `facts` that returns a dictionary with `{name}`."
        )


def check_weights(model: Model, weights: Path | None, initial: Path | None) -> None:
    """Weights that the settings name and nobody passes would silently be random ones."""
    for setting, argument, is_named, folder in (
        ("model.source", "weights", model.source, weights),
        ("model.initial_weights", "initial_weights", model.initial_weights, initial),
    ):
        if is_named and folder is None:
            raise SystemExit(
                f"{setting}: names weights that are not passed. Pass the folder of their files: {argument}=open_run(...).{argument}."
            )


def start_strategy(train: Train, device: str = "auto", precision: str | None = None) -> Strategy:
    """The strategy that the settings name, connected to the other ranks if there are any."""
    if train.deterministic:  # calling it with False would make torch load its compiler
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        torch.use_deterministic_algorithms(True)
    strategy = make_strategy(train.strategy.use, resolved(train.strategy.arguments), device=device, precision=precision or train.precision)
    strategy.start()
    return strategy


def load_callbacks(train: Train) -> list[Callback]:
    callbacks = [load(each.use)(**resolved(each.arguments)) for each in train.callbacks]
    for number, callback in enumerate(callbacks):
        if not isinstance(callback, Callback):
            raise SystemExit(
                f"train.callbacks.{number}: {train.callbacks[number].use} makes a {type(callback).__name__}, which is not a callback. "
                "Derive it from snaketrain.Callback."
            )
    if len([callback for callback in callbacks if isinstance(callback, WeightAverage)]) > 1:
        raise SystemExit("train.callbacks: two of them average the weights, and only one average can be evaluated. Keep one.")
    return callbacks


def selection_callbacks(train: Train, selection: Selection) -> list[Callback]:
    """What the selection metric decides while training."""
    stopping, schedule = early_stopping(train, selection), train.schedule
    found: list[Callback] = [stopping] if stopping else []
    return found + ([ReduceOnPlateau(selection, resolved(schedule.arguments), train.learning_rate)] if schedule.use == PLATEAU else [])


def selection_settings(train: Train, selection: Selection) -> JsonObject:
    """Of the selection, what decides the training."""
    return {"select": {"metric": selection.metric, "mode": selection.mode}} if train.depends_on_selection else {}


def early_stopping(train: Train, selection: Selection) -> EarlyStopping | None:
    early = train.early_stopping
    return EarlyStopping(selection, early.patience, early.min_change) if early else None


def make_task(train: Train, facts: JsonObject | None = None) -> Task:
    """With the `facts` of the data, the task also measures `train.metrics`."""
    task: Task = load(train.task.use, "tasks")(**resolved(train.task.arguments))
    if facts is not None:
        add_metrics(task, train.metrics, facts, train.task.use, "train.metrics")
    return task


def add_metrics(task: Task, given: dict[str, Metric], facts: JsonObject, use: str, where: str) -> None:
    """Let the task measure what a section names as well."""
    own = modes_of(task.metrics, facts.get("label_kind"), use)
    measured, modes = metrics_of_settings(given, facts, where)
    if twice := next((name for name in measured if name in own), None):
        raise SystemExit(f"{where}.{twice}: the task logs a metric of this name by itself. Remove it, or give yours another name.")
    if measured and type(task).metric_inputs is Task.metric_inputs:
        raise SystemExit(f"{where}: {use} does not say what metrics compare. Override `metric_inputs` in it, or remove {where}.")
    task.metrics, task.measured = {**own, **modes}, {**task.measured, **measured}


def build(
    task: Task, train: Train, model: Model, weights: Path | None, facts: JsonObject, initial: Path | None = None, builds: bool = True,
    trains: bool = False, slices: bool = False,
) -> dict[str, nn.Module]:  # fmt: skip
    """The task's modules on the CPU, the same on every rank that `builds`; `initial` is the folder of `model.initial_weights`.

    With adapters if it `trains`; selected weights have them merged. With `slices`, pretrained weights stay in their files where they can.
    """
    given = model.model_dump(exclude=None if trains else {"adapters"})
    modules = built_unread(task, train, given, weights, facts) if slices and weights and not initial else None
    if modules is None:
        torch.manual_seed(train.seed)
        # a task that wraps modules itself needs them on every rank
        with nullcontext() if builds or not task.wraps else without_memory():
            modules = task.build(given, weights, DataInfo(facts))
        if initial and (builds or not task.wraps):
            assert model.initial_weights, "the setting that names the folder"
            start_from(modules, initial, model.initial_weights)
    if trains and model.adapters and [config_of(module) is None for module in modules.values()] != [False]:
        raise SystemExit(
            f"model.adapters: {train.task.use} does not build one module with adapters. Let its `build` return the result of "
            "snaketrain.models.pretrained.make_model, or remove them."
        )
    return modules


def built_unread(task: Task, train: Train, model: JsonObject, weights: Path, facts: JsonObject) -> dict[str, nn.Module] | None:
    """None, if they cannot be without their weights."""
    torch.manual_seed(train.seed)
    try:
        return task.build(model | {"unread": True}, weights, DataInfo(facts))
    except NeedsWholeModel as reason:
        logging.info("the pretrained weights are not read by slices: %s", reason)
        return None


def by_slices(task: Task, strategy: Strategy) -> bool:
    """Whether weights may stay in their files until the modules are sharded. A task of the user's may read or change them before."""
    return strategy.reads_slices and task.wraps and type(task).build.__module__.startswith("snaketrain.tasks.")


def make_train_state(task: Task, train: Train, modules: dict[str, nn.Module], strategy: Strategy) -> TrainState:
    """The modules, wrapped by the strategy, with their optimizers."""
    if train.compile and (problem := compile_error(train.strategy.arguments, strategy.degrees)):
        raise SystemExit(f"{problem}.")
    freeze(modules, train.freeze)
    check_groups(modules, train.groups, train.decay == "all")
    parameters = sum(p.numel() for module in modules.values() for p in module.parameters())  # before they are sharded
    learning = {name for _, names in task.objectives(modules) for name in names}
    prepared: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}
    for name, module in modules.items():
        if strategy.precision == "fp8":
            use_float8(module, strategy.device)
        if train.recompute_activations:
            recompute_activations(module)
        if train.compile:
            compile_blocks(module, strategy.device)

        if name not in learning and not any(parameter.requires_grad for parameter in module.parameters()):  # such as the reference of DPO
            prepared[name] = strategy.place(module) if task.wraps else module.to(strategy.device), nothing_to_update()
            continue
        # by name, and before a strategy shards parameters into other shapes
        groups = parameter_groups(name, module, train.weight_decay, train.groups, train.decay == "all")
        make_optimizer = partial(optimizer_of, train, groups)
        prepared[name] = (strategy.prepare if task.wraps else strategy.adopt)(module, make_optimizer)
    wrapped, optimizers = {name: pair[0] for name, pair in prepared.items()}, {name: pair[1] for name, pair in prepared.items()}
    spikes = Spikes(train.spike_factor) if train.spike_factor else None
    return TrainState(task, strategy, wrapped, optimizers, train.clip_norm, parameters, spikes=spikes)


def load_for_evaluation(task: Task, modules: dict[str, nn.Module], strategy: Strategy, folder: Path) -> TrainState:
    """The task's modules with the weights in a folder, placed for evaluation, without optimizers. Unread ones are those in the folder."""
    placed = {}
    for name, module in modules.items():
        if unread_weights(module) is None and (strategy.builds or not task.wraps):
            load_weights(strategy.unwrapped(module), folder, name)
        placed[name] = strategy.place(module) if task.wraps else module.to(strategy.device)
    return TrainState(task, strategy, placed)
