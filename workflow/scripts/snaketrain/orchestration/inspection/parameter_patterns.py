"""Holds `train.freeze` and `train.groups` against the names of the model's parameters, before any job starts.

Only runs that have patterns pay for it: a process that imports torch and builds the model without memory, once for each model.
"""

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from snaketrain.config.errors import near
from snaketrain.config.references import NotFound, find
from snaketrain.config.schema import Settings
from snaketrain.data.sources.fetching import model_config, named_files
from snaketrain.orchestration.code_digest import SCRIPTS, code_strings
from snaketrain.runtime.manifests import digest, write_text

TASKS = ("text_classification", "causal_lm", "module")  # whose modules are the model that the settings name, and nothing else
STORE = Path(".snakemake/snaketrain-parameters.json")
TIMEOUT_SECONDS = 120
SHOWN = 6


def unmatched(runs: Iterable[Settings]) -> Iterator[list[str]]:
    """For each run, the patterns that match no parameter; where the names cannot be told, the training tells them."""
    runs = list(runs)
    requests = [_request(run) for run in runs]
    names = _names([request for request in requests if request])
    for run, request in zip(runs, requests, strict=True):
        known = names.get(digest(request)) if request else None
        yield list(_wrong(run, known)) if known else []


def _wrong(run: Settings, names: list[str]) -> Iterator[str]:
    shown = ", ".join(names if len(names) <= SHOWN else [*names[: SHOWN // 2], "...", *names[-SHOWN // 2 :]])
    patterns = [(f"train.freeze.{n}", pattern) for n, pattern in enumerate(run.train.freeze)]
    patterns += [(f"train.groups.{n}.match", group.match) for n, group in enumerate(run.train.groups)]
    for setting, pattern in patterns:
        if not any(_matches(pattern, name) for name in names):
            nearest = f"Did you mean '{found[0]}'? " if (found := near(pattern, names)) else ""
            yield f"{setting}: no parameter matches '{pattern}'. {nearest}There are {len(names)}: {shown}."
    if run.train.freeze and all(any(_matches(pattern, name) for pattern in run.train.freeze) for name in names):
        yield "train.freeze: nothing of the model is left to train. Freeze less."


def _matches(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f"model.{name}", pattern)


def _request(run: Settings) -> dict[str, Any] | None:
    """What decides the names; None where there are no patterns, or where the names are known to the training alone."""
    train, model = run.train, run.model
    if not (train.freeze or train.groups) or train.task.use not in TASKS or (model.source and model.source.hub):
        return None
    try:
        file, _ = find(model.use)
        code = code_strings(file) if file else []
        described = model_config(named_files(model.source)) if model.source else None
        folder = str(described.parent) if described else None
        said = described.read_text(encoding="utf-8") if described else ""
    except (NotFound, ValueError, OSError, SyntaxError):  # told where names and files are looked at
        return None
    if model.source and folder is None:
        return None
    return {"use": model.use, "arguments": model.arguments, "folder": folder, "code": code, "said": said}


def _names(requests: list[dict[str, Any]]) -> dict[str, list[str] | None]:
    """The parameters' names by the digest of the request, from the last time or from another process."""
    version = importlib.metadata.version("transformers") + importlib.metadata.version("torch")
    try:
        kept = json.loads(STORE.read_text(encoding="utf-8"))
        kept = kept["names"] if kept["version"] == version else {}
    except (OSError, ValueError, LookupError, TypeError):
        kept = {}
    missing = {digest(request): request for request in requests if digest(request) not in kept}
    if missing:
        asked = [{name: request[name] for name in ("use", "arguments", "folder")} for request in missing.values()]
        kept |= {key: names for key, names in zip(missing, _asked(asked), strict=True) if names}
        with contextlib.suppress(OSError):  # a folder that one may only read
            STORE.parent.mkdir(exist_ok=True)
            write_text(STORE, json.dumps({"version": version, "names": kept}))
    return kept


def _asked(requests: list[dict[str, Any]]) -> list[list[str] | None]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS)}
    command = [sys.executable, "-m", "snaketrain.models.naming"]
    try:
        done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return [None] * len(requests)
