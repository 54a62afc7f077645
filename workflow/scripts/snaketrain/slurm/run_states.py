"""What each run of this folder is at: by SLURM's queue where there is one, and by what the runs have written."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from snaketrain.runtime.journal import Event, last_attempt, read_events
from snaketrain.runtime.ownership import living_process
from snaketrain.slurm.checks import ENDED_STATES
from snaketrain.slurm.jobs import QueuedJob
from snaketrain.slurm.submissions import Submission

FOLDERS = {  # in this order
    "train_model": "training",
    "select_checkpoint": "selection",
    "evaluate_model": "evaluation",
    "predict_inputs": "predictions",
}
LAST_BYTES = 262_144  # of a journal, which may be long


@dataclass(frozen=True)
class RunState:
    run: str
    stage: str
    job: str = ""  # of SLURM
    state: str = ""
    step: int | None = None
    steps: int | None = None
    seconds_left: float | None = None
    nodes: str = ""
    log: str = ""
    process: int | None = None  # on this machine
    in_queue: bool = False

    @property
    def is_at_work(self) -> bool:
        """Whether there is something to cancel."""
        return self.process is not None or self.in_queue


@dataclass(frozen=True)
class Progress:
    """Of a training, as its journal tells."""

    step: int | None
    steps: int | None
    seconds_left: float | None
    end: Event | None  # of the last attempt


def run_states(folder: Path, queue: Iterable[QueuedJob] | None, submissions: Mapping[str, Submission]) -> list[RunState]:
    """One line for each run, and one for each other job in the queue, such as the preparation of data. None: SLURM does not answer."""
    if queue is None:
        submissions = {name: made if made.state else replace(made, state="unknown") for name, made in submissions.items()}
    waiting = [row for row in queue or () if row.state not in ENDED_STATES]
    of_runs = {row.wildcards: row for row in waiting if row.stage in FOLDERS}
    names = {path.name for path in (folder / "results/runs").glob("*") if path.is_dir()} | set(of_runs)
    found = [of_run(folder, run, of_runs.get(run), submissions) for run in sorted(names)]
    others = [row for row in waiting if row.stage not in FOLDERS]
    return found + [
        RunState(row.wildcards, row.stage, row.number, in_words(row), nodes=row.nodes, log=log_of(folder, row, submissions))
        for row in others
    ]


def of_run(folder: Path, run: str, row: QueuedJob | None, submissions: Mapping[str, Submission]) -> RunState:
    training, stage = folder / "results/runs" / run / "training", last_stage(folder, run)
    progress = progress_of(training)
    known = partial(RunState, run, step=progress.step, steps=progress.steps)
    if row:
        left = progress.seconds_left if (row.stage, row.state) == ("train_model", "RUNNING") else None
        return known(
            row.stage, row.number, in_words(row), seconds_left=left, nodes=row.nodes, log=log_of(folder, row, submissions), in_queue=True
        )
    if process := living_process(training):
        log = local_log(folder, "train_model", run)
        return known("train_model", "", "RUNNING", seconds_left=progress.seconds_left, nodes="here", log=log, process=process)
    made = submissions.get(f"rule_{stage}_wildcards_{run}")
    state = ended_as(folder, run, stage, progress.end, made)
    return known(stage, made.number if made else "", state, log=made.log if made else local_log(folder, stage, run))


def in_words(row: QueuedJob) -> str:
    return f"{row.state} ({row.reason})" if row.state == "PENDING" else row.state


def log_of(folder: Path, row: QueuedJob, submissions: Mapping[str, Submission]) -> str:
    made = submissions.get(row.comment)
    return made.log if made and made.number == row.number else str(row.log(folder / "logs/slurm"))


def local_log(folder: Path, stage: str, run: str) -> str:
    path = folder / "logs" / stage / f"{run}.log"
    return str(path) if path.exists() else ""


def last_stage(folder: Path, run: str) -> str:
    """The one that was started last; a later stage of an earlier training does not count."""
    started = [stage for stage in FOLDERS if (folder / "logs" / stage / f"{run}.log").exists()]
    return max(started, key=lambda stage: (folder / "logs" / stage / f"{run}.log").stat().st_mtime, default="train_model")


def ended_as(folder: Path, run: str, stage: str, end: Event | None, made: Submission | None) -> str:
    """Of a run that nothing works on."""
    results = folder / "results/runs" / run
    if made and made.state not in ("", "COMPLETED"):
        return made.state
    if (results / FOLDERS[stage] / "manifest.json").exists():
        return "done" if stage in ("evaluate_model", "predict_inputs") else f"{stage} done"
    if stage == "train_model" and end:
        stopped = end.get("why") or f"stopped by {', '.join(end.get('signals', []))}"
        return {"STOPPED": stopped, "FAILED": "FAILED"}.get(str(end["status"]), "killed")
    if not (results / FOLDERS[stage]).exists() and not local_log(folder, stage, run):
        return "not started"
    return "started" if any((folder / ".snakemake/locks").glob("*")) else "killed, or failed"


def progress_of(training: Path) -> Progress:
    journal = training / "journal.jsonl"
    attempt = last_attempt(journal)
    if attempt is None:
        return Progress(None, None, None, None)
    events = [
        event
        for event in read_events(journal, max(0, journal.stat().st_size - LAST_BYTES))[0]
        if event.get("attempt") == attempt["attempt"]
    ]
    trained = [event for event in events if event["event"] == "train"]
    step, steps = trained[-1]["step"] if trained else attempt["resume_step"], attempt.get("steps")
    end = events[-1] if events and events[-1]["event"] == "end" else None
    return Progress(step, steps, None if end else seconds_left(trained, steps), end)


def seconds_left(trained: list[Event], steps: int | None) -> float | None:
    """As long as the steps to come would take at the pace of the last ones, evaluations included."""
    if len(trained) < 2 or not steps:
        return None
    first, last = trained[0], trained[-1]
    pace = (last["time"] - first["time"]) / max(1, last["step"] - first["step"])
    return max(0.0, float((steps - last["step"]) * pace - (time.time() - last["time"])))
