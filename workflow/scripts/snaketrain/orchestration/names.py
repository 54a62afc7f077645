"""The names of jobs and folders: of data and models readable, and with a digest that differs if any setting does."""

import re
from pathlib import Path

from snaketrain.config.schema import Data, Settings, Source
from snaketrain.runtime.manifests import digest
from snaketrain.runtime.secret_forms import without_secrets

RESULTS = "results"


def run_of(name: str) -> str:
    """The run of a job's name, `run` or `run/evaluation set`."""
    return name.partition("/")[0]


def data_name(data: Data) -> str:
    return f"{data.name}-{digest(data.for_training.as_json)[:8]}"


def set_name(name: str, reading: Data, data: Data) -> str:
    """Of an evaluation set, which is prepared by what is known of the training data."""
    return f"{name}-{digest(data_name(data), reading.as_json)[:8]}"


def source_name(source: Source) -> str:
    """The name of its folder, its log and its jobs."""
    readable = (source.hub or source.package or Path(str(source.path)).name).rpartition("/")[2]
    return f"{plain_name(without_secrets(readable))}-{digest(source.as_json)[:8]}"


def plain_name(text: str) -> str:
    """The part of a text that is safe in paths, shells and job names; a digest beside it distinguishes texts that look the same here."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("*", "all")).strip(".-")[:40] or "files"


def initial(run: Settings) -> Source | None:
    return run.model.initial_weights.source if run.model.initial_weights else None
