"""Records why Snakemake reruns a stage, beside the run's results."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from snaketrain.orchestration.snakemake_objects import Job
from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.manifests import PRIVATE_FILE, read_if_intact, write_checked
from snaketrain.runtime.strict_json import JsonObject


def note_reasons(jobs: Iterable[Job], reason_of: Callable[[Job], object], results: Path) -> None:
    """Records the reason of every job when a workflow starts: `runs/<run>/reasons.json` has the latest one of each stage, and the sets to evaluate on."""
    by_run: dict[str, JsonObject] = {}
    for job in jobs:
        wildcards, stage = dict(job.wildcards.items()), job.rule.name
        if run := wildcards.get("run"):
            noted = by_run.setdefault(run, {})
            sets = [*noted.get(stage, {}).get("sets", ()), *filter(None, [wildcards.get("evaluation_set")])]
            noted[stage] = {"reason": str(reason_of(job)), "time": time.time()} | ({"sets": sets} if sets else {})
    for run, reasons in by_run.items():
        path = results / "runs" / run / "reasons.json"
        earlier = read_if_intact(path, "it is written again, without the reasons of earlier starts") or {}
        write_checked(path, earlier | hidden_in(reasons), mode=PRIVATE_FILE)
