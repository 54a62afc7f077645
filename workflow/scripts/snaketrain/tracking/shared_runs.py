"""Runs in MLflow that belong to several trainings: the preparation of their data, and their comparison."""

from pathlib import Path

from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import Manifest, write_checked
from snaketrain.tracking import tracked
from snaketrain.tracking.mlflow_store import NOTE, ExperimentDeleted, Store
from snaketrain.tracking.run_keys import former_key, run_key


class SharedRuns:
    """They have experiments of their own, so that the rows of the trainings' experiment are all trainings."""

    def __init__(self, results: Path, store: Store):
        self.results, self.store = results, store
        self._data: dict[str, str | None] = {}
        self.deleted: ExperimentDeleted | None = None  # the experiment of the data

    def forget(self) -> None:
        self._data.clear()
        self.deleted = None

    def data(self, run: JsonObject, experiment: str) -> tuple[Manifest | None, str | None]:
        """The data that a training read, and the MLflow run of its preparation."""
        prepared = tracked.prepared(run, self.results)
        if prepared is None:
            return None, None
        if prepared.path not in self._data:
            points = tracked.data_points(prepared.facts, prepared.finished)
            tags = {"pipeline.stage": "prepare", "pipeline.data": prepared.content}
            try:
                self._data[prepared.path] = self._stage_run(prepared, experiment, prepared.folder.name, tags, points, ["report.json"])
            except ExperimentDeleted as error:  # trainings are recorded nevertheless
                self.deleted = error
                return prepared, None
        return prepared, self._data[prepared.path]

    def comparison(self) -> None:
        """The latest comparison, with its page."""
        made = tracked.manifest(self.results / "comparison/manifest.json")
        if made is None or not (names := made.facts.get("runs")):
            return
        if first := tracked.read_json(self.results / "runs" / names[0] / "training/run.json"):
            experiment = f"{first.get('experiment') or 'snaketrain'}-comparisons"
            tags = {"pipeline.stage": "compare", NOTE: made.facts.get("verdict", "")}
            points = [("runs", float(len(names)), made.finished, 0)]
            self._stage_run(made, experiment, f"{len(names)} runs", tags, points, list(made.files))

    def _stage_run(
        self, made: Manifest, experiment: str, name: str, tags: dict[str, str], points: list[tracked.Point], files: list[str]
    ) -> str | None:
        """The run of a stage; its content is sent once."""
        sent = tracked.read_json(made.folder / ".mlflow.json") or {}
        stage = tags["pipeline.stage"]
        key, former = run_key(self.results, stage, made.identity), former_key(stage, made.identity)
        run_id = self.store.run(experiment, key, name, made.started, tags, former)
        current = {"uri": self.store.uri, "run_id": run_id, "content": made.content}
        if run_id and sent != current:
            self.store.params(run_id, tracked.params(made.settings))
            self.store.points(run_id, points)
            for file in files:
                self.store.artifact(run_id, made.folder / file)
            self.store.status(run_id, "FINISHED", made.finished)
            self.store.check()
            write_checked(made.folder / ".mlflow.json", current)
        return run_id
