"""What workflows in this folder have submitted to SLURM, and whether they saw its end: it outlives a killed workflow.

`.snakemake/slurm_jobs.jsonl` has a line for each submission, adoption and end of a job.
"""

import json
import os
import platform
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snaketrain.runtime.journal import all_events
from snaketrain.runtime.manifests import digest, file_digest
from snaketrain.runtime.processes import start_ticks
from snaketrain.runtime.strict_json import Json
from snaketrain.slurm.checks import submission
from snaketrain.slurm.client import ENDED_STATES, OUTAGE, Slurm, SlurmError, comment, job_name, jobs_here
from snaketrain.slurm.jobs import Work

if TYPE_CHECKING:
    from snakemake.jobs import Job
    from snakemake_executor_plugin_slurm import ExecutorSettings


FILE = Path(".snakemake/slurm_jobs.jsonl")
Stamp = tuple[int, int] | None  # changes whenever a file is written; None if it does not exist


@dataclass(frozen=True)
class Submission:
    """A job of SLURM, as the workflow knows it that submitted or adopted it last."""

    number: str
    comment: str
    fingerprint: str  # of all that decides what the job does
    log: str
    outputs: dict[str, Stamp]  # before it was submitted
    host: str = ""  # of the workflow, which is a process
    pid: int = 0
    started: int | None = None
    state: str = ""  # in which the workflow saw it end

    @property
    def is_ours(self) -> bool:
        return (self.host, self.pid, self.started) == _ourselves()

    @property
    def is_followed(self) -> bool:
        """Whether the workflow that submitted or adopted it is a process of this machine that still runs."""
        return self.host == platform.node() and self.started is not None and start_ticks(self.pid) == self.started


class Submissions:
    def __init__(self, folder: Path = Path()):
        self.file, self._writing = folder / FILE, threading.Lock()

    def submitted(self, made: Submission) -> None:
        self._write(
            "submitted", made.number, comment=made.comment, fingerprint=made.fingerprint, log=made.log,
            outputs={path: stamp and list(stamp) for path, stamp in made.outputs.items()}, workflow=list(_ourselves()),
        )  # fmt: skip

    def adopted(self, number: str) -> None:
        self._write("adopted", number, workflow=list(_ourselves()))

    def ended(self, number: str, state: str) -> None:
        self._write("ended", number, state=state)

    def latest(self) -> dict[str, Submission]:
        """The last job of each stage of each run, by its comment."""
        jobs: dict[str, Submission] = {}
        for event in all_events(self.file):
            number = event["job"]
            if event["event"] == "submitted":
                outputs = {path: (stamp[0], stamp[1]) if stamp else None for path, stamp in event["outputs"].items()}
                jobs.pop(number, None)  # the last one submitted comes last
                jobs[number] = Submission(number, event["comment"], event["fingerprint"], event["log"], outputs, *event["workflow"])
            elif event["event"] == "adopted" and number in jobs:
                host, pid, started = event["workflow"]
                jobs[number] = replace(jobs[number], host=host, pid=pid, started=started)
            elif event["event"] == "ended" and number in jobs:
                jobs[number] = replace(jobs[number], state=event["state"])
        return {made.comment: made for made in jobs.values()}

    def written_unseen(self) -> set[str]:
        """The outputs that jobs have written whose end no workflow has seen: Snakemake's own records of them are of earlier ones."""
        unseen = [made for made in self.latest().values() if not made.state]
        return {path for made in unseen for path, before in made.outputs.items() if _stamp(Path(path)) not in (before, None)}

    def _write(self, event: str, number: str, **content: Json) -> None:
        line = json.dumps({"event": event, "job": number, **content, "time": round(time.time(), 3)}) + "\n"
        self.file.parent.mkdir(exist_ok=True)
        with self._writing, open(self.file, "a", encoding="utf-8") as file:
            file.write(line)


def fingerprint(job: "Job", settings: "ExecutorSettings") -> str:
    """The same for two jobs that ask for the same resources and run the same command with the same settings, code and inputs."""
    inputs = {str(path): file_digest(path) for path in sorted(map(str, job.input))}
    params = [str(param) for each in getattr(job, "jobs", [job]) for param in each.params]  # of a group, those of all its jobs
    return digest(submission(job, settings), sorted(params), inputs)


def stamps(outputs: Iterable[str]) -> dict[str, Stamp]:
    return {str(path): _stamp(Path(path)) for path in outputs}


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:  # it does not exist, or NFS has another error for that; raised here it would end the thread that queries states
        return None
    return found.st_mtime_ns, found.st_ino


def _ourselves() -> tuple[str, int, int | None]:
    return platform.node(), os.getpid(), start_ticks(os.getpid())


# --- Submission that outlasts outages of slurmctld and limits on submitted jobs, under names that tell what a job is.
#
# On its own the plugin counts every submission that SLURM refuses for a moment as a failed job, which uses up `retries` within seconds.

LIMIT = re.compile("MaxSubmitJob|GrpSubmitJob|accounting/QOS policy", re.IGNORECASE)
UNKNOWN = "Unable to contact slurm controller: it is not known whether an earlier submission was accepted"
OUTAGE_PATIENCE_SECONDS = 1800
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0


class SubmittingExecutor(Executor):  # type: ignore[misc]  # the plugin has no types
    def __init__(self, *arguments: object, slurm: Slurm) -> None:
        self.slurm = slurm
        self.following: dict[str, SubmittedJobInfo] = {}  # by number: submitted or adopted, and not known to have ended
        self.names: set[str] = set()  # of all jobs that were followed
        self.unconfirmed: set[str] = set()  # comments of jobs that SLURM may have taken although it did not say so
        self.fingerprints: dict[str, str] = {}  # of jobs that are being submitted, by comment
        self.submission = threading.local()  # this thread's current submission: its job's name, and its outcome
        self.cancelling = threading.Event()
        super().__init__(*arguments)  # last: it starts the thread that queries states

    @property
    def run_uuid(self) -> str:
        """What the plugin calls the job that it submits; and the jobs whose states it asks for.

        Its own choice is one name for all jobs of a workflow, a UUID. `--name` takes several, so a job has a name that tells what it is.
        """
        submitting: str | None = getattr(self.submission, "name", None)
        return submitting or ",".join(sorted({self.name_of(info.job) for info in self.following.copy().values()} or self.names)) or "none"

    @run_uuid.setter
    def run_uuid(self, uuid: str) -> None:
        """Set by the plugin, and not used."""

    def name_of(self, job: "Job") -> str:
        prefix = self.workflow.executor_settings.jobname_prefix
        return f"{prefix}_{job_name(job)}" if prefix else job_name(job)

    def submit(self, job: "Job") -> None:
        """Retrying during an outage or at a limit; any other refusal is reported at once."""
        started, pause, reason = time.monotonic(), FIRST_PAUSE_SECONDS, ""
        self.fingerprints[comment(job)] = fingerprint(job, self.workflow.executor_settings)
        while not self.cancelling.is_set():
            if comment(job) in self.unconfirmed and self.cancel_unconfirmed(job):
                self.unconfirmed.discard(comment(job))
            refusal = UNKNOWN if comment(job) in self.unconfirmed else self.try_to_submit(job)
            if refusal is None:
                break
            if OUTAGE.search(refusal):
                self.unconfirmed.add(comment(job))
            before, reason = reason, self.why_wait(refusal, time.monotonic() - started)
            if not reason:  # Snakemake may submit it once more
                super()._report_job_error_threadsafe(SubmittedJobInfo(job), refusal)
                return
            if reason != before:
                self.logger.warning(f"{Work.of(comment(job))} is not submitted yet: {reason}.")
            self.cancelling.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if not reason:
            return
        if self.cancelling.is_set():
            if comment(job) in self.unconfirmed:
                self.cancel_unconfirmed(job)
        else:
            self.logger.info(f"{Work.of(comment(job))} was submitted after {time.monotonic() - started:.0f} seconds.")

    def try_to_submit(self, job: "Job") -> str | None:
        """What SLURM refuses, and why; None if it has taken the job."""
        self.submission.refusal, self.submission.name = None, self.name_of(job)
        try:
            super().run_job(job)
        finally:
            self.submission.name = None
        refusal: str | None = self.submission.refusal
        return refusal

    def _report_job_error_threadsafe(self, job_info: "SubmittedJobInfo", msg: str) -> None:
        """The plugin calls this in the thread that submits; `submit` decides whether to try again."""
        if getattr(self.submission, "name", None):
            self.submission.refusal = msg
        else:
            super()._report_job_error_threadsafe(job_info, msg)

    def why_wait(self, message: str, seconds: float) -> str:
        """Why a refused submission is worth another try; empty if it is not."""
        if OUTAGE.search(message) and seconds < OUTAGE_PATIENCE_SECONDS:
            return f"SLURM does not answer; trying again for {OUTAGE_PATIENCE_SECONDS // 60} minutes"
        if LIMIT.search(message) and self.jobs_ahead():
            return "a limit on submitted jobs is reached; trying again as long as you have jobs in the queue"
        return ""

    def cancel_unconfirmed(self, job: "Job") -> bool:
        """A job may be in the queue although the answer to its submission was lost; a second one would train in the same folder.

        Whether none is there any more: while SLURM does not answer, that is not known.
        """
        try:
            waiting = [row.number for row in jobs_here(self.slurm) if row.comment == comment(job) and row.state not in ENDED_STATES]
            if lost := [number for number in waiting if number not in self.following]:
                self.slurm.cancel(*lost)
        except SlurmError:
            return False
        return True

    def jobs_ahead(self) -> bool:
        """Whether this user has jobs in the queue, as far as is known. Many waiting submissions ask this at once."""
        try:
            return self.slurm.has_jobs(max_age_seconds=FIRST_PAUSE_SECONDS) or self.slurm.has_jobs()
        except SlurmError:
            return True
