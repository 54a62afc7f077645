"""Why SLURM lets a job wait, or has requeued or ended it, and what to do: Snakemake says nothing until a job has ended."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from snakemake_executor_plugin_slurm_steady.ends import failure
from snaketrain.config.schema import Compute
from snaketrain.slurm.client import ENDED_STATES, Slurm, SlurmError, noted_nodes
from snaketrain.slurm.jobs import QueuedJob

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
    """Is told what each look at the jobs has found. A failure here never disturbs the workflow."""

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

    def tell(self, rows: list[QueuedJob]) -> None:
        try:
            self.look(rows, time.monotonic())
        except (SlurmError, OSError):  # no answer; the next may be better
            pass
        except Exception as error:  # or the states of the jobs would not be known either
            self.tell_problem(f"the state of the SLURM jobs cannot be told ({type(error).__name__}: {error}); they are looked at again")

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
