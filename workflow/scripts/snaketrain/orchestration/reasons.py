"""Why Snakemake runs a stage again, kept beside the run for whoever looks at it later."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import write_json


def note_reasons(jobs: Iterable[Any], reason_of: Callable[[Any], Any], results: Path) -> None:
    """Of all jobs of a workflow that begins: `runs/<run>/reasons.json`, in which each stage has its latest one."""
    by_run: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if run := dict(job.wildcards.items()).get("run"):
            by_run.setdefault(run, {})[job.rule.name] = {"reason": str(reason_of(job)), "time": time.time()}
    for run, reasons in by_run.items():
        path = results / "runs" / run / "reasons.json"
        write_json(path, read_reasons(path) | hidden_in(reasons))


def read_reasons(path: Path) -> JsonObject:
    try:
        reasons: JsonObject = json.loads(path.read_text(encoding="utf-8"))
        return reasons
    except (OSError, ValueError):
        return {}
