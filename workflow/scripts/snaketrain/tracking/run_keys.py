"""The key that identifies a run in MLflow: its workspace, its name, and the identity of what was computed."""

import contextlib
import os
import sys
import uuid
from pathlib import Path

from mlflow.entities import Run

from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tracking import tracked
from snaketrain.tracking.mlflow_store import Store

WORKSPACE = ".workspace.json"


def workspace_id(results: Path) -> str:
    """A random id, kept with the results, so that it stays when they are moved or mounted elsewhere."""
    path = results / WORKSPACE
    if not path.exists():
        drawn = results / f"{WORKSPACE}.{os.getpid()}"
        write_checked(drawn, {"id": uuid.uuid4().hex[:16], "about": "identifies the runs of these results in MLflow"})
        with contextlib.suppress(FileExistsError):  # another process was faster; its id counts
            os.link(drawn, path)
        drawn.unlink()
    if not (found := tracked.read_json(path)) or "id" not in found:
        raise ValueError(
            f"{path}: was changed after it was written. Put a copy of it back, or delete it: then MLflow shows each run once more"
        )
    return str(found["id"])


def run_key(results: Path, stage: str, identity: str, run: str | None = None) -> str:
    return ":".join([stage, workspace_id(results), *([run] if run else []), identity])


def former_key(stage: str, identity: str) -> str:
    """The key of an earlier version, in which runs with equal settings shared one row."""
    return f"{stage}:{identity}"


def training_run(results: Path, run: JsonObject, store: Store) -> str | None:
    """The id of a training's run in MLflow, created if there is none; None if a user has deleted it."""
    key, experiment = run_key(results, "train", run["identity"], run["run"]), run.get("experiment") or "snaketrain"
    former: str | None = former_key("train", run["identity"])
    if not store.knows(key) and len(sharing := of_equal_identity(results, run)) > 1:
        if not store.with_key(experiment, key):
            warn_of_shared_row(store.with_key(experiment, former_key("train", run["identity"])), sharing)
        former = None
    return store.run(experiment, key, run["run"], run["started"], {}, former)


def warn_of_shared_row(runs: list[Run], sharing: list[str]) -> None:
    for run in (run for run in runs if run.info.lifecycle_stage == "active"):
        print(
            f"warning: MLflow's run {run.info.run_name!r} ({run.info.run_id}) holds what an earlier version recorded of "
            f"{', '.join(sharing)} together; each now has its own row. Delete the old run when you no longer need it.",
            file=sys.stderr,
            flush=True,
        )


def of_equal_identity(results: Path, run: JsonObject) -> list[str]:
    found = [tracked.read_json(path) or {} for path in sorted(results.glob("runs/*/training/run.json"))]
    return [each["run"] for each in found if each.get("identity") == run["identity"]]
