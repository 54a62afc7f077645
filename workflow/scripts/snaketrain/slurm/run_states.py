"""What each run of this folder is at: by SLURM's queue where there is one, and by what the runs have written."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from snaketrain.runtime.journal import Event, last_attempt, read_events
from snaketrain.runtime.ownership import living_process
from snaketrain.slurm.client import ENDED_STATES, QueuedJob, Work
from snaketrain.slurm.submissions import Submission

FOLDERS = {  # in this order
    "train_model": "training",
    "select_checkpoint": "selection",
    "evaluate_model": "evaluation",
    "predict_inputs": "predictions",
}
TRAINS = ("train_model", "train_rung", "train_trunk")
LAST_BYTES = 262_144  # of a journal, which may be long


@dataclass(frozen=True)
class RunState:
    """Of a run; or of a job of another kind, such as the preparation of data, which has its name instead."""

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
    training: str = ""  # the folder; none of a job that does not train

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
    """A line for each run, or for each of its jobs in the queue, and one for each other job, such as the preparation of data.

    None: SLURM does not answer.
    """
    if queue is None:
        submissions = {name: made if made.state else replace(made, state="unknown") for name, made in submissions.items()}
    waiting = [row for row in queue or () if row.state not in ENDED_STATES]
    runs = {path.name for path in (folder / "results/runs").glob("*") if path.is_dir()}
    runs |= {row.work.run for row in waiting if row.work.stage in (*FOLDERS, "train_rung")}
    jobs = [of_job(folder, run_of(row.work, runs), row, submissions) for row in waiting]
    idle = [of_run(folder, run, submissions) for run in runs - {job.run for job in jobs}]
    return sorted(idle + jobs, key=lambda each: (each.run not in runs, each.run, int(each.job or 0)))


def run_of(work: Work, runs: Iterable[str]) -> str:
    """The run that a job is of, or the name of what else it works on."""
    if work.stage != "evaluate_set":
        return work.run
    return max((run for run in runs if work.name.startswith(f"{run}_")), key=len, default=work.name)


def of_run(folder: Path, run: str, submissions: Mapping[str, Submission]) -> RunState:
    """Of a run without a job in the queue."""
    training, stage = folder / "results/runs" / run / "training", last_stage(folder, run)
    progress = progress_of(training)
    known = partial(RunState, run, step=progress.step, steps=progress.steps, training=str(training))
    if process := living_process(training):
        log = local_log(folder, "train_model", run)
        return known("train_model", state="RUNNING", seconds_left=progress.seconds_left, nodes="here", log=log, process=process)
    made = last_submission(run, stage, submissions)
    state = ended_as(folder, run, stage, progress.end, made)
    return known(stage, made.number if made else "", state, log=made.log if made else local_log(folder, stage, run))


def of_job(folder: Path, name: str, row: QueuedJob, submissions: Mapping[str, Submission]) -> RunState:
    stage = row.work.stage
    training = folder / "results" / ("trunks" if stage == "train_trunk" else "runs") / name / "training"
    progress = progress_of(training)
    state = f"{row.state} ({row.reason})" if row.state == "PENDING" else row.state
    left = progress.seconds_left if stage in TRAINS and row.state == "RUNNING" else None
    return RunState(
        name, stage, row.number, state, progress.step, progress.steps, left, row.nodes, log_of(folder, row, submissions),
        in_queue=True, training=str(training) if stage in TRAINS else "",
    )  # fmt: skip


def last_submission(run: str, stage: str, submissions: Mapping[str, Submission]) -> Submission | None:
    """Of a stage of a run. A training may have been submitted rung by rung, or as one job with what follows it."""
    wanted = {stage} | ({"train_rung"} if stage == "train_model" else set())
    found = [made for name, made in submissions.items() if (work := Work.of(name)).run == run and wanted & set(work.stages)]
    return max(found, key=lambda made: int(made.number), default=None)


def log_of(folder: Path, row: QueuedJob, submissions: Mapping[str, Submission]) -> str:
    made = submissions.get(row.comment)
    return made.log if made and made.number == row.number else str(row.log(folder / "logs/slurm"))


def local_log(folder: Path, stage: str, run: str) -> str:
    logs = [folder / "logs" / stage / f"{run}.log"]
    logs += (folder / "logs/train_rung" / run).glob("*.log") if stage == "train_model" else ()
    return str(max(there, key=lambda log: log.stat().st_mtime)) if (there := [log for log in logs if log.exists()]) else ""


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
