"""The results of selection and evaluation: on the training's run, and as a child run for each."""

import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from snaketrain.evaluation.comparing import standing
from snaketrain.runtime.manifests import Manifest, write_checked
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tracking import tracked
from snaketrain.tracking.mlflow_store import NOTE, PARENT, ExperimentDeleted, Store, run_key
from snaketrain.tracking.tracked import allowed

# --- What MLflow already knows about a run, kept beside it. If it is lost, everything is sent again.

STATE = ".mlflow.json"


@dataclass
class Sent:
    uri: str
    run_id: str
    offset: int = 0  # in the journal
    high_water: dict[str, int] = field(default_factory=dict)
    standing: JsonObject | None = None
    status: str | None = None
    done: dict[str, str] = field(default_factory=dict)  # by what is sent once: a digest of its content

    @classmethod
    def read(cls, training: Path, uri: str, run_id: str) -> "Sent":
        """Empty if the file is about another run or database, or was written by another version of this code."""
        try:
            sent = cls(**(tracked.read_json(training / STATE) or {}))
        except TypeError:
            return cls(uri, run_id)
        journal = training / "journal.jsonl"
        shrunk = sent.offset > (journal.stat().st_size if journal.is_file() else 0)
        foreign = (sent.uri, sent.run_id) != (uri, run_id)
        old = sent.standing is not None and sent.standing.keys() != standing([]).keys()
        return cls(uri, run_id) if shrunk or foreign or old else sent

    def write(self, training: Path) -> None:
        write_checked(training / STATE, asdict(self))


def has_ended(training: Path, sent: JsonObject) -> bool:
    """Whether the journal says so and was read to its end."""
    journal = training / "journal.jsonl"
    heard_all = journal.is_file() and journal.stat().st_size <= sent.get("offset", 0)
    return heard_all and (sent.get("standing") or {}).get("status", "RUNNING") != "RUNNING"


# --- Runs in MLflow that belong to several trainings: the preparation of their data, and their comparison.


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
        sent = tracked.read_json(made.folder / STATE) or {}
        stage = tags["pipeline.stage"]
        run_id = self.store.run(experiment, run_key(self.results, stage, made.identity), name, made.started, tags)
        current = {"uri": self.store.uri, "run_id": run_id, "content": made.content}
        if run_id and sent != current:
            self.store.params(run_id, tracked.params(made.settings))
            self.store.points(run_id, points)
            for file in files:
                self.store.artifact(run_id, made.folder / file)
            self.store.status(run_id, "FINISHED", made.finished)
            self.store.check()
            write_checked(made.folder / STATE, current)
        return run_id


SPLITS = ("dev", "test")
RESULT = re.compile(r"(?:dev|test(?:\.(?P<set>.+))?)/[^/]+")  # the name of a metric of the selected checkpoint
Files = list[tuple[Path, str]]  # and the folder of each among the artifacts


@dataclass(frozen=True)
class Evaluated:
    """The results of a run whose selection and evaluation belong to its present training."""

    selected: Manifest
    selection: JsonObject
    evaluated: Manifest | None
    sets: dict[str, Manifest]  # the evaluations on each of `evaluation_sets`
    predicted: Manifest | None = None  # unlabelled data

    @classmethod
    def read(cls, folder: Path) -> "Evaluated | None":
        trained, selected, *after = (
            tracked.manifest(folder / stage / "manifest.json") for stage in ("training", "selection", "evaluation", "predictions")
        )
        selection = tracked.result(selected, "selection.json") if selected else None
        if trained is None or selected is None or selection is None or not tracked.follows(selected, trained):
            return None
        found = {path.parent.name: tracked.manifest(path) for path in sorted(folder.glob("sets/*/manifest.json"))}
        sets = {name: made for name, made in found.items() if made and tracked.follows(made, selected)}
        evaluated, predicted = (made if made and tracked.follows(made, selected) else None for made in after)
        return cls(selected, selection, evaluated, sets, predicted)

    @property
    def value(self) -> float | None:
        """The selection metric of the selected checkpoint; for an average of checkpoints None before its evaluation."""
        found: float | None = self.selection["winner"].get("value")
        if self.selection.get("averaged"):
            dev = self.by_split(self.evaluated)["dev"] if self.evaluated else {}
            found = dev.get("metrics", {}).get(self.selection["metric"])
        return found

    def points(self) -> list[tracked.Point]:
        """The metrics of the selected checkpoint on all splits."""
        found = tracked.selected(self.selection, self.selected.finished)
        if self.evaluated:
            for split, results in self.by_split(self.evaluated).items():
                found += tracked.scores(split, results, self.selection, self.evaluated.finished)
        return found

    def points_on(self, name: str) -> list[tracked.Point]:
        """The metrics of the selected checkpoint on an evaluation set, and of all kept checkpoints, if they were evaluated."""
        made = self.sets[name]
        results = tracked.result(made, f"{name}_results.json") or {}
        found = tracked.scores(f"test.{name}", results, self.selection, made.finished)
        kept = tracked.result(made, "checkpoints.json") if "checkpoints.json" in made.files else None
        return found + tracked.by_step(f"test.{name}.checkpoints", kept["checkpoints"] if kept else [], made.finished)

    def figures(self) -> dict[str, float]:
        on_sets = [point for name in self.sets for point in self.points_on(name) if ".checkpoints/" not in point[0]]
        return {name: value for name, value, _, _ in (*self.points(), *on_sets)}

    def finished(self, name: str) -> float:
        """When the stage ended that a metric of this name is of; if it has no present result, when the checkpoint was selected."""
        match = RESULT.fullmatch(name)
        made = self.sets.get(match["set"]) if match and match["set"] else self.evaluated
        return (made or self.selected).finished

    @staticmethod
    def by_split(evaluated: Manifest) -> dict[str, JsonObject]:
        return {split: tracked.result(evaluated, f"{split}_results.json") or {} for split in SPLITS}


class StageResults:
    def __init__(self, results: Path, store: Store):
        self.results, self.store = results, store

    def send(self, found: Evaluated, training: Path, run: JsonObject, experiment: str, sent: Sent) -> None:
        before = dict(sent.done)
        self._send_new(found, training, run, experiment, sent)
        if sent.done != before:
            self._withdraw(found, sent.run_id)

    def _withdraw(self, found: Evaluated, run_id: str) -> None:
        """Metrics of another checkpoint, or that are not measured any more, become NaN: MLflow can delete none."""
        present = {allowed(name) for name in found.figures()}
        known = self.store.get(run_id).data.metrics
        old = [name for name, value in known.items() if RESULT.fullmatch(name) and name not in present and not math.isnan(value)]
        self.store.points(run_id, [(name, math.nan, found.finished(name), 0) for name in old if ".checkpoints/" not in name])
        if "test/accuracy" in old:
            self.store.tags(run_id, {tracked.INTERVAL: ""})

    def _send_new(self, found: Evaluated, training: Path, run: JsonObject, experiment: str, sent: Sent) -> None:
        if sent.done.get("selection") != (token := f"{found.selected.identity} {found.selected.content}"):
            files = [(training / "manifest.json", "training"), (training.parent / "selection/selection.json", "selection")]
            points = tracked.selected(found.selection, found.selected.finished)
            self._finish(run, experiment, sent, found.selected, ("select", "selection"), points, files)
            sent.done["selection"] = token
        for name, on_set in found.sets.items():
            if sent.done.get(f"set {name}") != (token := f"{on_set.identity} {on_set.content}"):
                files = [(on_set.folder / file, f"evaluation/{name}") for file in ("manifest.json", *on_set.files)]
                stage = (f"evaluate.{name}", f"evaluation on {name}")
                self._finish(run, experiment, sent, on_set, stage, found.points_on(name), files)
                sent.done[f"set {name}"] = token
        if (made := found.evaluated) and sent.done.get("evaluation") != (token := f"{made.identity} {made.content}"):
            self._send_evaluation(found, made, training, run, experiment, sent)
            sent.done["evaluation"] = token
        if (made := found.predicted) and sent.done.get("predictions") != (token := f"{made.identity} {made.content}"):
            self._finish(
                run, experiment, sent, made, ("predict", "predictions"), [], [(made.file(name), "predictions") for name in made.files]
            )
            sent.done["predictions"] = token

    def _send_evaluation(self, found: Evaluated, made: Manifest, training: Path, run: JsonObject, experiment: str, sent: Sent) -> None:
        files = [(file, "evaluation") for file in sorted(made.folder.iterdir()) if file.suffix in (".json", ".csv", ".png")]
        if run.get("data"):
            files.append((Path(run["data"]["path"]).parent / "report.json", "data"))
        self._finish(run, experiment, sent, made, ("evaluate", "evaluation"), found.points(), files)
        self.store.tags(sent.run_id, tracked.interval(found.by_split(made)["test"]))

    def _finish(
        self,
        run: JsonObject,
        experiment: str,
        sent: Sent,
        made: Manifest,
        stage: tuple[str, str],
        points: list[tracked.Point],
        files: Files,
    ) -> None:
        """`stage`: its name in keys and tags, and in the child run's name."""
        self.store.points(sent.run_id, points)
        for file, place in files:
            self.store.artifact(sent.run_id, file, place)
        key = run_key(self.results, stage[0], made.identity, run["run"])
        reasons = tracked.read_json(self.results / "runs" / run["run"] / "reasons.json") or {}
        tags = {PARENT: sent.run_id, "pipeline.stage": stage[0]} | tracked.reason(reasons, made.stage)
        child = self.store.run(experiment, key, f"{run['run']} {stage[1]}", made.started, tags)
        if child:
            self.store.params(child, tracked.params(made.settings))
            self.store.points(child, points)
            self.store.status(child, "FINISHED", made.finished)
