"""What workflows in this folder have submitted to SLURM, and whether they saw its end: it outlives a killed workflow.

`.snakemake/slurm_jobs.jsonl` has a line for each submission, adoption and end of a job.
"""

import json
import os
import platform
import shlex
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.runtime.journal import all_events
from snaketrain.runtime.processes import start_ticks
from snaketrain.runtime.strict_json import Json

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


def sbatch_command(job: "Job", settings: "ExecutorSettings", name: str, log: str, comment: str) -> str:
    """The command with which Snakemake's plugin for SLURM submits a job, without its script."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    account, partition = (job.resources.get(f"slurm_{name}") for name in ("account", "partition"))
    names = {
        "run_uuid": name,
        "slurm_logfile": log,
        "comment_str": comment,
        "workdir": "",
        "account": f"-A {shlex.quote(str(account))}" if account and not settings.no_account else "",
        "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
    }
    return get_submit_command(job, names, settings=settings) + set_gres_string(job)


def stamps(outputs: Iterable[str]) -> dict[str, Stamp]:
    return {str(path): _stamp(Path(path)) for path in outputs}


def all_written(outputs: Iterable[str], before: Mapping[str, Stamp]) -> bool:
    """Whether all results exist, and none of them dates from before the job was submitted."""
    return all(stamp is not None and stamp != before.get(path) for path, stamp in stamps(outputs).items())


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:  # it does not exist, or NFS has another error for that; raised here it would end the thread that queries states
        return None
    return found.st_mtime_ns, found.st_ino


def _ourselves() -> tuple[str, int, int | None]:
    return platform.node(), os.getpid(), start_ticks(os.getpid())
