"""Brings MLflow up to date with the files of the runs, at any time and any number of times, without disturbing a training.

The files are authoritative. `.mlflow.json` beside them records what was sent. If it is lost, everything is sent again and nothing
changes: runs are found by their key, and MLflow keeps identical points once.
"""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from snaketrain.evaluation.curves import points, seconds_training, standing
from snaketrain.orchestration.reasons import read_reasons
from snaketrain.runtime.goodput import goodput
from snaketrain.runtime.journal import CHUNK_BYTES, all_events, read_events
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import Manifest, digest, write_json
from snaketrain.runtime.ownership import gone, job_of
from snaketrain.runtime.provenance import copy_of, own_files
from snaketrain.runtime.setting_strings import by_key
from snaketrain.tracking import tracked, views
from snaketrain.tracking.mlflow_store import PARENT, Store
from snaketrain.tracking.registering import is_due
from snaketrain.tracking.run_keys import former_key, run_key, training_run
from snaketrain.tracking.shared_runs import SharedRuns
from snaketrain.tracking.slurm_jobs import SlurmJobs
from snaketrain.tracking.views import TrainingRow

LOOK_EVERY_SECONDS = 30  # whether what was sent to MLflow is still there
MOST_REPORTS = 10  # of failed ranks are sent
FEW = 5  # up to this many runs are listed one by one


@dataclass
class Sent:
    """What MLflow already knows about one run."""

    uri: str
    run_id: str
    offset: int = 0  # in the journal
    high_water: dict[str, int] = field(default_factory=dict)
    standing: JsonObject | None = None
    status: str | None = None
    done: dict[str, str] = field(default_factory=dict)  # by what is sent once: a digest of its content


class Follower:
    def __init__(self, results: Path, store: Store):
        self.results, self.store = Path(results).resolve(), store
        self.shared = SharedRuns(self.results, store)
        self.jobs = SlurmJobs(self._running_jobs)
        self.unregistered: set[Path] = set()  # runs whose best model may be registered
        self.rows: dict[str, dict[str, TrainingRow]] = {}  # by experiment and run name
        self._views: dict[str, dict[str, str]] = {}
        self._looked = time.monotonic()

    def forget(self) -> None:
        """Look everything up in MLflow again."""
        self.store.forget()
        self.shared.forget()
        self.rows.clear()
        self._views.clear()

    def has_lost_its_runs(self, look_now: bool = False) -> bool:
        """Whether somebody has emptied the store or deleted experiments. Checked every LOOK_EVERY_SECONDS, and at the end."""
        if not look_now and time.monotonic() - self._looked < LOOK_EVERY_SECONDS:
            return False
        self._looked = time.monotonic()
        return not self.store.still_holds(next(iter(rows.values())).run_id for rows in self.rows.values())

    def runs(self) -> list[Path]:
        return sorted(path.parent for path in self.results.glob("runs/*/training/run.json"))

    def update(self, training: Path) -> None:
        """Update one run, given the folder of its training."""
        run = tracked.read_json(training / "run.json")
        if run is None:
            return
        experiment = run.get("experiment") or "snaketrain"
        prepared, data_run_id = self.shared.data(run, f"{experiment}-data")
        run_id = training_run(self.results, run, self.store)
        if run_id is None:  # deleted in MLflow on purpose: it is not created again
            return
        selection = tracked.read_json(training.parent / "selection/selection.json") or {}
        row = TrainingRow(run_id, by_key(run["settings"]), selection.get("metric"), selection.get("mode"))
        self.rows.setdefault(experiment, {})[run["run"]] = row
        sent = self._sent(training, run_id)
        before = asdict(sent)
        try:
            self._describe(run, sent, training, prepared, (f"{experiment}-data", data_run_id))
            self._curves(training, sent)
            self._results(training, run, experiment, sent)
            if "evaluation" in sent.done and is_due(training.parent, self.store.uri, run_id):
                self.unregistered.add(training.parent)
        finally:
            if asdict(sent) != before:
                self.store.check()
                write_json(training / ".mlflow.json", asdict(sent))

    def show(self, ui: str) -> list[str]:
        """Give each experiment a view with our columns. Returns the addresses of views, comparisons and single runs."""
        addresses = []
        for experiment, by_name in self.rows.items():
            rows, where = list(by_name.values()), self.store.experiment(experiment)
            if self._views.get(experiment) != (tags := views.tags(rows)):
                for name, value in tags.items():
                    self.store.client.set_experiment_tag(where, name, value)
                self._views[experiment] = tags
            addresses += [f"all runs   {views.view_address(ui, where)}", f"curves     {views.curves_address(ui, where)}"]
            addresses += [f"compared   {views.compare_address(ui, where, rows)}"]
            if len(rows) <= FEW:
                addresses += [f"{name:10} {views.run_address(ui, where, row.run_id)}" for name, row in by_name.items()]
        return addresses

    def _running_jobs(self) -> set[str]:
        """The SLURM jobs of all runs that may still be writing."""
        running = (each for each in self.runs() if not has_ended(each, tracked.read_json(each / ".mlflow.json") or {}))
        return {job for training in running if (job := job_of(training))}

    def _sent(self, folder: Path, run_id: str) -> Sent:
        content = tracked.read_json(folder / ".mlflow.json") or {}
        try:
            sent = Sent(**content)
        except TypeError:
            return Sent(self.store.uri, run_id)
        journal = folder / "journal.jsonl"
        shrunk = sent.offset > (journal.stat().st_size if journal.is_file() else 0)
        foreign = (sent.uri, sent.run_id) != (self.store.uri, run_id)
        old = sent.standing is not None and sent.standing.keys() != standing([]).keys()  # written by another version of this code
        return Sent(self.store.uri, run_id) if shrunk or foreign or old else sent

    # --- the training

    def _describe(self, run: JsonObject, sent: Sent, training: Path, prepared: Manifest | None, data: tuple[str, str | None]) -> None:
        """Sent again for each attempt, which may run on another machine. `data`: the experiment and the run of its preparation."""
        reasons = read_reasons(training.parent / "reasons.json")
        if sent.done.get("described") == (token := digest(run, data, reasons.get("train_model"))):
            return
        experiment, data_run_id = data
        self.store.params(sent.run_id, tracked.params(run["settings"]))
        tags = tracked.tags(run) | tracked.reason(reasons, "train_model")
        if run.get("data"):
            self.store.dataset(sent.run_id, **tracked.dataset(run, prepared))
            tags |= {"pipeline.data": str(run["data"]["content"])} | ({"pipeline.data_run_id": data_run_id} if data_run_id else {})
        if not self.store.get(sent.run_id).data.tags.get("mlflow.note.content"):  # otherwise somebody may have edited it
            experiment_id = self.store.experiment(experiment) if data_run_id else None
            tags["mlflow.note.content"] = tracked.note(run, experiment_id, data_run_id)
        self.store.tags(sent.run_id, tags)
        for file in ("run.json", "packages.txt", "code.diff", *map(copy_of, own_files(run["ways"]))):
            self.store.artifact(sent.run_id, training / file, str(Path("training", file).parent))
        sent.done["described"] = token

    def _curves(self, training: Path, sent: Sent) -> None:
        # checked before reading: a process that has ended writes nothing more
        journal, left = training / "journal.jsonl", None if has_ended(training, asdict(sent)) else gone(training, self.jobs.is_over)
        while True:
            events, offset = read_events(journal, sent.offset, CHUNK_BYTES)
            if offset == sent.offset:
                break
            high_water = dict(sent.high_water)
            self.store.points(sent.run_id, points(events, high_water))
            sent.high_water, sent.standing, sent.offset = high_water, standing(events, sent.standing), offset
            self.store.check()
            write_json(training / ".mlflow.json", asdict(sent))
            if left and (job := job_of(training)):
                self.jobs.doubt(job)
        state = sent.standing or standing([{"event": "", "time": time.time()}])
        status, why = tracked.status(state, time.time(), left)
        if sent.status == (token := f"{status} {state['attempts']} {state['time'] if status != 'RUNNING' else ''}"):
            return
        if state["status"] == "FINISHED":
            training_seconds = ("seconds/training", seconds_training(all_events(journal)), state["time"], 0)
            self.store.points(sent.run_id, [training_seconds, *tracked.spent(goodput(all_events(journal)), state["time"])])
        if status != "RUNNING":
            failed = sorted((training / "logs/failed").glob("*/rank-*.txt"), key=lambda path: path.stat().st_mtime)
            for log in [*(training / "logs").glob("rank-0.log"), *failed[-MOST_REPORTS:]]:
                self.store.tail(sent.run_id, log, "logs")
        self.store.tags(sent.run_id, tracked.attempts(state, why))
        self.store.status(sent.run_id, status, state["time"])
        sent.status = token

    # --- selection and evaluation

    def _results(self, training: Path, run: JsonObject, experiment: str, sent: Sent) -> None:
        folder = training.parent
        trained, selected, evaluated = (
            tracked.manifest(folder / stage / "manifest.json") for stage in ("training", "selection", "evaluation")
        )
        if trained is None or selected is None or not tracked.follows(selected, trained):
            return
        selection = tracked.read_json(folder / "selection/selection.json")
        if selection is None:
            return
        if sent.done.get("selection") != (token := f"{selected.identity} {selected.content}"):
            winner = selection["winner"]
            best = tracked.numbers("best", winner["metrics"] | {"step": winner["step"]}, selected.finished)
            files = [(folder / "training/manifest.json", "training"), (folder / "selection/selection.json", "selection")]
            self._finish(run, experiment, sent, selected, "selection", best, files)
            self._checkpoints(training, run, experiment, sent, selection)
            sent.done["selection"] = token
        if evaluated is None or not tracked.follows(evaluated, selected):
            return
        if sent.done.get("evaluation") != (token := f"{evaluated.identity} {evaluated.content}"):
            results = {split: tracked.read_json(folder / f"evaluation/{split}_results.json") or {} for split in ("dev", "test")}
            scores = [point for split, content in results.items() for point in tracked.scores(split, content, evaluated.finished)]
            files = [(file, "evaluation") for file in sorted((folder / "evaluation").iterdir()) if file.suffix in (".json", ".csv", ".png")]
            report = Path(run["data"]["path"]).parent / "report.json" if run.get("data") else None
            self._finish(run, experiment, sent, evaluated, "evaluation", scores, files + ([(report, "data")] if report else []))
            self.store.points(sent.run_id, scores, self._model(training, run, experiment, sent, selection["winner"]))
            sent.done["evaluation"] = token

    def _checkpoints(self, training: Path, run: JsonObject, experiment: str, sent: Sent, selection: JsonObject) -> None:
        """Each checkpoint on the disk is a model with its own metrics; its files stay where they are."""
        evaluations = (event for event in all_events(training / "journal.jsonl") if event.get("event") in ("attempt", "eval"))
        logged = points(evaluations, {})  # equal to the run's points to the millisecond, or MLflow would store them twice
        for entry in selection["ranking"]:
            if entry["kept"]:
                model_id = self._model(training, run, experiment, sent, entry)
                self.store.points(sent.run_id, [point for point in logged if point[3] == entry["step"]], model_id)

    def _model(self, training: Path, run: JsonObject, experiment: str, sent: Sent, entry: JsonObject) -> str:
        tags = {"path": str(training / entry["path"]), "pipeline.data": str((run.get("data") or {}).get("content", ""))}
        return self.store.model(experiment, sent.run_id, f"{run['run']}-step-{entry['step']}", entry["step"], tags)

    def _finish(
        self,
        run: JsonObject,
        experiment: str,
        sent: Sent,
        made: Manifest,
        name: str,
        points: list[tracked.Point],
        files: list[tuple[Path, str]],
    ) -> None:
        """Roll-ups and files of a stage on the training's row, and a child run."""
        points = [*points, tracked.duration(name, made)]
        self.store.points(sent.run_id, points)
        for file, place in files:
            self.store.artifact(sent.run_id, file, place)
        stage = {"selection": "select", "evaluation": "evaluate"}[name]
        reasons = read_reasons(self.results / "runs" / run["run"] / "reasons.json")
        tags = {PARENT: sent.run_id, "pipeline.stage": stage} | tracked.reason(reasons, made.stage)
        key, former = run_key(self.results, stage, made.identity, run["run"]), former_key(stage, made.identity)
        child = self.store.run(experiment, key, f"{run['run']} {name}", made.started, tags, former)
        if child:
            self.store.params(child, tracked.params(made.settings))
            self.store.points(child, points)
            self.store.status(child, "FINISHED", made.finished)


def has_ended(training: Path, sent: JsonObject) -> bool:
    """Whether the journal says so and was read to its end."""
    journal = training / "journal.jsonl"
    heard_all = journal.is_file() and journal.stat().st_size <= sent.get("offset", 0)
    return heard_all and (sent.get("standing") or {}).get("status", "RUNNING") != "RUNNING"
