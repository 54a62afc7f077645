"""Why SLURM lets a job wait, requeued or ended it, and what to do. Snakemake only says that a job failed."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from snaketrain.config.schema import Compute
from snaketrain.runtime.processes import OUT_OF_MEMORY
from snaketrain.slurm.client import ENDED_STATES, Slurm, SlurmError, jobs_here, noted_nodes
from snaketrain.slurm.jobs import QueuedJob

# --- Why a job failed, where its state and its log give it away. What would fail again is not retried.

LOG_BYTES = 200_000  # the end of a log, which holds all starts of a job
NEW_START = re.compile(r"^job \d+: \d+ processes on each of .*$", re.M)  # launch_slurm.py again, after a requeue
MEMORY = re.compile(
    rf"^.*(?:{OUT_OF_MEMORY}(?P<ours>.*)|exceeded memory limit \((?P<used>\d+) > (?P<limit>\d+)\).*|oom[-_]kill event.*)$", re.M
)
NO_FOLDER = re.compile(r"couldn't chdir to `")
NO_PYTHON = re.compile(rf"^\S*slurm_script: .*{re.escape(sys.executable)}: (?P<why>.*)$", re.M)  # of the shell that runs a job's script
NO_CONFIGURATION = re.compile(
    "Could not establish a configuration source|Unable to process configuration file|fetch_config: DNS SRV lookup failed"
)


@dataclass(frozen=True)
class Failure:
    """What follows `SLURM job 41 (train_model wide) ...`, and whether another try may end otherwise."""

    what: str
    worth_retrying: bool
    node_unfit: bool = False  # the one that ran its script, on which another try would end the same way


def failure(slurm: Slurm, number: str, state: str, log: Path, asked_mb: int | None = None) -> Failure | None:
    """None if neither state nor log give a reason away."""
    text = end_of(log)
    sign = last_memory_line(text or "")
    if state == "OUT_OF_MEMORY" or sign:
        return of_memory(slurm, number, sign, asked_mb)
    if state == "CANCELLED":
        return Failure("was cancelled and is not retried: start snakemake again to resume it", worth_retrying=False)
    if state == "FAILED" and (text is None or NO_FOLDER.search(text)):
        how = "was started in another folder" if text else f"left no log at {log}"
        return Failure(
            f"{how}: its node probably does not see the working directory {os.getcwd()}. Check with `srun ls -d {os.getcwd()}`, and work in a folder "
            "that all nodes share",
            worth_retrying=True,
            node_unfit=True,
        )
    if state == "FAILED" and text and (missing := NO_PYTHON.search(text)):
        return Failure(f"could not start {sys.executable} on its node: {missing['why']}", worth_retrying=True, node_unfit=True)
    if text and NO_CONFIGURATION.search(text):
        return Failure(
            "found no configuration of SLURM on its node: export SLURM_CONF before snakemake is started, with a path that the nodes share, or ask "
            "for a link /etc/slurm/slurm.conf there",
            worth_retrying=False,
        )
    return None


def end_of(log: Path) -> str | None:
    """The end of a log, from the job's last start on; None if there is no log."""
    try:
        os.listdir(log.parent)  # NFS may know an older state of the folder, until it is read
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    starts = list(NEW_START.finditer(text))
    return text[starts[-1].start() :] if starts else text


def last_memory_line(text: str) -> re.Match[str] | None:
    found = list(MEMORY.finditer(text))
    return next((match for match in reversed(found) if match["ours"] or match["used"]), found[-1] if found else None)


def of_memory(slurm: Slurm, number: str, sign: re.Match[str] | None, asked_mb: int | None) -> Failure:
    details = [f"{asked_mb} MB were asked for on each node"] if asked_mb else []
    if sign and sign["ours"]:
        details.append(sign["ours"])
    elif sign and sign["used"]:
        details.append(f"{int(sign['used']) // 2**20} MB were in use, over a limit of {int(sign['limit']) // 2**20} MB")
    else:
        with contextlib.suppress(SlurmError, ValueError):  # most often there is no accounting
            if (used_mb := slurm.most_memory_mb(number)) is not None:
                details.append(f"{used_mb} MB were in use by a process")
    known = f" ({'; '.join(details)})" if details else ""
    if sign and "of the machine" in (sign["ours"] or ""):
        return Failure(f"may have been killed for its memory{known}: it is retried; if that happens again, raise compute.memory_mb", True)
    return Failure(
        f"was killed for its memory{known}. It would need as much again, so it is not retried: raise compute.memory_mb, or mem_mb in the profile "
        "for the other stages",
        worth_retrying=False,
    )


# --- While jobs run.

SECONDS_BETWEEN_LOOKS = 30
PATIENCE_SECONDS = 600  # a job may wait this long before the wait is reported
SECONDS_BETWEEN_WAITS = 60  # between two lines about jobs that wait for the same reason

# reasons that waiting does not remove are reported at once
STUCK = {
    "PartitionNodeLimit": "the partition allows fewer nodes per job: lower compute.nodes",
    "PartitionTimeLimit": "the partition has a shorter time limit: lower compute.minutes; a longer training resumes in the next job",
    "PartitionDown": "the partition is closed: choose another one",
    "PartitionInactive": "the partition is closed: choose another one",
    "BadConstraints": "no node meets the constraints: correct compute.sbatch",
    "JobHeld": "it is held; release it with `scontrol release {number}`",
    "launch failed requeued held": "its node failed to start it; release it with `scontrol release {number}`",
    "Invalid": "SLURM does not let it run: cancel it, and correct account, qos or partition",
}
WAITING = {
    "Resources": "the cluster is full",
    "Priority": "other jobs come first",
    "BeginTime": "SLURM lets it start only later: as `--begin` asks for, or some two minutes after it was requeued",
    "ReqNodeNotAvail": "nodes are down or reserved: `sinfo --list-reasons`",
    "Nodes required for job are DOWN": "nodes are down or reserved: `sinfo --list-reasons`",
    "QOS": "a limit of your quality of service is reached",
    "Assoc": "a limit of your account is reached",
}
ENDED = {
    "TIMEOUT": "it reached its time limit: raise compute.minutes, or compute.save_before_limit_seconds if it had no time to save",
    "NODE_FAIL": "SLURM gave up one of its nodes, and does not requeue it",
    "PREEMPTED": "another job took its place, and the partition does not requeue (PreemptMode)",
    "FAILED": "see its log",
}


def advice_of(known: dict[str, str], reason: str) -> str | None:
    return next((advice for words, advice in known.items() if reason.startswith(words)), None)


class JobMonitor:
    """Looks at the jobs now and then. A failure here never disturbs the workflow."""

    def __init__(
        self, slurm: Slurm, logs: Path, report: Callable[[str], None], ranges: dict[str, Compute], folders: dict[str, Path] | None = None,
        cancelling: Callable[[], bool] = lambda: False,
    ):  # fmt: skip
        """By stage and name, such as `train_model wide`, also of jobs that are planned later.

        `ranges`: the settings of what runs on a range of nodes, or with a spare; `folders`: of what trains, evaluates or predicts; `cancelling`:
        whether the workflow itself is cancelling its jobs.
        """
        self.slurm, self.logs, self.report, self.ranges = slurm, logs, report, ranges
        self.folders, self.cancelling = folders or {}, cancelling
        self.before: dict[str, QueuedJob] = {}
        self.ran_on: dict[str, str] = {}
        self.waits_since: dict[str, float] = {}
        self.reported: set[tuple[str, str]] = set()
        self.said: dict[str, float] = {}  # when a wait for each reason was last reported
        self.problems: set[str] = set()  # of looks, each told once
        self.to_resize: set[str] = set()  # requeued jobs with a range of nodes
        self.to_exclude: set[str] = set()  # requeued jobs that may have noted unfit nodes

    def run(self) -> None:
        while True:
            try:
                self.look(jobs_here(self.slurm), time.monotonic())
            except (SlurmError, OSError):  # no answer; the next may be better
                pass
            except Exception as error:  # or nothing more would be told of any job
                self.tell_problem(f"the state of the SLURM jobs cannot be told ({type(error).__name__}: {error}); they are looked at again")
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def tell_problem(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.add(problem)
            self.report(problem)

    def look(self, rows: list[QueuedJob], now: float) -> None:
        waiting: dict[str, list[QueuedJob]] = {}  # long, or for ever, which was not told yet; by reason
        for row in rows:
            before = self.before.get(row.number)
            self.before[row.number] = row
            if row.state == "RUNNING":
                self.ran_on[row.number] = row.nodes
            if row.state == "PENDING":
                self.pending(row)
                began = self.waits_since.setdefault(row.number, now)
                if (row.number, row.reason) not in self.reported and (advice_of(STUCK, row.reason) or now - began >= PATIENCE_SECONDS):
                    waiting.setdefault(row.reason, []).append(row)
            else:
                self.waits_since.pop(row.number, None)
            if row.state in ENDED_STATES and row.state != "COMPLETED" and before and before.state not in ENDED_STATES:
                self.ended(row)
        for reason, found in waiting.items():
            if now - self.said.get(reason, -SECONDS_BETWEEN_WAITS) >= SECONDS_BETWEEN_WAITS:
                self.said[reason] = now
                self.waits(found, reason, now)

    def pending(self, row: QueuedJob) -> None:
        if row.number in self.ran_on:
            why = self.why_requeued(self.ran_on.pop(row.number))
            self.say(row, f"was requeued{why}; a training resumes from its last checkpoint")
            self.to_exclude.add(row.number)
            if str(row.work) in self.ranges:
                self.to_resize.add(row.number)
        for numbers, act in ((self.to_exclude, self.exclude_unfit), (self.to_resize, self.restore_range)):
            if row.number in numbers:
                with contextlib.suppress(SlurmError):  # tried again at the next look; other jobs must not wait for it
                    act(row)
                    numbers.discard(row.number)

    def ended(self, row: QueuedJob) -> None:
        if row.state == "CANCELLED" and self.cancelling():
            return
        why = f"{ENDED.get(row.state, 'SLURM could not run it')}; it is retried as often as `retries` in the profile allows"
        found = failure(self.slurm, row.number, row.state, row.log(self.logs))
        self.say(row, f"ended as {row.state}: it {found.what}" if found else f"ended as {row.state}: {why}")

    def waits(self, rows: list[QueuedJob], reason: str, now: float) -> None:
        """One line for all jobs that wait for the same reason; the first one is the example."""
        self.reported |= {(row.number, reason) for row in rows}
        first = rows[0]
        minutes = (now - min(self.waits_since[row.number] for row in rows)) / 60
        why = advice_of(STUCK, reason) or advice_of(WAITING, reason) or "SLURM gives no other reason"
        what = f"waiting for {minutes:.0f} minutes ({reason}): {why.format(number=first.number)}"
        if len(rows) == 1:
            self.say(first, f"has been {what}")
        else:
            self.report(f"{len(rows)} SLURM jobs have been {what}. The first is {first.number} ({first.work}). Log: {first.log(self.logs)}")

    def say(self, row: QueuedJob, what: str) -> None:
        self.report(f"{row} {what}. Log: {row.log(self.logs)}")

    def restore_range(self, row: QueuedJob) -> None:
        """SLURM 22.05 remembers the number of nodes a job had and would wait until that many are free."""
        compute = self.ranges[str(row.work)]
        self.slurm.resize(row.number, compute.counts.asked, tasks=compute.counts.fewest_asked * compute.threads)

    def exclude_unfit(self, row: QueuedJob) -> None:
        """What its last start found unfit, and SLURM takes for good. A running job cannot have itself excluded from nodes."""
        folder, noted = self.folders.get(str(row.work)), set[str]()
        try:
            noted = noted_nodes(folder, row.number) if folder else noted
        except ValueError as error:
            self.tell_problem(str(error))
        if noted:
            down = self.slurm.down_nodes(",".join(sorted(noted)))
            if unfit := sorted(noted - down.keys()):
                self.slurm.exclude(row.number, unfit)
                undo = f"`scontrol update JobId={row.number} ExcNodeList=`"
                self.say(row, f"will start without {', '.join(unfit)}, which failed it ({undo} permits all nodes again)")

    def why_requeued(self, nodes: str) -> str:
        """Which of its nodes SLURM has given up, if any, in SLURM's words."""
        try:
            down = self.slurm.down_nodes(nodes) if nodes else {}
        except SlurmError:
            return ""
        return f", and SLURM says that {' and '.join(f'{node} is {state}' for node, state in down.items())}" if down else ""
