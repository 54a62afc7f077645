"""Checks `train.freeze`, `train.groups` and `model.adapters` against the names of the model's parameters, before any job starts.

Only runs with these pay for it: a process imports torch and builds the model on the meta device, once for each model.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypedDict

from snaketrain.config.errors import near, nearest, shown
from snaketrain.config.references import NotFound, find
from snaketrain.config.schema import Settings
from snaketrain.config.schema.model import Adapters
from snaketrain.data.sources.fetching import model_config, named_files
from snaketrain.orchestration.code_digest import SCRIPTS, code_strings
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import digest, read_if_intact, write_checked

TASKS = ("text_classification", "causal_lm", "seq2seq", "module")  # those that train the model named in the settings and nothing else
STORE = Path(".snakemake/snaketrain-parameters.json")
TIMEOUT_SECONDS = 120
SHOWN = 6


class Request(TypedDict):
    """Everything that decides the names of a model's parameters."""

    use: str
    arguments: JsonObject
    folder: str | None
    code: list[str]
    config: str  # of pretrained weights, as text


Names = dict[str, list[str] | None]  # of parameters, by the digest of their request; None where the model could not be built


def pattern_errors(runs: Iterable[Settings]) -> Iterator[list[str]]:
    """For each run, the patterns that match no parameter; where the names cannot be known yet, the training reports them."""
    runs = list(runs)
    requests = [_request(run) for run in runs]
    names = _parameter_names([request for request in requests if request])
    for run, request in zip(runs, requests, strict=True):
        known = names.get(digest(request)) if request else None
        yield list(_errors(run, known)) if known else []


def _errors(run: Settings, names: list[str]) -> Iterator[str]:
    some = ", ".join(names if len(names) <= SHOWN else [*names[: SHOWN // 2], "...", *names[-SHOWN // 2 :]])
    patterns = [(f"train.freeze.{n}", pattern) for n, pattern in enumerate(run.train.freeze)]
    if run.model.adapters:
        yield from _adapter_errors(run.model.adapters, sorted({name.rpartition(".")[0] for name in names}))
    else:  # the names of adapters are known only in the training
        patterns += [(f"train.groups.{n}.match", group.match) for n, group in enumerate(run.train.groups)]
    for setting, pattern in patterns:
        if not any(_matches(pattern, name) for name in names):
            nearest = f"Did you mean '{found[0]}'? " if (found := near(pattern, names)) else ""
            yield f"{setting}: no parameter matches '{pattern}'. {nearest}There are {len(names)}: {some}."
    if run.train.freeze and all(any(_matches(pattern, name) for pattern in run.train.freeze) for name in names):
        yield "train.freeze: nothing of the model is left to train. Freeze less."


def _adapter_errors(adapters: Adapters, modules: list[str]) -> Iterator[str]:
    """Names that match none of the modules that have parameters, by peft's rules."""
    targets = adapters.target_modules
    if isinstance(targets, str) and targets != "all-linear" and not any(re.fullmatch(targets, name) for name in modules):
        yield f"model.adapters.target_modules: no module matches the regular expression {shown(targets)}."
    ends = {"target_modules": targets if isinstance(targets, list) else [], "modules_to_save": adapters.modules_to_save}
    inner = {".".join(parts[start:]) for name in modules for parts in [name.split(".")] for start in range(len(parts))}
    inner |= {name.rpartition(".")[0] for name in inner if "." in name}
    for setting, wanted in ends.items():
        for name in wanted:
            if name not in inner:
                yield f"model.adapters.{setting}: the model has no module '{name}'{nearest(name, sorted(inner))}"


def _matches(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f"model.{name}", pattern)


def _request(run: Settings) -> Request | None:
    """None where there are no patterns, or where only the training can know the names."""
    train, model = run.train, run.model
    if not (train.freeze or train.groups or model.adapters) or train.task.use not in TASKS or (model.source and model.source.is_remote):
        return None
    try:
        file, _ = find(model.use)
        code = code_strings(file) if file else []
        described = model_config(named_files(model.source)) if model.source else None
        folder = str(described.parent) if described else None
        config = described.read_text(encoding="utf-8") if described else ""
    except (NotFound, ValueError, OSError, SyntaxError):  # reported with the names and files
        return None
    if model.source and folder is None:
        return None
    return Request(use=model.use, arguments=model.arguments, folder=folder, code=code, config=config)


def _parameter_names(requests: list[Request]) -> Names:
    """From the last time, or from another process."""
    version = importlib.metadata.version("transformers") + importlib.metadata.version("torch")
    names = _stored(version)
    missing = {digest(request): request for request in requests if digest(request) not in names}
    if missing:
        names |= {key: found for key, found in zip(missing, _build_models(missing.values()), strict=True) if found}
        with contextlib.suppress(OSError):  # a read-only folder
            STORE.parent.mkdir(exist_ok=True)
            write_checked(STORE, {"version": version, "names": names})
    return names


def _stored(version: str) -> Names:
    stored = read_if_intact(STORE, "the models are built again")
    return dict(stored["names"]) if stored and stored["version"] == version else {}


def _build_models(requests: Iterable[Request]) -> list[list[str] | None]:
    """The names of each model's parameters; nothing where the process fails, since the training will say why."""
    asked = [{"use": request["use"], "arguments": request["arguments"], "folder": request["folder"]} for request in requests]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS)}
    command = [sys.executable, "-m", "snaketrain.models.naming"]
    try:
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment)
        found: list[list[str] | None] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return [None] * len(asked)
    return found
