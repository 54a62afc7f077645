"""What workflows in this folder have submitted to SLURM, and whether they saw its end: it outlives a killed workflow.

`.snakemake/slurm_jobs.jsonl` has a line for each submission, adoption and end of a job.
"""

import json
import os
import platform
import shlex
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.runtime.journal import all_events
from snaketrain.runtime.manifests import digest, file_digest
from snaketrain.runtime.processes import start_ticks
from snaketrain.runtime.strict_json import Json
from snaketrain.slurm.client import ENDED_STATES, ENDING_SECONDS, QueuedJob, Slurm, Work, comment, jobs_here, wait_for_end

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


def submission(job: "Job", settings: "ExecutorSettings") -> str:
    """The command with which the plugin will submit a job, as an `sbatch --test-only`."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    account, partition = (job.resources.get(f"slurm_{name}") for name in ("account", "partition"))
    names = {
        "run_uuid": f"{settings.jobname_prefix or ''}x",  # a job of another prefix is not followed: its state is asked for by its name
        "slurm_logfile": os.devnull,
        "comment_str": "x",
        "workdir": "",
        "account": f"-A {shlex.quote(str(account))}" if account and not settings.no_account else "",
        "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
    }
    command = get_submit_command(job, names, settings=settings) + set_gres_string(job)
    return " ".join(command.replace("--parsable", "--test-only").split()) + " --wrap true"


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


# --- What a killed workflow left behind: jobs that are what would be submitted are adopted; the others save and end before new ones start.

ALIVE_STATES = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED")  # in another, a job is about to end or to be requeued


class StillFollowed(Exception):
    """Another workflow, which is alive, follows the job."""


@dataclass(frozen=True)
class Left:
    """A job that need not be submitted."""

    submission: Submission
    is_done: bool


class LeftOver:
    def __init__(self, slurm: Slurm, submissions: Submissions, report: Callable[[str], None]):
        self.slurm, self.submissions, self.report = slurm, submissions, report
        self.kept: dict[str, Left] = {}  # by comment

    def take(self, job: "Job") -> Left | None:
        """What is left of this job, once: a job that is tried again is submitted."""
        return self.kept.pop(comment(job), None)

    def settle(
        self,
        jobs: Iterable["Job"],
        settings: "ExecutorSettings",
        is_ready: Callable[["Job"], bool],
        is_done: Callable[["Job"], bool],
    ) -> None:
        """Before the first submission. `is_ready`: nothing that the job reads will be made again; `is_done`: its results are those that it would make."""
        wanted, earlier = {comment(job): job for job in jobs}, self.submissions.latest()
        queued = self._settled_in_queue(set().union(*(Work.of(name).results for name in wanted)))
        self._refuse_if_followed(queued, earlier)
        to_end = []
        for row in queued:
            job, made = wanted.get(row.comment), earlier.get(row.comment)
            if job and made and made.number == row.number and is_ready(job) and fingerprint(job, settings) == made.fingerprint:
                self.kept[row.comment] = Left(made, is_done=False)
                self.report(
                    f"{row} was left by an earlier workflow in this folder and is what would be submitted now: it is adopted. Log: {made.log}"
                )
            else:
                to_end.append(row)
        for name, job in wanted.items():
            made = earlier.get(name)
            if made and not made.state and all(row.comment != name for row in queued) and is_ready(job) and is_done(job):
                self.kept[name] = Left(made, is_done=True)
        self._end(to_end)

    def _settled_in_queue(self, results: set[tuple[str, str]]) -> list[QueuedJob]:
        """The jobs that write these results, once none of them is about to end, or to be queued again."""
        end, reported = time.monotonic() + ENDING_SECONDS, False
        while True:
            queued = [row for row in jobs_here(self.slurm) if row.state not in ENDED_STATES]
            found = [row for row in queued if row.work.results & results]
            if not (ending := [row for row in found if row.state not in ALIVE_STATES]) or time.monotonic() >= end:
                break
            if not reported:
                self.report(f"Waiting for {', '.join(map(str, ending))}, left by an earlier workflow in this folder, to end.")
                reported = True
            time.sleep(1)
        if unneeded := [row for row in queued if row not in found and row.state in ALIVE_STATES]:  # of runs that were removed, for example
            self.report(
                f"{', '.join(map(str, unneeded))}: left by an earlier workflow in this folder, and not among the jobs to do now. Not ended; to "
                f"end what is not wanted any more: scancel {' '.join(row.number for row in unneeded)}"
            )
        return found

    def _refuse_if_followed(self, queued: list[QueuedJob], earlier: dict[str, Submission]) -> None:
        for row in queued:
            made = earlier.get(row.comment)
            if made and made.number == row.number and made.is_followed and not made.is_ours:
                raise StillFollowed(
                    f"{row}: snakemake (process {made.pid}) still follows it in this folder. End that one first (Ctrl-C, or kill {made.pid}), "
                    "or let it finish."
                )

    def _end(self, rows: list[QueuedJob]) -> None:
        if not rows:
            return
        self.report(
            f"{', '.join(map(str, rows))}: left by an earlier workflow in this folder with other settings, resources, code or inputs than now. "
            "Cancelling; a training saves, and resumes in a new job."
        )
        self.slurm.cancel(*(row.number for row in rows))
        wait_for_end(self.slurm, {row.number: str(row.work) for row in rows}, self.report)
