"""The console of a workflow that runs jobs: one line when a job begins, one when it ends, and how far trainings are in between.

Jobs write to their logs alone. What is shown of them comes from there and from the journals of trainings, on this machine as on a cluster.
Snakemake's own messages are complete in its log, `.snakemake/log`, and on the console with `--verbose` and in a dry run.
"""

import io
import logging
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Protocol, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase

from snakemake_logger_plugin_snaketrain.messages import (
    COMMAND_FAILED,
    FAILED,
    INTERRUPTED,
    SUBMITTED,
    is_chatter,
    jobs_in,
    jobs_to_do,
    number_of_jobs,
    plain_error,
    short_reason,
    shorten_second_interrupt,
    with_changes,
)
from snakemake_logger_plugin_snaketrain.running_jobs import RunningJob, seconds_left
from snaketrain.orchestration.job_errors import last_error, last_traceback
from snaketrain.runtime.journal import duration
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.slurm.jobs import Work

if TYPE_CHECKING:
    from snakemake.dag import DAG
    from snakemake.logging import LoggerManager

LIVE_SECONDS, LOOK_SECONDS = 0.5, 2.0  # between two looks at the running jobs, in a terminal and elsewhere
SECONDS_FOR_EACH = 0.02  # of many jobs: each look asks the file system, and hundreds of them wait in the queue of a cluster
LONGEST_WAIT_SECONDS = 10.0  # for events that Snakemake has reported, and this has not shown yet
COLORS, RESET = {logging.ERROR: "\x1b[31m", logging.WARNING: "\x1b[33m"}, "\x1b[0m"
LINES_OF_OTHERS = 4  # at the bottom of a terminal with more live lines than it can show
LEFT_OUT = ("resources_info", "job_started", "progress", "group_info", "rulegraph")


class Display(io.TextIOBase):
    """A terminal whose last lines are live, in the place of a stream. Whatever is written replaces the live lines, which are drawn again below it."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._lock = threading.RLock()
        self._lines: Sequence[str] = ()
        self._drawn = 0

    def write(self, text: str) -> int:
        with self._lock:
            self._erase()
            self.stream.write(text)
            if text.endswith("\n"):
                self._draw()
            self.stream.flush()
        return len(text)

    def show(self, lines: Sequence[str]) -> None:
        """The live lines from now on; none but in a terminal."""
        with self._lock:
            self._erase()
            self._lines = lines if self.is_live else ()
            self._draw()
            self.stream.flush()

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class declares an attribute
        return self.stream.encoding

    def _erase(self) -> None:
        if self._drawn:
            self.stream.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _draw(self) -> None:
        """Cut, not wrapped: a line that takes two rows could not be erased."""
        width, height = shutil.get_terminal_size()
        room = max(1, height - LINES_OF_OTHERS)
        shown = list(self._lines[:room])
        if len(self._lines) > room:
            shown[-1] = f"... and {len(self._lines) - room + 1} more"
        for line in shown:
            self.stream.write(f"{line[: width - 1]}\n")
        self._drawn = len(shown)


class Workflow(Protocol):
    dag: "DAG"
    logger_manager: "LoggerManager"


class Console(LogHandlerBase):
    """In a dry run all messages are shown as Snakemake has formatted them. With `--verbose` its own console takes the place of this one."""

    def __post_init__(self) -> None:
        settings = self.common_settings
        self.executes = not settings.dryrun
        self.display = Display(sys.stdout if settings.stdout else sys.stderr)
        self.has_colors = self.display.is_live and not settings.nocolor and "NO_COLOR" not in os.environ
        self.running: dict[int, RunningJob] = {}
        self.of_failed_group: set[int] = set()  # jobs of a group that did not make it fail
        self.unseen: dict[int, str] = {}  # the rules of jobs without log and output, which are not ours
        self.finished: dict[int, str] = {}  # rules
        self.unfinished: dict[int, str] = {}  # what happened to a job, until another try finishes it
        self.is_interrupted = False
        self.total = 0
        self.planned: Counter[str] = Counter()  # jobs by rule, when the workflow began
        self.seconds: dict[str, list[float]] = {}  # that finished jobs took, by stage
        self.count_jobs: Callable[[], int] = lambda: self.total
        self._events: Queue[logging.LogRecord] = Queue()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.events: dict[str, Callable[[JsonObject], None]] = {
            "run_info": self._run_info, "job_info": self._job_info, "job_finished": self._job_finished, "job_error": self._job_error,
            "group_error": self._group_error, "error": self._error,
        }  # fmt: skip

    @property
    def writes_to_stream(self) -> bool:
        return not (self.common_settings.verbose or self.common_settings.debug_dag)

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return False  # Snakemake's leaves out what `--quiet` says

    @property
    def has_formatter(self) -> bool:
        return False

    @property
    def needs_rulegraph(self) -> bool:
        return False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.writes_to_stream:
            return
        event = str(getattr(record, "event", None) or "")
        try:
            if event in self.events and (self.executes or event == "error"):
                self.events[event](vars(record))
            elif event == "workflow_started" or (event in LEFT_OUT and self.executes):
                pass
            elif submitted := SUBMITTED.match(str(record.msg)):
                self._submitted(*submitted.groups())
            elif event or not is_chatter(str(record.msg or "")):
                self.is_interrupted = self.is_interrupted or str(record.msg).startswith(INTERRUPTED)
                self.print(with_changes(self.format(record)), record.levelno)
        except Exception:  # a mistake here must not end the workflow
            self.handleError(record)

    def print(self, text: str, level: int = logging.INFO) -> None:
        color = COLORS.get(level, "") if self.has_colors else ""
        self.display.write(f"{color}{text}{RESET if color else ''}\n")

    # --- while jobs run

    def start(self, workflow: Workflow) -> None:
        """Show what jobs are at, from now on. The workflow grows when runs are decided to continue."""
        idle = sum(job.rule.name == "all" for job in workflow.dag.needrun_jobs())
        self.count_jobs = lambda: len(workflow.dag) - idle
        self._events = workflow.logger_manager.queue_listener.queue
        if self.display.is_live:
            sys.stderr = self.display  # what other threads print
        self._thread = threading.Thread(target=self._follow, name="console", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Once everything is shown that Snakemake has reported until now, which it does from another thread."""
        if self._thread:
            until = time.monotonic() + LONGEST_WAIT_SECONDS
            while self._events.unfinished_tasks and time.monotonic() < until:
                time.sleep(0.01)
            self._over.set()
            self._thread.join()
            self._thread = None
            self.display.show([])
            if sys.stderr is self.display:
                sys.stderr = self.display.stream

    def close(self) -> None:
        self.stop()  # where the workflow has ended by an error of its own
        if self.is_interrupted and logging.lastResort:  # to which Snakemake's last words go
            logging.lastResort.addFilter(shorten_second_interrupt)
        super().close()

    def _follow(self) -> None:
        seconds = LIVE_SECONDS if self.display.is_live else LOOK_SECONDS
        while not self._over.wait(max(seconds, SECONDS_FOR_EACH * len(self.running))):
            for job in list(self.running.values()):
                self._look(job)
                if not self.display.is_live and (line := job.due_line()):
                    self.print(line)
            self.display.show(self._live_lines())

    def _live_lines(self) -> list[str]:
        """Of each running job, and of all: `12 of 40 jobs, 2 running, 5 waiting, eta 6:00`."""
        jobs = list(self.running.values())
        waiting = sum(not job.has_begun for job in jobs)
        to_do = self.planned - Counter(self.finished.values())
        left = seconds_left(jobs, to_do, self.seconds) if self.planned.total() == self.count_jobs() else None
        parts = [f"{len(self.finished)} of {self.total} jobs", f"{len(jobs) - waiting} running", f"{waiting} waiting" if waiting else ""]
        parts.append(f"eta {duration(left)}" if left else "")
        return [*(job.live_line for job in jobs), ", ".join(filter(None, parts))] if jobs else []

    def _look(self, job: RunningJob) -> None:
        with suppress(OSError, KeyError, TypeError):  # of a file that is being replaced; the next look may find more
            for line in job.look():
                self.print(line, logging.WARNING)

    # --- what Snakemake reports

    def _run_info(self, fields: JsonObject) -> None:
        self.total, self.planned = number_of_jobs(fields["stats"]), Counter(jobs_in(fields["stats"]))
        self.print(jobs_to_do(fields["stats"]))

    def _job_info(self, fields: JsonObject) -> None:
        from snaketrain.orchestration.stages import folder_of_job  # which reads the settings: other workflows do without

        log, output = fields["log"], fields["output"]
        if not log and not output:
            self.unseen |= {fields["jobid"]: fields["rule_name"]} if fields["rule_name"] != "all" else {}
            return
        folder = folder_of_job(fields["rule_name"], output[0] if output else "")
        name = " ".join(map(str, fields["wildcards"].values()))
        job = RunningJob(fields["jobid"], fields["rule_name"], name, Path(log[0] if log else ""), folder)
        self.running[job.number] = job
        self.print("  ".join(filter(None, (job.title, short_reason(fields["reason"])))))

    def _submitted(self, number: str, slurm_job: str, log: str) -> None:
        job = self.running.get(int(number)) if number.isdigit() else None
        # several jobs that are submitted as one have a number that means nothing; the folder of their log has their names
        title = job.title if job else str(Work.of(Path(log).parent.name.replace("group_", "rule_", 1)))
        self.print(f"{title}  SLURM job {slurm_job}")

    def _job_finished(self, fields: JsonObject) -> None:
        number = fields["job_id"]
        job = self.running.get(number)
        if rule := job.stage if job else self.unseen.get(number):
            self.finished[number] = rule
            self.unfinished.pop(number, None)
            self.total = self.count_jobs()
        if job:
            del self.running[number]
            self._look(job)
            self.seconds.setdefault(job.stage, []).append(job.seconds)
            reached = f"  {job.progress.figures}" if job.has_progress else ""
            self.print(f"{job.title}  done in {duration(job.seconds)}{reached}  ({len(self.finished)} of {self.total} jobs)")

    def _group_error(self, fields: JsonObject) -> None:
        """Snakemake reports all jobs of a group as failed; the one that ran last is."""
        jobs = [job for each in fields["job_error_info"] if (job := self.running.get(each["jobid"]))]
        failed = max(jobs, key=lambda job: job.last_written, default=None)
        self.of_failed_group |= {job.number for job in jobs if job is not failed}

    def _job_error(self, fields: JsonObject) -> None:
        job = self.running.pop(fields["jobid"], None)
        self.unfinished[fields["jobid"]] = "failed"
        if job is None or job.number in self.of_failed_group:
            self.of_failed_group.discard(fields["jobid"])
            return
        self._look(job)
        said = str(fields["rule_msg"] or "").strip()  # by the executor
        no_log = "stopped by SIGINT" if self.is_interrupted else "it left no log"
        error = last_error(job.log, job.folder) if job.has_written else said or no_log
        traceback = last_traceback(job.log, error) if job.has_written else []
        also = [said] if said and said != error else []
        if error.startswith("stopped by "):
            self.unfinished[job.number] = "stopped"
        how = error if error.startswith(("stopped by ", "killed by ", "ended with ")) else f"failed: {error}"
        if error.startswith("killed by ") and job.has_progress:
            perhaps = ", perhaps for memory" if error == "killed by SIGKILL" else ""
            how = f"{error}, after step {job.progress.step}{perhaps}; the same command resumes it"
        self.print(f"{job.title}  {how}", logging.ERROR)
        self.print("\n".join(f"  {line}" for line in [*traceback, *also, f"log: {', '.join(fields['log'])}"]))

    def _error(self, fields: JsonObject) -> None:
        text = plain_error(str(fields["msg"]))
        if text == FAILED:
            text = f"{self.left()} The same command tries again; what is finished is kept."
        if not COMMAND_FAILED.fullmatch(text):
            self.print(text, logging.ERROR)

    def left(self) -> str:
        """`4 of 9 jobs did not finish: 1 failed, 3 were not started.`"""
        total = self.count_jobs()
        left = total - len(self.finished)
        ended = Counter(self.unfinished.values())
        counts = {"failed": ended["failed"], "stopped": ended["stopped"] + len(self.running)}
        counts["not started"] = left - sum(counts.values())
        return f"{left} of {total} jobs did not finish: {', '.join(f'{count} {what}' for what, count in counts.items() if count)}."


def console_of(manager: "LoggerManager") -> Console | None:
    """The console that a workflow was started with; None if that is Snakemake's or another one."""
    return next((each for each in manager.get_log_handlers() if isinstance(each, Console) and each.writes_to_stream), None)
