"""The operations on MLflow that the follower needs, each safe to repeat."""

import contextlib
import json
import logging
import os
import shlex
import uuid
from collections.abc import Callable
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModel, Metric, Param, Run, RunTag, ViewType
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH as DEFAULT_PLACE
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS as LOGGED_ARTIFACTS

from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.ownership import Lease
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tracking import tracked
from snaketrain.tracking.database import ARTIFACTS, SQLITE, find_artifacts, location
from snaketrain.tracking.tracked import LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG, Point, allowed, cut, five_digits, folder_name, milliseconds
from snaketrain.tracking.views import short_name

PARAMS_AT_ONCE, METRICS_AT_ONCE, RUNS_AT_ONCE = 100, 1000, 1000
RUN_KEY, PARENT, NOTE = "pipeline.run_key", "mlflow.parentRunId", "mlflow.note.content"
TEXTS = (".json", ".csv", ".txt", ".diff", ".html", ".py", ".log", ".jsonl")  # may contain a password
LONGEST_TEXT_BYTES = 20_000_000
TAIL_BYTES = 100_000


class ExperimentDeleted(Exception):
    """MLflow only marks an experiment as deleted: until it is garbage-collected, it cannot be written to and its name is taken."""

    def __init__(self, name: str, experiment_id: str, uri: str):
        super().__init__(f"MLflow at {uri}: its experiment {name!r} was deleted, so its runs are not recorded")
        restore = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow experiments restore --experiment-id {experiment_id}"
        self.advice = f"Restore it ({restore}), or give another name in tracking.experiment"


class Store:
    def __init__(self, uri: str, check: Callable[[], None] = lambda: None, artifacts: Path | None = None):
        """`check` raises where nothing may be written any more; `artifacts`: the folder of those of a database (default: beside it)."""
        for name in ("mlflow", "alembic"):  # they log every table they create; errors reach us as exceptions
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.uri, self.check = uri, check
        self.database = Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None
        self.artifacts = artifacts or (self.database and self.database.parent / ARTIFACTS)
        mlflow.set_tracking_uri(uri)  # functions of the module `mlflow` use it as well
        # one process at a time: MLflow creates the tables when a database is first opened, and two processes at once would break it
        with Lease(Path(f"{self.database}.lease")).held() if self.database else contextlib.nullcontext():
            if self.database:
                create(self.database)
            self._client = MlflowClient(uri)
            self._client.search_experiments(max_results=1)
            if self.database and self.artifacts:
                find_artifacts(self.database, self.artifacts)
        self._experiments: dict[str, str] = {}
        self._runs: dict[str, str | None] = {}  # by key
        self._looked_up: set[tuple[str, str]] = set()
        self.as_found: dict[str, dict[str, str]] = {}  # the tags of runs when they were looked up, by id

    @property
    def client(self) -> MlflowClient:
        """Checked at each use, since a process may be suspended between any two."""
        self.check()
        return self._client

    def forget(self) -> None:
        """Look up all ids again: what they refer to may have been deleted, or a database restored."""
        self._experiments.clear()
        self._runs.clear()
        self._looked_up.clear()
        self.as_found.clear()

    def experiment(self, name: str) -> str:
        name = hidden(name)
        if name not in self._experiments:
            found = self.client.get_experiment_by_name(name)
            if found and found.lifecycle_stage == "deleted":
                raise ExperimentDeleted(name, found.experiment_id, self.uri)
            # MLflow would put the artifacts of a database below the current folder
            place = location(self.artifacts / folder_name(name)) if self.artifacts else None
            about = {NOTE: "Kept up to date by snaketrain, from the files of the runs."}
            self._experiments[name] = found.experiment_id if found else self.client.create_experiment(name, place, about)
        return self._experiments[name]

    def run(self, experiment: str, key: str, name: str, started: float, tags: dict[str, str]) -> str | None:
        """The id of the run with this key, created if there is none; None if a user has deleted it, which is respected."""
        key, where = key[:LONGEST_TAG], self.experiment(experiment)
        self._look_up(where, key)
        if key not in self._runs:
            tags = {k: cut(v, LONGEST_TAG) for k, v in tags.items()} | {RUN_KEY: key}
            self._runs[key] = self.client.create_run(where, milliseconds(started), tags, hidden(name)).info.run_id
        return self._runs[key]

    def _look_up(self, where: str, key: str) -> None:
        """This run and all like it at once: a search for each of hundreds takes most of a follower's start."""
        like, token = ":".join([*key.split(":")[:2], "%"]), None
        if (where, like) in self._looked_up:
            return
        condition, order = f"tags.`{RUN_KEY}` LIKE '{like}'", ["attributes.start_time ASC"]
        while token != "":
            found = self.client.search_runs([where], condition, ViewType.ALL, RUNS_AT_ONCE, order, token)
            for run in found:
                known = self._runs.setdefault(run.data.tags[RUN_KEY], None)
                if known is None and run.info.lifecycle_stage == "active":
                    self._runs[run.data.tags[RUN_KEY]] = run.info.run_id
                    self.as_found[run.info.run_id] = run.data.tags
            token = found.token or ""
        self._looked_up.add((where, like))

    def get(self, run_id: str) -> Run:
        return self.client.get_run(run_id)

    def params(self, run_id: str, params: dict[str, str]) -> None:
        """Log the params that MLflow does not have yet: it refuses to change one."""
        known = self.get(run_id).data.params
        new = [Param(k[:LONGEST_KEY], cut(v, LONGEST_PARAM)) for k, v in params.items() if k[:LONGEST_KEY] not in known]
        for start in range(0, len(new), PARAMS_AT_ONCE):
            self.client.log_batch(run_id, params=new[start : start + PARAMS_AT_ONCE])

    def had_tags(self, run_id: str, tags: dict[str, str]) -> bool:
        """When it was looked up."""
        return cut_tags(tags).items() <= self.as_found.get(run_id, {}).items()

    def tags(self, run_id: str, tags: dict[str, str]) -> None:
        self.client.log_batch(run_id, tags=[RunTag(*tag) for tag in cut_tags(tags).items()])

    def points(self, run_id: str, points: list[Point], of_model: tuple[str, str, str] | tuple[()] = ()) -> None:
        """Points are (name, value, time, step); MLflow stores identical ones once. `of_model`: its id, and name and digest of the data."""
        metrics = [
            Metric(allowed(name), five_digits(name, value), milliseconds(time), step, *of_model) for name, value, time, step in points
        ]
        for start in range(0, len(metrics), METRICS_AT_ONCE):
            self.client.log_batch(run_id, metrics=metrics[start : start + METRICS_AT_ONCE])

    def model(self, experiment: str, run_id: str, name: str, params: dict[str, str], tags: dict[str, str]) -> LoggedModel:
        """A run's model, created if there is none with these tags; its status becomes ready when its files are uploaded."""
        where = self.experiment(experiment)
        tags, params = ({k: cut(v, LONGEST_PARAM) for k, v in each.items()} for each in (tags, params))
        found = self.client.search_logged_models([where], f"source_run_id = '{run_id}' AND name = '{name}'")
        same = [each for each in found if tags.items() <= each.tags.items()]
        return same[0] if same else self.client.create_logged_model(where, name, run_id, tags, params)

    def status(self, run_id: str, status: str, time: float) -> None:
        if status != "RUNNING":
            self.client.set_terminated(run_id, status, milliseconds(time))
        elif self.get(run_id).info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")

    def dataset(self, run_id: str, name: str, digest: str, source: str, profile: str) -> None:
        entity = Dataset(hidden(name), digest, "local", hidden(source), profile=hidden(profile))
        self.client.log_inputs(run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", "training")])])

    def artifact(self, run_id: str, file: Path, folder: str | None = None) -> None:
        if not file.is_file() or file.name.startswith("."):  # our own state beside the results
            return
        if file.suffix in TEXTS and file.stat().st_size < LONGEST_TEXT_BYTES:
            text = file.read_text(encoding="utf-8", errors="replace")
            if (clean := hidden(text)) != text:
                return self.client.log_text(run_id, clean, f"{folder}/{file.name}" if folder else file.name)
        self.client.log_artifact(run_id, str(file), folder)

    def table(self, run_id: str, content: JsonObject, file: str) -> None:
        """An artifact that MLflow's pages show as a table."""
        self.client.log_text(run_id, hidden(strict_json.dumps(content, ensure_ascii=False)), file)
        tables = json.loads(self.get(run_id).data.tags.get(LOGGED_ARTIFACTS, "[]"))
        if (entry := {"path": file, "type": "table"}) not in tables:
            self.tags(run_id, {LOGGED_ARTIFACTS: json.dumps([*tables, entry])})

    def tail(self, run_id: str, file: Path, folder: str) -> None:
        with open(file, "rb") as log:
            log.seek(max(0, file.stat().st_size - TAIL_BYTES))
            text = log.read().decode(errors="replace")
        self.client.log_text(run_id, hidden(text), f"{folder}/{file.name}")


def cut_tags(tags: dict[str, str]) -> dict[str, str]:
    """As MLflow keeps them."""
    return {k[:LONGEST_KEY]: cut(v, LONGEST_TAG) for k, v in tags.items()}


def create(database: Path) -> None:
    """Create the tables in another file, then rename it: MLflow cannot open a database whose creation was interrupted."""
    if database.exists():
        return
    beside = database.with_name(f".{database.name}.new")
    beside.unlink(missing_ok=True)  # of a process that was killed
    place = Path(DEFAULT_PLACE).absolute().as_uri()  # contains no quotes: MLflow pastes it into an SQL statement
    SqlAlchemyStore(f"{SQLITE}{beside}", place).engine.dispose()  # type: ignore[no-untyped-call]  # MLflow's
    os.replace(beside, database)


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


def training_run(results: Path, run: JsonObject, store: Store) -> str | None:
    """The id of a training's run in MLflow, created if there is none; None if a user has deleted it."""
    key = run_key(results, "train", run["identity"], run["run"])
    return store.run(tracked.experiment_of(run), key, short_name(run["run"]), run["started"], {})
