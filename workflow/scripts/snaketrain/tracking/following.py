"""Brings MLflow up to date with the files of the runs, at any time and any number of times, without disturbing a training.

The files are authoritative. `.mlflow.json` beside them records what was sent. If it is lost, everything is sent again and nothing
changes: runs are found by their key, and MLflow keeps identical points once.
"""

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mlflow.exceptions import MlflowException

from snaketrain.evaluation.comparing import differing_settings
from snaketrain.evaluation.journals import points, standing
from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.journal import CHUNK_BYTES, all_events, events_named, goodput, read_events
from snaketrain.runtime.manifests import Manifest, digest
from snaketrain.runtime.ownership import gone, job_of
from snaketrain.runtime.provenance import copy_of, own_files
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.slurm.client import Slurm, SlurmError
from snaketrain.tracking import tracked, views
from snaketrain.tracking.mlflow_store import NOTE, ExperimentDeleted, Store, training_run
from snaketrain.tracking.stage_results import Evaluated, Sent, StageRuns, has_ended
from snaketrain.tracking.tracked import MODE, Problem, first_line, run_address
from snaketrain.tracking.views import TrainingRow, labels

ASK_EVERY_SECONDS = 30  # which SLURM jobs have ended
RETRY_SECONDS = 10  # after which a run that could not be recorded is tried again
OF_ONE_RUN = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "INVALID_STATE")  # errors of MLflow
MOST_REPORTS = 10  # of failed ranks that are sent
DUE = "due"  # a table that must be sent again, as a whole
FEW = 5  # up to this many runs are listed one by one


class SlurmJobs:
    def __init__(self, at_work: Callable[[], set[str]]):
        """`at_work`: the jobs of all runs that may still be writing. One query for all of them does not burden a busy cluster."""
        self.slurm, self.at_work = Slurm(), at_work
        self.over: set[str] = set()
        self.asked_at: float | None = None

    def is_over(self, job: str) -> bool:
        """False until SLURM reports that it has ended."""
        if self.asked_at is None or time.monotonic() - self.asked_at >= ASK_EVERY_SECONDS:
            self.asked_at = time.monotonic()
            asked = self.at_work() - self.over
            if asked and self.slurm.is_installed():
                with contextlib.suppress(SlurmError):
                    self.over |= asked - self.slurm.in_queue(asked)
        return job in self.over


class Follower:
    def __init__(self, results: Path, store: Store):
        self.results, self.store = Path(results).resolve(), store
        self.stages = StageRuns(self.results, store)
        self.jobs = SlurmJobs(self._running_jobs)
        self.evaluated: dict[Path, str] = {}  # the runs whose evaluation MLflow has, with their ids there
        self.rows: dict[str, dict[str, TrainingRow]] = {}  # by experiment and run name
        self.different: dict[str, list[str]] = {}
        self._views: dict[str, dict[str, str]] = {}
        self._labels: dict[str, dict[str, str]] = {}  # by run id
        self.ends: dict[Path, RunEnd] = {}  # of the runs that have ended
        self.failed: dict[Path, tuple[Problem, float]] = {}  # why runs could not be recorded, and when they are tried again

    def forget(self) -> None:
        """Look everything up in MLflow again."""
        self.store.forget()
        self.rows.clear()
        self._views.clear()
        self._labels.clear()

    def runs(self) -> list[Path]:
        return sorted(path.parent for path in self.results.glob("*/*/training/run.json"))

    def update_all(self, note: Callable[[str], None] = lambda doing: None) -> Problem | None:
        """Update all runs, with the stages that they share. One that cannot be recorded holds up no other. Returns what went wrong."""
        self.stages.deleted = None
        self.different = self._different()
        work: list[tuple[Path, Callable[[Path], None]]] = [(training, self.update) for training in self.runs()]
        work += [(manifest, self.stages.update_shared) for manifest in self.stages.shared()]
        work.append((self.results / "comparison/manifest.json", self.stages.update_comparison))
        for path, send in work:
            if path in self.failed and time.monotonic() < self.failed[path][1]:
                continue
            note(f"updating {path.parent.name}")
            if problem := self._problem_with(path, send):
                self.failed[path] = problem, time.monotonic() + RETRY_SECONDS
            else:
                self.failed.pop(path, None)
        self.label()
        if not self.failed:
            return Problem(str(lost), lost.advice) if (lost := self.stages.deleted) else None
        first, *others = (problem for problem, _ in self.failed.values())
        return replace(first, what=f"{first.what} (and {len(others)} more runs)") if others else first

    def _problem_with(self, path: Path, send: Callable[[Path], None]) -> Problem | None:
        """Why a run could not be recorded."""
        try:
            send(path)
        except ExperimentDeleted as error:
            self.forget()
            return Problem(str(error), error.advice, of_one_run=True)
        except MlflowException as error:
            if error.error_code not in OF_ONE_RUN:
                raise  # MLflow is unreachable, for the other runs as well
            self.forget()
            return Problem(f"{path}: MLflow refused it: {first_line(error)}", of_one_run=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return Problem(f"{path}: cannot be recorded: {first_line(error)}", of_one_run=True)
        return None

    def update(self, training: Path) -> None:
        """Update one run; `training`: the folder of its training."""
        if (run := tracked.read_json(training / "run.json")) is None:
            return
        experiment = tracked.experiment_of(run)
        prepared, data_run_id = self.stages.data(run, f"{experiment}-data")
        run_id = training_run(self.results, run, self.store)
        if run_id is None:  # a user has deleted it in MLflow: it is not created again
            return
        found = Evaluated.read(training.parent)
        row = row_of(run, run_id, found)
        if training.parents[1].name == "runs":  # an extra may train something else, such as the first steps of several runs
            self.rows.setdefault(experiment, {})[row.name] = row
        sent = Sent.read(training, self.store.uri, run_id)
        before = asdict(sent)
        try:
            data, several = (f"{experiment}-data", data_run_id), tracked.of_several(run, training)
            self._describe(run, sent, training, prepared, data, several)
            self._curves(training, sent)
            if found:
                self.stages.send(found, training, run, sent)
            self._note(run, sent, training, data, several)
            if end := end_of(training, row, sent, found):
                self.ends[training] = end
            if "evaluation" in sent.done:
                self.evaluated[training.parent] = run_id
        finally:
            if asdict(sent) != before:
                self.store.check()
                sent.write(training)

    def _different(self) -> dict[str, list[str]]:
        """By experiment, the settings in which its runs differ."""
        settings: dict[str, list[JsonObject]] = {}
        for training in self.runs():
            if (run := tracked.read_json(training / "run.json")) and isinstance(run.get("settings"), dict):
                settings.setdefault(tracked.experiment_of(run), []).append(by_name(run["settings"]))
        return {name: differing_settings(several, left_out=views.BESIDE_THE_POINT) for name, several in settings.items()}

    def label(self) -> None:
        """Update what depends on all runs of an experiment: its views, and the configuration and colour of each run."""
        for experiment, rows_by_name in self.rows.items():
            rows = list(rows_by_name.values())
            if self._views.get(experiment) != (tags := views.tags(rows)):
                for name, value in tags.items():
                    self.store.client.set_experiment_tag(self.store.experiment(experiment), name, value)
                self._views[experiment] = tags
            for run_id, labelled in labels(rows).items():
                if self._labels.get(run_id, labelled if self.store.had_tags(run_id, labelled) else None) != labelled:
                    self.store.tags(run_id, labelled)
                self._labels[run_id] = labelled

    def addresses(self, ui: str) -> list[str]:
        """Of the views, the comparison and, if there are few, each run; with several experiments, of the view of each experiment."""
        experiments = {name: (self.store.experiment(name), list(rows.values())) for name, rows in list(self.rows.items())[:FEW]}
        if len(self.rows) > 1:
            more = [f"{len(self.rows) - FEW} more experiments   {ui}/#/experiments?{MODE}"] if len(self.rows) > FEW else []
            return [*(f"{name:10} {views.view_address(ui, where)}" for name, (where, _) in experiments.items()), *more]
        found = []
        for where, rows in experiments.values():
            found += views.addresses(ui, where, rows)
            if len(rows) <= FEW:
                found += [f"{row.name:10} {run_address(ui, where, row.run_id)}" for row in rows]
        return found

    def _running_jobs(self) -> set[str]:
        running = (each for each in self.runs() if not has_ended(each, tracked.read_json(each / ".mlflow.json") or {}))
        return {job for training in running if (job := job_of(training))}

    def _describe(
        self, run: JsonObject, sent: Sent, training: Path, prepared: Manifest | None, data: tuple[str, str | None], several: dict[str, str]
    ) -> None:
        """Send params, tags and files; again for each attempt, which may run on another machine. `data`: experiment and run of the data."""
        reasons = tracked.read_json(training.parent / "reasons.json") or {}
        if sent.done.get("described") == (token := digest(run, data, reasons.get("train_model"), several)):
            return
        _, data_run_id = data
        self.store.params(sent.run_id, tracked.params(run["settings"]))
        tags = tracked.tags(run, user_of(training)) | tracked.reason(reasons, "train_model") | several
        if run.get("data"):
            self.store.dataset(sent.run_id, **tracked.dataset(run, prepared))
            tags |= {"pipeline.data": str(run["data"]["content"])} | ({"pipeline.data_run_id": data_run_id} if data_run_id else {})
        self.store.tags(sent.run_id, tags)
        for file in ("run.json", "packages.txt", "code.diff", *map(copy_of, own_files(run["code"]))):
            self.store.artifact(sent.run_id, training / file, str(Path("training", file).parent))
        sent.done["described"] = token

    def _note(self, run: JsonObject, sent: Sent, training: Path, data: tuple[str, str | None], several: dict[str, str]) -> None:
        """Send the description, and keep what a user has added to it; one that a user has written instead is left alone."""
        experiment, data_run_id = data
        data_run = run_address("", self.store.experiment(experiment), data_run_id).removeprefix("/") if data_run_id else None
        different = self.different.get(tracked.experiment_of(run), [])
        text, before = tracked.note(run, sent.done, sent.run_id, training.parent, data_run, different, several), sent.done.get("note", "")
        if text == before:
            return
        known = self.store.get(sent.run_id).data.tags.get(NOTE, "")
        ours = next((each for each in (text, before) if known.startswith(each)), None)
        if ours is not None and (ours or not known):
            self.store.tags(sent.run_id, {NOTE: text + known.removeprefix(ours)})
        sent.done["note"] = text

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
            if any(event.get("event") == "samples" for event in events):
                sent.done["samples"] = DUE
            self.store.check()
            sent.write(training)
            if left and (job := job_of(training)):  # requeued: it keeps its ID
                self.jobs.over.discard(job)
        if sent.done.get("samples") == DUE and (table := tracked.samples_table(events_named(journal, "samples"))):
            self.store.table(sent.run_id, table, tracked.SAMPLES)
            sent.done["samples"] = "sent"
        state = sent.standing or standing([{"event": "", "time": time.time()}])
        status, why = tracked.status(state, time.time(), left)
        if sent.status == (
            token
            := f"{status} {state['attempts']} {len(state['warnings'])} {len(state['skipped'])} {state['time'] if status != 'RUNNING' else ''}"
        ):
            return
        if state["status"] == "FINISHED" and (spent := goodput(all_events(journal))):
            self.store.points(sent.run_id, [("goodput", spent["goodput"], state["time"], 0)])
            self.store.table(sent.run_id, tracked.time_table(spent), tracked.TIME)
        if status != "RUNNING":
            failed = sorted((training / "logs/failed").glob("*/rank-*.txt"), key=lambda path: path.stat().st_mtime)
            for log in [*(training / "logs").glob("rank-0.log"), *failed[-MOST_REPORTS:]]:
                self.store.tail(sent.run_id, log, "logs")
        self.store.tags(sent.run_id, tracked.attempts(state, why))
        sent.done["why"] = why
        self.store.status(sent.run_id, status, state["time"])
        sent.status = token


def user_of(training: Path) -> str:
    try:
        return training.owner()
    except (KeyError, OSError):  # of a user that this machine does not know
        return str(training.stat().st_uid)


def row_of(run: JsonObject, run_id: str, found: Evaluated | None) -> TrainingRow:
    content, selection = str((run.get("data") or {}).get("content", "")), found.selection if found else {}
    settings = by_name(run["settings"]) | (found.evaluated.facts.get("test", {}) if found and found.evaluated else {})
    return TrainingRow(
        run["run"], run_id, settings, content, selection.get("metric"), selection.get("mode"), found.value if found else None
    )


@dataclass(frozen=True)
class RunEnd:
    training: Path
    run: str
    state: str  # finished, failed, killed or stopped
    reason: str
    time: float
    attempts: int
    run_id: str  # in MLflow
    awaited_since: float = 0.0  # when the workflow began that is still to evaluate the run on a set; 0: none is
    figures: Callable[[], dict[str, float]] = dict  # the metrics of a finished run

    @property
    def token(self) -> str:
        return f"{self.state} {self.attempts} {self.time}"

    def environment(self) -> dict[str, str]:
        """What the command learns about the run. It is not part of the command, so no text in it is executed."""
        about = {"RUN": self.run, "STATE": self.state, "REASON": hidden(self.reason), "FOLDER": str(self.training.parent)}
        figures = self.figures()
        about |= {"RUN_ID": self.run_id, "FIGURES": strict_json.dumps(figures)}
        figures_by_name = {re.sub(r"\W", "_", name).upper(): f"{value:.5g}" for name, value in figures.items()}
        return {f"SNAKETRAIN_{name}": value.replace("\0", " ") for name, value in (figures_by_name | about).items()}


def end_of(training: Path, row: TrainingRow, sent: Sent, found: Evaluated | None) -> RunEnd | None:
    """How the run ended; None before that. A trained run ends with its evaluation, including those on further sets."""
    state, status = sent.standing or {}, (sent.status or "RUNNING").split()[0]
    if status == "RUNNING":
        return None
    if status == "FINISHED":
        if not found or not found.evaluated or "evaluation" not in sent.done:
            return None
        finished = max(made.finished for made in (found.evaluated, *found.sets.values()))
        planned = (tracked.read_json(training.parent / "reasons.json") or {}).values()
        awaited_since = max((each["time"] for each in planned if set(each.get("sets", ())) - found.sets.keys()), default=0.0)
        return RunEnd(training, row.name, "finished", "", finished, state["attempts"], row.run_id, awaited_since, found.figures)
    how = "stopped" if state["status"] == "STOPPED" else status.lower()
    return RunEnd(
        training, row.name, how, state["why"] if state["status"] != "RUNNING" else "", state["time"], state["attempts"], row.run_id
    )
