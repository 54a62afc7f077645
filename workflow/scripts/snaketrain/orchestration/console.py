"""The console of a workflow that runs jobs: one line when a job begins, one when it ends, and how far trainings are in between.

Jobs write to their logs alone. What is shown of them comes from there and from the journals of trainings, on this machine as on a cluster.
Snakemake's own messages are complete in its log, `.snakemake/log`, and on the console with `--verbose` and in a dry run.
"""

import io
import logging
import os
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from snaketrain.config.schema import Settings
from snaketrain.orchestration.known_stages import folder_of_job
from snaketrain.orchestration.running_jobs import RunningJob, last_error, last_traceback
from snaketrain.runtime.journal import duration
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.slurm.client import Work

LINES_OF_OTHERS = 4  # at the bottom of a terminal with more live lines than it can show


class Display(io.TextIOBase):
    """Takes the place of a stream. Whatever is written replaces the live lines, which are drawn again below it."""

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


LIVE_SECONDS, LOOK_SECONDS = 0.5, 2.0  # between two looks at the running jobs, in a terminal and elsewhere
COLORS, RESET = {logging.ERROR: "\x1b[31m", logging.WARNING: "\x1b[33m"}, "\x1b[0m"
LEFT_OUT = ("resources_info", "job_started", "progress", "group_info", "rulegraph")


class Console(logging.Handler):
    def __init__(self, theirs: "logging.StreamHandler[TextIO]", executes: Callable[[], bool]):
        """`theirs`: Snakemake's handler, which shows everything as usual unless the process `executes` jobs."""
        super().__init__()
        self.theirs, self.executes = theirs, executes
        self.display = Display(theirs.stream)
        self.running: dict[int, RunningJob] = {}
        self.of_failed_group: set[int] = set()  # jobs of a group that did not make it fail
        self.unseen: set[int] = set()  # jobs without log and output, of rules that are not ours
        self.finished: set[int] = set()
        self.unfinished: dict[int, str] = {}  # what happened to a job, until another try finishes it
        self.total = 0
        self.count_jobs: Callable[[], int] = lambda: self.total
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        for each in theirs.filters:
            self.addFilter(each)
        self.events: dict[str, Callable[[JsonObject], None]] = {
            "run_info": self._run_info, "job_info": self._job_info, "job_finished": self._job_finished, "job_error": self._job_error,
            "group_error": self._group_error, "error": self._error,
        }  # fmt: skip

    def emit(self, record: logging.LogRecord) -> None:
        event = str(getattr(record, "event", None) or "")
        try:
            if event in self.events and (self.executes() or event == "error"):
                self.events[event](vars(record))
            elif event == "workflow_started" or (event in LEFT_OUT and self.executes()):
                pass
            elif submitted := SUBMITTED.match(str(record.msg)):
                self._submitted(*submitted.groups())
            elif event or not is_chatter(str(record.msg or "")):
                self.print(self.theirs.format(record), record.levelno)
        except Exception:  # a mistake here must not end the workflow
            self.handleError(record)

    def print(self, text: str, level: int = logging.INFO) -> None:
        color = COLORS.get(level, "") if self.display.is_live and "NO_COLOR" not in os.environ else ""
        self.display.write(f"{color}{text}{RESET if color else ''}\n")

    # --- while jobs run

    def start(self, count_jobs: Callable[[], int]) -> None:
        """Show what jobs are at, from now on. `count_jobs`: of the whole workflow, which grows when runs are decided to continue."""
        self.count_jobs = count_jobs
        if self.display.is_live:
            sys.stderr = self.display  # what other threads print
        self._thread = threading.Thread(target=self._follow, name="console", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread:
            self._over.set()
            self._thread.join()
            self._thread = None
            self.display.show([])
            if sys.stderr is self.display:
                sys.stderr = self.display.stream

    def _follow(self) -> None:
        while not self._over.wait(LIVE_SECONDS if self.display.is_live else LOOK_SECONDS):
            for job in list(self.running.values()):
                self._look(job)
                if not self.display.is_live and (line := job.due_line()):
                    self.print(line)
            self.display.show([job.live_line for job in list(self.running.values())])

    def _look(self, job: RunningJob) -> None:
        with suppress(OSError, KeyError, TypeError):  # of a file that is being replaced; the next look may find more
            for line in job.look():
                self.print(line, logging.WARNING)

    # --- what Snakemake reports

    def _run_info(self, fields: JsonObject) -> None:
        self.total = number_of_jobs(fields["stats"])
        self.print(jobs_to_do(fields["stats"]))

    def _job_info(self, fields: JsonObject) -> None:
        log, output = fields["log"], fields["output"]
        if not log and not output:
            self.unseen |= {fields["jobid"]} if fields["rule_name"] != "all" else set()
            return
        folder = folder_of_job(fields["rule_name"], output[0] if output else "")
        name = " ".join(map(str, fields["wildcards"].values()))
        job = RunningJob(fields["jobid"], fields["rule_name"], name, Path(log[0] if log else ""), folder)
        self.running[job.number] = job
        self.print("  ".join(filter(None, (job.title, *log, short_reason(fields["reason"])))))

    def _submitted(self, number: str, slurm_job: str, log: str) -> None:
        job = self.running.get(int(number)) if number.isdigit() else None
        # several jobs that are submitted as one have a number that means nothing; the folder of their log has their names
        title = job.title if job else str(Work.of(Path(log).parent.name.replace("group_", "rule_", 1)))
        self.print(f"{title}  SLURM job {slurm_job}  {log.removeprefix(f'{os.getcwd()}/')}")

    def _job_finished(self, fields: JsonObject) -> None:
        number = fields["job_id"]
        if number in self.running or number in self.unseen:
            self.finished.add(number)
            self.unfinished.pop(number, None)
            self.total = self.count_jobs()
        if job := self.running.pop(number, None):
            self._look(job)
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
        error = last_error(job.log, job.folder) if job.has_written else said or "it left no log"
        traceback = last_traceback(job.log, error) if job.has_written else []
        also = [said] if said and said != error else []
        if error.startswith("stopped by "):
            self.unfinished[job.number] = "stopped"
        how = error if error.startswith(("stopped by ", "killed by ", "ended with ")) else f"failed: {error}"
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


def install(logger: logging.Logger, executes: Callable[[], bool]) -> Console | None:
    """In place of Snakemake's handler for the console, unless it is to be verbose."""
    theirs = next((handler for handler in logger.handlers if handler.name == "DefaultStreamHandler"), None)
    if not isinstance(theirs, logging.StreamHandler) or logger.level <= logging.DEBUG:
        return None
    console = Console(theirs, executes)
    logger.removeHandler(theirs)
    logger.addHandler(console)
    return console


# --- Snakemake's messages in fewer words: chatter is left out, of a reason the essence is kept, an error loses its traceback.

CHATTER = (
    "Building DAG of jobs",
    "Select jobs to execute",
    "Execute ",
    "Using shell:",
    "host: ",
    "Assuming unrestricted shared filesystem usage",
    "Group jobs: inactive",
    "Complete log(s):",
    "Exiting because a job execution failed",
    "Removing output files of failed job",
    "Removing temporary output",
    "Shutting down, this might take some time",
    "Finished jobid",
    "Elapsed time:",
    "SLURM run ID:",
    "Both 'sacctmgr' and 'sshare' returned empty results",  # for each job, on a cluster without accounting
)
COMMAND_FAILED = re.compile(r"Command .* returned non-zero exit status -?\d+\.", re.S)  # of which the job's own error says more
FAILED = "At least one job did not complete successfully."
PLACE = re.compile(r"^\w*(?:Error|Exception)(?: in (?:rule \w+)?(?: in )?(?:file \".*\", line \d+)?)?:$")
FRAME = re.compile(r"^ +File \".*\", line \d+, in ")
WRAPPED = re.compile(r"^Error:\n  \w+: (.*?)(?=^Wildcards:$|\Z)", re.M | re.S)  # an exception in a function of a rule
NO_RULE = re.compile(r"^No rule to produce (.*) \(if you use input functions", re.M)
SUBMITTED = re.compile(r"Job (\S+) has been submitted with SLURM jobid (\S+) \(log: (.*)\)\.$")
SETTING = re.compile(rf"\b((?:{'|'.join([*Settings.model_fields, 'search', 'source', 'files', 'code'])})\.[\w.]+)=")
REASONS = {
    "Forced execution": "as requested",
    "Incomplete output files": "was interrupted",
    "Updated input files": "its input changed",
    "Set of input files has changed": "it reads other inputs",
    "Code has changed": "its rule changed",
    "Software environment definition": "its software environment changed",
}


def is_chatter(text: str) -> bool:
    return text.strip().startswith(CHATTER) or not text.strip()


def jobs_to_do(stats: Mapping[str, int]) -> str:
    """`7 jobs: fetch_data 1, ...`, without the rule `all`, which runs nothing."""
    counts = {rule: number for rule, number in stats.items() if rule not in ("all", "total")}
    total = number_of_jobs(stats)
    return f"{total} job{'s' if total > 1 else ''}: {', '.join(f'{rule} {number}' for rule, number in counts.items())}"


def number_of_jobs(stats: Mapping[str, int]) -> int:
    return sum(number for rule, number in stats.items() if rule not in ("all", "total"))


def short_reason(reason: str) -> str:
    """Why a job runs again; nothing if it runs for the first time, or follows another one."""
    found = [short for words, short in REASONS.items() if words in reason]
    if "Params have changed" in reason:
        names = dict.fromkeys("code" if name.startswith("code.") else name for name in SETTING.findall(reason))
        found.append(f"{', '.join(names) or 'a setting'} changed")
    return f"({'; '.join(found)})" if found else ""


def plain_error(text: str) -> str:
    """An error without the place in Snakemake's files that it passed through."""
    if wrapped := WRAPPED.search(text):
        return wrapped[1].strip()
    if missing := NO_RULE.search(text):
        return (
            f"No rule makes {missing[1]}. Ask for a file, such as results/runs/<run>/selection/manifest.json, or for a rule such as `all`."
        )
    lines = [line for line in text.splitlines() if not FRAME.match(line) and not PLACE.match(line)]
    return "\n".join(lines).strip() or text
