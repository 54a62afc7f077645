"""Why a job of SLURM waits, was queued again, or has ended: a line each, with its number and its log.

One that was queued again, and may have a range of nodes, is given the whole range again.
Snakemake itself only tells that a job has failed.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from snaketrain.config.schema import Compute
from snaketrain.slurm.checks import NOT_RETRIED, OVER, jobs_here
from snaketrain.slurm.client import QueuedJob, Slurm, SlurmError

SECONDS_BETWEEN_LOOKS = 30
PATIENCE_SECONDS = 600  # a job may wait so long before that is told

# reasons that time alone does not remove are told at once
STUCK = {
    "PartitionNodeLimit": "the partition gives no job so many nodes: lower compute.nodes",
    "PartitionTimeLimit": "the partition lets no job run so long: lower compute.minutes; a longer training goes on in the next job",
    "PartitionDown": "the partition is closed: choose another one",
    "PartitionInactive": "the partition is closed: choose another one",
    "BadConstraints": "no node is as asked: correct compute.sbatch",
    "JobHeld": "it is held: `scontrol release {number}`",
    "launch failed requeued held": "its node did not start it: `scontrol release {number}`",
    "Invalid": "SLURM does not let it run: cancel it, and correct account, qos or partition",
}
WAITING = {
    "Resources": "the cluster is full",
    "Priority": "other jobs come first",
    "BeginTime": "it was queued again a moment ago",
    "ReqNodeNotAvail": "nodes are down or reserved: `sinfo --list-reasons`",
    "Nodes required for job are DOWN": "nodes are down or reserved: `sinfo --list-reasons`",
    "QOS": "a limit of your quality of service is reached",
    "Assoc": "a limit of your account is reached",
}
ENDED = {
    "TIMEOUT": "its time was over: raise compute.minutes, or compute.save_before_limit_seconds if it had no time to save",
    "NODE_FAIL": "its node died",
    "FAILED": "its log says why",
}


class JobMonitor(threading.Thread):
    """Tells what happens to the jobs; it never disturbs the workflow."""

    def __init__(self, slurm: Slurm, logs: Path, tell: Callable[[str], None], ranges: dict[str, Compute]):
        """`ranges`: of the jobs that take as many nodes as there are, by their comment."""
        super().__init__(daemon=True)
        self.slurm, self.logs, self.tell, self.ranges = slurm, logs, tell, ranges
        self.before: dict[str, QueuedJob] = {}
        self.ran_on: dict[str, str] = {}
        self.waits_since: dict[str, float] = {}
        self.told: set[tuple[str, str]] = set()
        self.to_ask_again: set[str] = set()  # jobs of a range of nodes that were queued again

    def run(self) -> None:
        while True:
            with contextlib.suppress(SlurmError, ValueError):  # no answer, or one that cannot be read; the next may be better
                self.look(jobs_here(self.slurm), time.monotonic())
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def look(self, rows: list[QueuedJob], now: float) -> None:
        for row in rows:
            before = self.before.get(row.number)
            self.before[row.number] = row
            if row.state == "RUNNING":
                self.ran_on[row.number] = row.nodes
            if row.state == "PENDING":
                if row.number in self.ran_on:
                    if row.comment in self.ranges:
                        self.to_ask_again.add(row.number)
                    self.say(
                        row, f"was queued again{self.why_lost(self.ran_on.pop(row.number))}; a training goes on from its last checkpoint"
                    )
                if row.number in self.to_ask_again:
                    with contextlib.suppress(SlurmError):  # the next look tries again; the other jobs are looked at meanwhile
                        self.ask_as_at_first(row, self.ranges[row.comment])
                        self.to_ask_again.discard(row.number)
                self.wait(row, now - self.waits_since.setdefault(row.number, now))
            else:
                self.waits_since.pop(row.number, None)
            if row.state in OVER and row.state != "COMPLETED" and before and before.state not in OVER:
                why = f"{ENDED.get(row.state, 'SLURM could not run it')}; it is started again as often as `retries` of the profile says"
                self.say(row, f"ended as {row.state}: {NOT_RETRIED.get(row.state, why)}")

    def wait(self, row: QueuedJob, seconds: float) -> None:
        stuck = next((advice for reason, advice in STUCK.items() if row.reason.startswith(reason)), None)
        if (row.number, row.reason) in self.told or not (stuck or seconds >= PATIENCE_SECONDS):
            return
        self.told.add((row.number, row.reason))
        why = stuck or next((words for reason, words in WAITING.items() if row.reason.startswith(reason)), "SLURM says no more")
        self.say(row, f"waits since {seconds / 60:.0f} minutes ({row.reason}): {why.format(number=row.number)}")

    def say(self, row: QueuedJob, what: str) -> None:
        self.tell(f"{row} {what}. Log: {row.log(self.logs)}")

    def ask_as_at_first(self, row: QueuedJob, compute: Compute) -> None:
        """SLURM 22.05 remembers the tasks of all nodes that it gave, and would wait until there are as many nodes again."""
        self.slurm.resize(row.number, compute.nodes, tasks=compute.node_counts[0] * compute.threads)

    def why_lost(self, nodes: str) -> str:
        """Which of these nodes SLURM has given up."""
        try:
            down = self.slurm.down_nodes(nodes) if nodes else []
        except SlurmError:
            return ""
        return f", since {' and '.join(down)} died" if down else ""
