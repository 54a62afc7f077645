"""The results of the stages: a run in MLflow for each, those of selection and evaluation also on the run of their training."""

import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from snaketrain.evaluation.journals import standing
from snaketrain.runtime.manifests import Manifest, write_checked
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tracking import tracked
from snaketrain.tracking.mlflow_store import NOTE, PARENT, ExperimentDeleted, Store, run_key
from snaketrain.tracking.tracked import Point, allowed

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
    # by what is sent once a digest of its content; of the description its text, and what it says of the end and of the result
    done: dict[str, str] = field(default_factory=dict)

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


# --- What the stages of a run have written.

SPLITS = ("dev", "test")
RESULT = re.compile(r"(?:dev|test(?:\.(?P<set>.+))?)/[^/]+")  # the name of a metric of the selected checkpoint


@dataclass(frozen=True)
class Evaluated:
    """The results of a run whose selection and evaluation belong to its present training."""

    selected: Manifest
    selection: JsonObject
    evaluated: Manifest | None
    sets: dict[str, Manifest]  # the evaluations on each further set
    further: dict[str, Manifest]  # what other stages made with the selected checkpoint, by their folders

    @classmethod
    def read(cls, folder: Path) -> "Evaluated | None":
        made = {path.parent.name: tracked.manifest(path) for path in sorted(folder.glob("*/manifest.json"))}
        trained, selected = made.pop("training", None), made.pop("selection", None)
        selection = tracked.result(selected, "selection.json") if selected else None
        if trained is None or selected is None or selection is None or not tracked.follows(selected, trained):
            return None
        on_sets = {path.parent.name: tracked.manifest(path) for path in sorted(folder.glob("sets/*/manifest.json"))}
        sets, further = (
            {name: each for name, each in found.items() if each and tracked.follows(each, selected)} for found in (on_sets, made)
        )
        return cls(selected, selection, further.pop("evaluation", None), sets, further)

    @property
    def value(self) -> float | None:
        """The selection metric of the selected checkpoint; for an average of checkpoints None before its evaluation."""
        found: float | None = self.selection["winner"]["metrics"].get(self.selection["metric"])
        if self.selection.get("averaged"):
            dev = self.by_split(self.evaluated)["dev"] if self.evaluated else {}
            found = dev.get("metrics", {}).get(self.selection["metric"])
        return found

    def points(self) -> list[Point]:
        """The metrics of the selected checkpoint on all splits."""
        found = tracked.selected(self.selection, self.selected.finished)
        if self.evaluated:
            for split, results in self.by_split(self.evaluated).items():
                found += tracked.scores(split, results, self.selection, self.evaluated.finished)
        return found

    def points_on(self, name: str) -> list[Point]:
        """The metrics of the selected checkpoint on an evaluation set, and of all kept checkpoints, if they were evaluated."""
        made = self.sets[name]
        results = tracked.result(made, f"{name}_results.json") or {}
        found = tracked.scores(f"test.{name}", results, self.selection, made.finished)
        kept = tracked.result(made, "checkpoints.json") if "checkpoints.json" in made.files else None
        for each in kept["checkpoints"] if kept else ():  # a curve
            found += [
                (f"test.{name}.checkpoints/{key}", float(value), made.finished, each["step"]) for key, value in each["metrics"].items()
            ]
        return found

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


# --- A run in MLflow for each stage.

SHARED = ("raw", "models", "inputs", "sets")  # folders of what is fetched, and of prepared evaluation sets
CONTENT = "pipeline.content"  # a tag: what later stages have as the param `inputs.<role>`
SUMMARIES, LARGEST_BYTES = (".json", ".png", ".html"), 1_000_000


class StageRuns:
    """Stages that several trainings share have experiments of their own, so that the rows of the trainings' experiment are all trainings."""

    def __init__(self, results: Path, store: Store):
        self.results, self.store = results, store
        self._data_experiment: str | None = None
        self.deleted: ExperimentDeleted | None = None  # the experiment of the data

    def data(self, run: JsonObject, experiment: str) -> tuple[Manifest | None, str | None]:
        """The data that a training read, and the MLflow run of its preparation."""
        self._data_experiment = self._data_experiment or experiment
        prepared = tracked.prepared(run, self.results)
        if prepared is None:
            return None, None
        points = tracked.data_points(prepared.facts, prepared.finished)
        of_trainings = self.store.experiment(tracked.experiment_of(run))
        used = f"[The trainings on this data]({tracked.search_address(of_trainings, 'tags.`pipeline.data`', prepared.content)})"
        tags = {"pipeline.stage": "prepare", "pipeline.data": prepared.content, NOTE: used}
        files = [prepared.folder / name for name in ("report.json", "manifest.json")]
        try:
            return prepared, self._shared_run(prepared, experiment, prepared.folder.name, tags, points, files)
        except ExperimentDeleted as error:  # trainings are recorded nevertheless
            self.deleted = error
            return prepared, None

    def shared(self) -> list[Path]:
        """Manifests of stages that no training leads to directly."""
        return sorted(path for folder in SHARED for path in self.results.glob(f"{folder}/*/manifest.json"))

    def update_shared(self, path: Path) -> None:
        """Update the run of one of them, beside that of the first training's data; before there is a training, it has no experiment."""
        if self._data_experiment is None or not (made := tracked.manifest(path)):
            return
        points = [("files", float(len(made.files)), made.finished, 0)]
        name, files = f"{made.stage} {path.parent.name}", summaries(made)
        self._shared_run(made, self._data_experiment, name, {"pipeline.stage": made.stage}, points, files, path.parent.name)

    def update_comparison(self, path: Path) -> None:
        """The latest comparison, with its page."""
        made = tracked.manifest(path)
        if made is None or not (names := made.facts.get("runs")):
            return
        if first := tracked.read_json(self.results / "runs" / names[0] / "training/run.json"):
            tags = {"pipeline.stage": "compare", NOTE: made.facts.get("verdict", "")}
            points = [("runs", float(len(names)), made.finished, 0)]
            files = [made.folder / name for name in ("manifest.json", *made.files)]
            self._shared_run(made, f"{tracked.experiment_of(first)}-comparisons", f"{len(names)} runs", tags, points, files)

    def _shared_run(
        self,
        made: Manifest,
        experiment: str,
        name: str,
        tags: dict[str, str],
        points: list[Point],
        files: list[Path],
        of: str | None = None,
    ) -> str | None:
        """The run of a stage; its content is sent once. `of`: what else than its identity tells it from others of its stage."""
        sent = tracked.read_json(made.folder / STATE) or {}
        key = run_key(self.results, tags["pipeline.stage"], made.identity, of)
        run_id = self.store.run(experiment, key, name, made.started, tags)
        current = {"uri": self.store.uri, "run_id": run_id, "content": made.content}
        if run_id and sent != current:
            self._finish(run_id, made, points, files)
            self.store.check()
            write_checked(made.folder / STATE, current)
        return run_id

    def send(self, found: Evaluated, training: Path, run: JsonObject, sent: Sent) -> None:
        """The stages after a training: each on the training's run, and as a child run."""
        of_sets = {f"set {name}": made for name, made in found.sets.items()}
        stages = {"selection": found.selected} | of_sets | {"evaluation": found.evaluated} | found.further
        before = dict(sent.done)
        for name, made in stages.items():
            if made and sent.done.get(name) != (token := f"{made.identity} {made.content}"):
                self._send(name, made, found, training, run, sent)
                sent.done[name] = token
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

    def _send(self, name: str, made: Manifest, found: Evaluated, training: Path, run: JsonObject, sent: Sent) -> None:
        points: list[Point] = []
        stage, title, place = made.stage.partition("_")[0], name, name  # `select_checkpoint` is `select`
        files = [made.folder / file for file in made.files]
        if name == "selection":
            points, files = tracked.selected(found.selection, made.finished), [made.folder / "selection.json"]
            self.store.artifact(sent.run_id, training / "manifest.json", "training")
            self.store.tags(sent.run_id, {CONTENT: made.inputs["training"]})
            sent.done["outcome"] = tracked.outcome(found.selection, found.value, {})
        elif name == "evaluation":
            points, files = found.points(), [file for file in sorted(made.folder.iterdir()) if file.suffix in (".json", ".csv", ".png")]
            if run.get("data"):
                self.store.artifact(sent.run_id, Path(run["data"]["path"]).parent / "report.json", "data")
            results = found.by_split(made)["test"]
            self.store.tags(sent.run_id, tracked.interval(results))
            sent.done["outcome"] = tracked.outcome(found.selection, found.value, results)
        elif name.startswith("set "):
            on_set = name.removeprefix("set ")
            stage, title, place = f"evaluate.{on_set}", f"evaluation on {on_set}", f"evaluation/{on_set}"
            points, files = found.points_on(on_set), [made.folder / "manifest.json", *files]
        else:
            points = tracked.numbers(name, made.facts.get("metrics", {}), made.finished)
        self.store.points(sent.run_id, points)
        for file in files:
            self.store.artifact(sent.run_id, file, place)
        reasons = tracked.read_json(self.results / "runs" / run["run"] / "reasons.json") or {}
        tags = {PARENT: sent.run_id, "pipeline.stage": stage} | tracked.reason(reasons, made.stage)
        key = run_key(self.results, stage, made.identity, run["run"])
        if child := self.store.run(tracked.experiment_of(run), key, f"{run['run']} {title}", made.started, tags):
            self._finish(child, made, points, summaries(made))

    def _finish(self, run_id: str, made: Manifest, points: list[Point], files: list[Path]) -> None:
        self.store.params(run_id, tracked.deciding(made))
        self.store.tags(run_id, {CONTENT: made.content})
        self.store.points(run_id, points)
        for file in files:
            self.store.artifact(run_id, file)
        self.store.status(run_id, "FINISHED", made.finished)


def summaries(made: Manifest) -> list[Path]:
    """The small files that say what a stage did: no data, weights or predictions."""
    names = ["manifest.json", *(name for name in made.files if "/" not in name and name.endswith(SUMMARIES))]
    return [path for path in (made.folder / name for name in names) if path.is_file() and path.stat().st_size <= LARGEST_BYTES]
