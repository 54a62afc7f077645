"""A battery of wrong configurations, made from the settings themselves: every setting with every kind of invalid value."""

import itertools
import os
import re
import time
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from limits import slowness

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import TOP_LEVEL
from snaketrain.config.schema import Section, Settings, Use
from snaketrain.config.schema.tasks import ModuleSettings
from snaketrain.orchestration.preflight import examine

ROWS = 40
NULL = "null is allowed"
PLACE = re.compile(rf"(runs\.|sweeps\.)?[\w.-]*({'|'.join(TOP_LEVEL)})\b")  # how a problem begins
SOURCE = {"path": "train.csv"}
BASE = {
    "data": {"train": SOURCE, "tokenizer": {"path": "tokenizer"}},
    "model": {
        "use": "transformers.BertForSequenceClassification",
        "arguments": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
    },
}
OF_MODULE = {
    "data": {"train": {"use": "mine.py:Images", "arguments": {"count": 3}}},
    "model": {"use": "mine.py:Net"},
    "train": {
        "task": {"use": "module", "arguments": {"losses": {"output": {"use": "torch.nn.MSELoss"}}, "metrics": {"error": "mine.py:error"}}}
    },
    "select": {"metric": "loss"},
}
MINE = """
import torch  # noqa: E402

from snaketrain import Callback


class Images(torch.utils.data.Dataset):
    def __init__(self, count: int, shift=0):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return torch.ones(2), torch.ones(3)


class Net(torch.nn.Module):
    def __init__(self, width: int = 3):
        super().__init__()
        self.layer = torch.nn.Linear(2, width)

    def forward(self, inputs):
        return self.layer(inputs)


def error(prediction, target, power=1):
    return (prediction - target).abs().mean(1) ** power


class Watch(Callback):
    def __init__(self, every: int = 1):
        pass


class Task:
    metrics = {"loss": "min"}  # noqa: RUF012

    def __init__(self, strength: float):
        pass
"""
ACCEPTED = {
    "train.task.arguments.losses.some.weight: negative",  # it may be intended, to maximise something
    "train.task.arguments.regularisers.0.weight: negative",
    "evaluate.generate.length_penalty: negative",  # shorter answers are preferred
    "predict.some.generate.length_penalty: negative",
}

# one error each: its place, the value, and settings needed beside it
LLAMA = {"use": "transformers.LlamaForCausalLM", "arguments": {"hidden_size": 8}}
OF_CODE: list[
    tuple[str, Any, dict]
] = [  # optimizers, schedules, strategies, tasks, models, data sets, losses and metrics, and their arguments
    ("train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"lr": 0.5}}, {}),
    ("train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"weight_decay": 50}}, {}),
    ("train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"ep": 1e-8}}, {}),
    ("train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"eps": "small"}}, {}),
    ("train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"betas": 0.9}}, {}),
    ("train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"amsgrad": 3}}, {}),
    ("train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"params": []}}, {}),
    ("train.optimizer", {"use": "torch.optim.SGD", "arguments": {"momentun": 0.9}}, {}),
    ("train.optimizer", {"use": "torch.optim.SGD", "arguments": {"betas": [0.9, 0.99]}}, {}),
    ("train.optimizer", {"use": "torch.optim.SGD", "arguments": {"nesterov": "yes please"}}, {}),
    ("train.optimizer", "torch.nn.Linear", {}),
    ("train.optimizer", "torch.optim.lr_scheduler.StepLR", {}),
    ("train.optimizer", "torch.optim", {}),
    ("train.optimizer", "", {}),
    ("train.optimizer", ":", {}),
    ("train.optimizer", "...", {}),
    ("train.optimizer", "os.system", {}),
    ("train.schedule", {"use": "cosine", "arguments": {"lowest": "low"}}, {}),
    ("train.schedule", {"use": "cosine", "arguments": {"lowst": 0.1}}, {}),
    ("train.schedule", {"use": "constant", "arguments": {"lowest": 0.1}}, {}),
    ("train.schedule", {"use": "linear", "arguments": {"done": 1}}, {}),
    ("train.schedule", {"use": "inverse_square_root", "arguments": {"stable": [1]}}, {}),
    ("train.schedule", "torch.optim.lr_scheduler.StepLR", {}),
    ("train.schedule", "inverse_sqrt", {}),
    ("train.strategy", {"use": "ddp", "arguments": {"bucket": 1}}, {}),
    ("train.strategy", {"use": "ddp", "arguments": {"static_graph": "maybe"}}, {}),
    ("train.strategy", {"use": "ddp", "arguments": {"device": "cpu"}}, {}),
    ("train.strategy", {"use": "hsdp", "arguments": {"shard": "two"}}, {}),
    ("train.task", {"use": "text_classification", "arguments": {"strength": 3}}, {}),
    ("train.task", {"use": "causal_lm", "arguments": {"learn_prompt": True}}, {"data": {**BASE["data"], "label": None}, "model": LLAMA}),
    ("train.task", {"use": "mine.py:Task"}, {"select": {"metric": "loss"}}),
    ("train.task", {"use": "mine.py:Task", "arguments": {"strengh": 1.0}}, {"select": {"metric": "loss"}}),
    ("train.task", {"use": "mine.py:Task", "arguments": {"strength": "strong"}}, {"select": {"metric": "loss"}}),
    ("model.arguments", {"hiden_size": 8}, {}),
    ("model.arguments", {"num_layers": 2}, {}),
    ("model.arguments", {"hidden_size": "big"}, {}),
    ("model.arguments", {"hidden_size": -8}, {}),
    ("model.arguments", {"hidden_size": 7, "num_attention_heads": 2}, {}),
    ("model.arguments", {"num_attention_heads": 0}, {}),
    ("model.arguments", {"hidden_dropout_prob": "half"}, {}),
    ("model.arguments", {"num_labels": 7}, {}),
    ("model.arguments", {"is_decoder": "sometimes"}, {}),
    ("model.use", "transformers.BertModel", {}),
    ("model.use", "transformers.BertTokenizer", {}),
    ("model.use", "torch.nn.Linear", {}),
    ("model.use", "transformers", {}),
    ("model.use", "bert-base-uncased", {}),
    ("model.use", "mine.py", {}),
    ("model.use", "mine.py:", {}),
    ("model.use", "tokenizer:Net", {}),
    ("model.use", "x" * 5000 + ".Net", {}),
    ("model.use", "x" * 5000 + ".py:Net", {}),
    ("model.arguments", {"d_model": 8}, {"model": LLAMA, "train": {"task": "causal_lm"}, "data": {**BASE["data"], "label": None}}),
    ("model.arguments", {"wdth": 3}, OF_MODULE),
    ("model.arguments", {"width": "wide"}, OF_MODULE),
    ("data.train.arguments", {}, OF_MODULE),
    ("data.train.arguments", {"count": 3, "shft": 1}, OF_MODULE),
    ("data.train.arguments", {"count": "three"}, OF_MODULE),
    ("train.task.arguments.losses.output.arguments", {"reductoin": "sum"}, OF_MODULE),
    ("train.task.arguments.losses.output.arguments", {"reduction": 3}, OF_MODULE),
    ("train.task.arguments.losses.output.use", "torch.nn.MSELos", OF_MODULE),
    ("train.task.arguments.losses.other", "torch.nn.MSELoss", OF_MODULE),
    ("train.task.arguments.metrics.error", {"use": "mine.py:error", "arguments": {"powr": 2}}, OF_MODULE),
    ("train.task.arguments.metrics.r2", {"use": "torchmetrics.R2Score", "arguments": {"adjustd": 2}}, OF_MODULE),
    ("train.task.arguments.metrics.r2", {"use": "torchmetrics.R2Score", "prediction": "outptu"}, OF_MODULE),
    ("train.callbacks", [{"use": "mine.py:Watch", "arguments": {"evry": 2}}], {}),
    ("train.callbacks", ["mine.py:Wach"], {}),
    ("train.callbacks", ["watch"], {}),
]
BY_HAND: list[tuple[str, Any, dict]] = [
    # contradictions
    ("train", {"save_every": 10, "save_every_minutes": 5}, {}),
    ("train", {"steps": 10, "epochs": 2}, {}),
    ("train", {"evaluate_every": 10, "evaluations_per_epoch": 2}, {}),
    ("train", {"batch_size": 10, "batch_tokens": 2000}, {}),
    ("train", {"steps": 10, "warmup": 20}, {}),
    ("train", {"steps": 10, "warmup": 10}, {}),
    ("train", {"warmup": 500}, {"data": {**BASE["data"], "limit_train": 30}}),
    ("train", {"freeze": ["a", "a"]}, {}),
    ("train", {"groups": [{"match": "a"}, {"match": "a"}]}, {}),
    ("train", {"precision": "tf32"}, {"compute": {"device": "cpu"}}),
    ("train", {"precision": "fp8"}, {"compute": {"device": "cpu"}}),
    ("train", {"strategy": "data_parallel"}, {"compute": {"processes": 2}}),
    ("train", {"packing": True}, {}),
    ("compute", {"device": "cpu", "gpus": 2}, {}),
    ("compute", {"processes": 4, "gpus": 2}, {}),
    ("compute", {"launch_command": "aprun -n 4"}, {}),
    ("compute", {"minutes": 1, "save_before_limit_seconds": 60}, {}),
    ("compute", {"launcher": "torchrun", "nodes": 2}, {}),
    ("compute", {"nodes": 0}, {}),
    ("compute", {"environment": {"MASTER_PORT": 29500}}, {}),
    ("compute", {"environment": {"MY-VARIABLE": 1}}, {}),
    ("compute", {"environment": {"TEXT": ["a"]}}, {}),
    ("compute", {"container": {"image": "x.sif", "runtime": "podman"}}, {}),
    ("compute", {"container": {"image": "x.sif", "binds": ["data"]}}, {}),
    ("compute", {"nodes": "4-2"}, {}),
    ("compute", {"nodes": "many"}, {}),
    ("compute", {"nodes": -1}, {}),
    ("compute", {"nodes": "4+0"}, {}),
    ("compute", {"nodes": "1-4+1"}, {}),
    ("compute", {"interface": "ib0", "launcher": "torchrun"}, {}),
    ("compute", {"sbatch": "--gres=gpu:1"}, {}),
    ("compute", {"sbatch": "--comment='x"}, {}),
    ("data", {"columns": [], **BASE["data"]}, {}),
    ("data", {"columns": ["text", "text"], **BASE["data"]}, {}),
    ("data", {"text": ["text", "text"], **BASE["data"]}, {}),
    ("data", {"text": ["a", "b", "c"], **BASE["data"]}, {}),
    ("data", {"text": "label", **BASE["data"]}, {}),
    ("data", {"label": "text", **BASE["data"]}, {}),
    ("data", {"label": None, "labels": {0: "a"}, **BASE["data"]}, {}),
    ("data", {"labels": {}, **BASE["data"]}, {}),
    ("data", {"labels": {0: "a", 1: "a"}, **BASE["data"]}, {}),
    ("data", {"test": SOURCE, **BASE["data"]}, {}),
    ("data", {"dev": {"path": "*.csv"}, **BASE["data"]}, {}),
    ("data", {"encoding": "", **BASE["data"]}, {}),
    ("data", {"encoding": "hex", **BASE["data"]}, {}),
    ("data", {"format": "parquet", **BASE["data"]}, {}),
    ("data", {"format": "jsonl", **BASE["data"]}, {}),
    ("data", {"where": {"colour": "red"}, **BASE["data"]}, {}),
    ("data", {"limit_train": 0, **BASE["data"]}, {}),
    ("data", {"name": "a" * 300, **BASE["data"]}, {}),
    ("data", {"name": "", **BASE["data"]}, {}),
    # files and hubs
    ("data.train", {"path": ""}, {}),
    ("data.train", {"path": "."}, {}),
    ("data.train", {"path": "weights"}, {}),
    ("data.train", {"path": "nowhere.csv"}, {}),
    ("data.train", {"path": "x" * 5000}, {}),
    ("data.train", {"path": "~nobody-of-this-name/train.csv"}, {}),
    ("data.train", {"path": "/dev/null"}, {}),
    ("data.train", {"path": "train.csv/inside"}, {}),
    ("data.train", {"path": "[train.csv"}, {}),
    ("data.train", {"package": ""}, {}),
    ("data.train", {"package": "os"}, {}),
    ("data.train", {"hub": "owner/name", "revision": "main"}, {}),
    ("data.train", {"hub": "owner/name", "revision": "v1.0"}, {}),
    ("data.train", {"hub": "owner/name", "revision": ""}, {}),
    ("data.train", {"hub": "https://huggingface.co/owner/name", "revision": "a" * 40}, {}),
    ("data.train", {"path": "train.csv", "revision": "a" * 40}, {}),
    ("data.train", {"path": "train.csv", "hub_type": "dataset"}, {}),
    ("data.train", {"path": "train.csv", "sha256": {"train.csv": "abc"}}, {}),
    ("data.train", {"path": "train.csv", "sha256": {"test.csv": "a" * 64}}, {}),
    ("data.train", {"path": "binary.csv"}, {}),
    ("data.train", {"path": "broken.jsonl"}, {}),
    ("data.tokenizer", {"path": "weights"}, {}),
    ("data.tokenizer", {"path": "bad_tokenizer"}, {}),
    ("model.source", {"path": "tokenizer"}, {}),
    ("model.initial_weights", {"source": {"path": "weights"}, "part": ""}, {}),
    # where and how it runs, what is shown
    ("tracking.uri", "file:./mlruns", {}),
    ("tracking.uri", "./mlruns", {}),
    ("tracking.uri", "mlflow.example.com", {}),
    ("tracking.uri", "", {}),
    ("tracking.uri", "sqlite:////tmp/what?/mlflow.db", {}),
    ("compute.partition", "", {}),
    ("compute.launch_command", "", {"compute": {"launcher": "env"}}),
    ("select.metric", "", {}),
    ("select.mode", "higher", {}),
    ("train.freeze", "bert.*", {}),
    ("train.freeze", [""], {}),
    ("train.groups", [{"match": ""}], {}),
    ("train.groups", [{"mach": "a"}], {}),
    ("train.groups", [{}], {}),
    ("train.groups", {"match": "a"}, {}),
    # runs, sweeps, data sets
    ("runs", {"a": {"tracking.uri": "http://a:1"}, "b": {"tracking.uri": "http://b:1"}}, {}),
    ("runs", {"a": {"tracking.on_end": "true"}, "b": {}}, {}),
    ("runs", {"a": {"train.steps": 3, "train.epochs": 1}}, {}),
    ("runs", {"a": {"": 1}}, {}),
    ("runs", {"a": {".": 1}}, {}),
    ("runs", {"a": {"train.": 1}}, {}),
    ("runs", {"a": {"train..seed": 1}}, {}),
    ("runs", {"a": {"train.seed.deep": 1}}, {}),
    ("runs", {"a": {"train": 3}}, {}),
    ("runs", {"a": [1]}, {}),
    ("runs", {None: {}}, {}),
    ("runs", "all", {}),
    ("runs", {"x" * 300: {}}, {}),
    ("sweeps", {"s": {"train.seed": [1, 1]}}, {}),
    ("sweeps", {"s": {"train.seed": "1, 2"}}, {}),
    ("sweeps", {"s": {"seed": [1, 2]}}, {}),
    ("sweeps", {"s": {"train.seed": [[1], [2]]}}, {}),
    ("sweeps", {"s": {f"train.{name}": list(range(1, 101)) for name in ("seed", "batch_size", "accumulate")}}, {}),
    ("sweeps", {"s": {}}, {}),
    ("sweeps", {"s": None}, {}),
    ("sweeps", [{"train.seed": [1]}], {}),
    ("datasets", {"a": {"trian": {}}}, {}),
    ("datasets", {"a b": BASE["data"]}, {}),
    ("train", [], {}),
    ("data", [], {}),
    (7, {}, {}),
    ("train.seed", 10**400, {}),
]


def put(config: Any, path: tuple, value: Any) -> Any:
    """A copy with the value at a place, whose sections are made where there are none."""
    if not path:
        return value
    key, *rest = path
    if isinstance(config, list):
        return [put(each, tuple(rest), value) if number == key else each for number, each in enumerate(config)]
    config = config if isinstance(config, dict) else {}
    return config | {key: put(config.get(key), tuple(rest), value)}


def leaves(section: type[Section], path: tuple = ()) -> Iterator[tuple[tuple, str, Any, list]]:
    """Every setting: path, name, type and limits; of lists and mappings the first element."""
    for name, field in section.model_fields.items():
        kind, limits = plain(field.annotation, field.metadata)
        null = [] if field.annotation is kind or type(None) not in get_args(field.annotation) else [NULL]
        yield (*path, name), name, kind, [*limits, *null]
        inner = get_args(kind)[-1] if get_origin(kind) in (list, dict) else None
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from leaves(kind, (*path, name))
        elif isinstance(inner, type) and issubclass(inner, Section):
            yield from leaves(inner, (*path, name, 0 if get_origin(kind) is list else "some"))


def plain(annotation: Any, limits: list) -> tuple[Any, list]:
    """A type without `None` and without what is annotated."""
    if hasattr(annotation, "__metadata__"):
        inner = [limit for given in annotation.__metadata__ for limit in getattr(given, "metadata", [given])]
        return plain(get_args(annotation)[0], [*limits, *inner])
    if get_origin(annotation) in (Union, types.UnionType):
        return plain(next(each for each in get_args(annotation) if each is not type(None)), limits)
    return annotation, limits


def invalid_values(kind: Any, limits: list) -> Iterator[tuple[str, Any]]:
    """Values that are wrong for any setting of the type."""
    if NULL not in limits and kind is not Any and not (isinstance(kind, type) and issubclass(kind, Section) and kind is not Use):
        yield "null", None
    if any(getattr(limit, "min_length", None) for limit in limits):
        yield "empty", {str: "", list: [], dict: {}}[get_origin(kind) or kind]
    if kind is Use:
        yield from (("an unknown name", "no_such_name"), ("an unknown file", "no_such.py:Name"), ("nothing", {"use": ""}))
    if kind in (int, float):
        yield from (("a text", "some"), ("a list", [1, 2]), ("names", {"a": 1}), ("a switch", True), ("not a number", float("nan")))
        yield from (("infinite", float("inf")), ("huge", 10**30), ("negative", -1), ("a NUL byte", "1\0"), ("text of exponent", "1e400"))
        for limit in limits:
            for sign, beyond in (("gt", 0), ("ge", -1), ("lt", 0), ("le", 1)):
                if getattr(limit, sign, None) is not None:
                    yield f"beyond {sign}", getattr(limit, sign) + beyond
    elif kind is str:
        yield from (("a list", ["a"]), ("names", {"a": "b"}), ("a switch", True))
    elif kind is bool:
        yield from (("a text", "perhaps"), ("a number", 7), ("a list", [True]), ("names", {"a": True}))
    elif get_origin(kind) is Literal:
        yield from (
            ("another choice", "nonsense"),
            ("a list", [get_args(kind)[0]]),
            ("upper case", get_args(kind)[0].upper() + "X"),
            ("empty", ""),
        )
    elif get_origin(kind) is list:
        yield from (("a number", 3), ("names", {"a": 1}), ("a list in it", [[["a"]]]))
    elif get_origin(kind) is dict:
        yield from (("a list", ["a"]), ("a number", 3), ("a text", "a"))
    elif isinstance(kind, type) and issubclass(kind, Section):
        yield from (("a number", 3), ("a list", ["a"]), ("an unknown setting", {"pth": "x"}), ("a switch", False))


def of_the_schema() -> Iterator[tuple[str, str, dict]]:
    for path, name, kind, limits in leaves(Settings):
        base = prepared(path)
        where = ".".join(map(str, path))
        wrong = (each for each in invalid_values(kind, limits) if len(path) > 1 or each[0] != "null")  # a section without a setting is none
        yield from ((where, what, put(base, path, value)) for what, value in wrong)
        if len(name) > 3:
            yield f"{where[: -len(name)]}{name[:2] + name[3:]}", "misspelt", put(base, (*path[:-1], name[:2] + name[3:]), 1)
            yield f"{where[: -len(name)]}{name.upper()}", "upper case", put(base, (*path[:-1], name.upper()), 1)
    for path, _, kind, limits in leaves(ModuleSettings):
        arguments = ("train", "task", "arguments")
        where = ".".join(map(str, (*arguments, *path)))
        base = put(OF_MODULE, (*arguments, "regularisers"), [{"use": "mine.py:error"}])
        if "some" in path:
            base = put(base, (*arguments, "predictions"), ["output", "some"])
            base = put(base, (*arguments, *path[:2]), {"use": "torch.nn.MSELoss" if path[0] == "losses" else "mine.py:error"})
        yield from ((where, what, put(base, (*arguments, *path), value)) for what, value in invalid_values(kind, limits))


def in_runs() -> Iterator[tuple[str, str, dict]]:
    """The first wrong value of each setting as that of a run, with dots, and of a sweep."""
    for path, _, kind, limits in leaves(Settings):
        wrong = next(invalid_values(kind, limits), None)
        if wrong is None or 0 in path or "some" in path or len(path) < 2:
            continue
        where, (what, value) = ".".join(path), wrong
        base = prepared(path)
        yield where, f"{what}, in a run", base | {"runs": {"right": {}, "wrong": {where: value}}}
        if not isinstance(value, dict):
            yield where, f"{what}, in a sweep", base | {"sweeps": {"s": {where: [value, value]}}}


EXTRAS: dict[str, dict] = {
    "adapters": {"model.adapters": {"rank": 2}},
    "initial weights": {"model.initial_weights": {"source": {"path": "weights"}}},
    "packing": {"train.packing": True},
    "blocks": {"train.block_length": 16},
    "batches of tokens": {"train.batch_tokens": 100},
    "compile": {"train.compile": True},
    "fp8": {"train.precision": "fp8"},
    "recomputing": {"train.recompute_activations": True},
    "frozen": {"train.freeze": ["bert.embeddings.*"]},
    "groups": {"train.groups": [{"match": "classifier.*", "optimizer": "torch.optim.Muon"}]},
    "plateau": {"train.schedule": "torch.optim.lr_scheduler.ReduceLROnPlateau"},
    "early stopping": {"train.early_stopping": {"patience": 2}},
    "no training": {"train.steps": 0},
    "mesh": {"train.strategy": {"use": "mesh", "arguments": {"tensor": -1}}, "compute.processes": 4},
    "pipeline": {"train.strategy": {"use": "mesh", "arguments": {"pipeline": -1}}, "compute.processes": 2},
    "zero1": {"train.strategy": "zero1", "compute.processes": 2},
    "fsdp": {"train.strategy": "fsdp", "compute.processes": 2},
    "elastic": {"compute.nodes": "1-2", "compute.threads": 1},
    "target": {"data.target": "label", "data.label": None, "train.task": "seq2seq"},
    "messages": {"data.messages": "text", "data.label": None, "train.task": "causal_lm"},
    "generating": {"evaluate.generate": {}},
    "pairs": {"data.text": ["text", "label"], "data.label": None},
    "numbers": {"data.label_kind": "number", "select.metric": "mae"},
    "several labels": {"data.label_kind": "classes"},
    "shards": {"data.shards": 4, "data.labels": {"0": "no", "1": "yes"}},
    "dataset class": {"data.train": {"use": "mine.py:Images", "arguments": {"count": 3}}, "data.tokenizer": None},
    "a test set": {"data.test": {"path": "test.csv"}},
    "more sets": {"evaluation_sets": {"some": {"path": "test.csv"}}},
    "search": {"sweeps": {"s": {"train.seed": [1, 2, 3]}}, "search": {"s": {}}},
    "sampling": {"search": {"s": {"space": {"train.learning_rate": {"low": 1e-5, "high": 1e-3}}}}},
    "verdicts": {"runs": {"a": {}, "b": {"train.epochs": 2}}, "verdicts": {"v": {"runs": ["a", "b"], "looks": [2]}}},
    "average of checkpoints": {"select.average": 2},
}


def crossed() -> Iterator[tuple[str, dict]]:
    there = [name for name, given in EXTRAS.items() if all(place.partition(".")[0] in TOP_LEVEL for place in given)]
    for one, other in itertools.combinations(there, 2):
        config: dict = BASE
        for place, value in (EXTRAS[one] | EXTRAS[other]).items():
            config = put(config, tuple(place.split(".")), value)
        yield f"{one} and {other}", config


OF_GROUPS = {"optimizer": "torch.optim.SGD", "schedule": "cosine"}


def prepared(path: tuple) -> dict:
    """A right configuration in which the section of the setting is given."""
    base = BASE
    if path[:2] == ("train", "mixture"):
        phases = [{"until": 3, "sets": {"train": 1}}, {"sets": {"train": 1}}]
        base = put(put(base, ("train", "steps"), 9), path[:2], {"phases": phases})
    elif 0 in path:
        group = {"match": "classifier.*"} | {name: {"use": use} for name, use in OF_GROUPS.items() if name in path[:-1]}
        base = put(base, path[: path.index(0)], ["mine.py:Watch"] if path[:2] == ("train", "callbacks") else [group])
    if "some" in path:
        named = {"metrics": {"use": "recall"}}  # others are files, also in sections of extras
        start = path[: path.index("some") + 1]
        base = put(base, start, named.get(start[-2], {"path": "test.csv"}))
        if start[-2] == "train_sets":
            base = put(put(base, ("train", "steps"), 9), ("train", "mixture"), {"sets": {"train": 1, "some": 1}})
    if path[:2] in (("data", "dev"), ("data", "test")) and len(path) > 2:
        base = put(base, path[:2], {"path": f"{path[1]}.csv"})
    if path[:2] == ("model", "source") and len(path) > 2:
        base = put(put(base, path[:2], {"path": "weights"}), ("model", "arguments"), {})
    if path[:2] == ("model", "initial_weights") and len(path) > 2:
        base = put(base, path[:2], {"source": {"path": "weights"}})
    if path[:2] == ("shared_steps", "cache") and len(path) > 2:
        base = put(base, path[:2], {"at": ".", "members": "members", "key": None})
    if "generate" in path[:-1]:
        writes = {("data", "label"): None, ("data", "target"): "label", ("train", "task"): "seq2seq", ("model", "arguments"): {}}
        for place, value in (writes | {("model", "use"): "transformers.T5ForConditionalGeneration"}).items():
            base = put(base, place, value)
    return base


@pytest.mark.slow
@pytest.mark.parametrize("battery", [of_the_schema, in_runs])
def test_hardly_any_invalid_value_of_any_setting_is_accepted(folder, battery):
    """Of those of the schema every third, unless WHOLE_BATTERY is set: all of them take ten minutes."""
    every = 1 if "WHOLE_BATTERY" in os.environ or battery is in_runs else 3
    configurations = [each for number, each in enumerate(battery()) if number % every == 0 or f"{each[0]}: {each[1]}" in ACCEPTED]
    accepted, failed, slowest = tried(configurations)
    print(
        f"{len(configurations)} configurations, {len(accepted)} accepted, {len(failed)} with another error than the refusal of that setting"
    )
    assert failed == []
    assert len(configurations) > {of_the_schema: 600, in_runs: 200}[battery]
    assert set(accepted) == {of_the_schema: ACCEPTED, in_runs: set()}[battery]
    assert slowest < 2 * slowness()


def test_every_pair_of_extras_is_accepted_or_refused_at_a_setting_of_theirs(folder):
    """Which pairs are right is not known here: that none ends in another error is."""
    raised = []
    for what, config in crossed():
        try:
            examine(config)
        except ConfigurationError as error:
            raised += [f"{what}: {problem}" for problem in error.problems if not PLACE.match(problem)]
        except Exception as error:
            raised.append(f"{what}: {type(error).__name__}: {error}")
    assert raised == []


@pytest.mark.slow
def test_no_error_in_what_names_code_is_accepted(folder, by_effect):
    accepted, failed, _ = tried(by_hand(OF_CODE))
    assert (accepted, failed) == ([], [])


def test_no_error_written_by_hand_is_accepted(folder):
    accepted, failed, slowest = tried(by_hand(BY_HAND))
    assert (accepted, failed) == ([], [])
    assert slowest < 2 * slowness()


def by_hand(errors: list[tuple[str, Any, dict]]) -> list[tuple[str, str, dict]]:
    battery = []
    for where, value, beside in errors:
        path = tuple(where.split(".")) if isinstance(where, str) else (where,)
        section = {"runs": "run", "sweeps": "sweeps"}.get(where, str(path[0]))
        battery.append((section, f"{where} {str(value)[:60]}", put(BASE | beside, path, value)))
    return battery


def tried(battery: list[tuple[str, str, dict]]) -> tuple[list[str], list[str], float]:
    """Accepted values, errors without a one-line message that names the path, and the longest CPU time."""
    accepted, failed, slowest = [], [], 0.0
    for where, what, config in battery:
        started = time.process_time()
        try:
            examine(config)
            accepted.append(f"{where}: {what}")
        except ConfigurationError as error:
            if not any(where in problem for problem in error.problems):
                failed.append(f"{where}: {what}: not reported: {error.problems}")
            if not all(problem.isprintable() and len(problem) < 1000 for problem in error.problems):
                failed.append(f"{where}: {what}: reported in more than a line: {error.problems}")
        except Exception as error:
            failed.append(f"{where}: {what}: {type(error).__name__}: {error}")
        slowest = max(slowest, time.process_time() - started)
    return accepted, failed, slowest


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_tokenizer):
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"film {i},{i % 2}\n" for i in range(ROWS)))
    for split in ("dev", "test"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "".join(f"movie {i},{i % 2}\n" for i in range(ROWS)))
    (tmp_path / "members").write_text("alice ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "weights/model.safetensors").write_bytes(b"")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "broken.jsonl").write_text('{"text": "a", "label": 1}\n{"text": ')
    (tmp_path / "bad_tokenizer").mkdir()
    (tmp_path / "bad_tokenizer/tokenizer.json").write_text("<html>404</html>")
    (tmp_path / "tokenizer").symlink_to(tiny_tokenizer)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_base_configuration_is_valid(folder):
    for path in {path[:-1]: path for path, *_ in leaves(Settings)}.values():
        assert list(examine(prepared(path))) == ["default"]
    assert list(examine(OF_MODULE)) == ["default"]
