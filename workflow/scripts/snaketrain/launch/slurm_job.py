"""A training within its SLURM job: it is restarted on the remaining nodes, and requeued when too few are left or its time runs out."""

import signal
import time
from pathlib import Path

from snaketrain.config.sizes import NodeCounts
from snaketrain.launch.node_checks import unfit_nodes
from snaketrain.launch.slurm_step import NodeSize, Step, StepEnding
from snaketrain.launch.workers import Restarts
from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.processes import OUT_OF_MEMORY
from snaketrain.runtime.ranks import FAILED, STOPPED_EARLY
from snaketrain.runtime.run_folder import end_of_journal, last_saved, stopped_by
from snaketrain.slurm.client import NODES_TO_EXCLUDE, OUTAGE, Allocation, Slurm, SlurmError, noted_nodes

OUT_OF_TIME = "SIGUSR1"
KILLED_BY_USR1 = 128 + signal.SIGUSR1  # a process that cannot save yet
SECONDS_UNTIL_ENDED = 600  # that SLURM may take to end a requeued job
SECONDS_BETWEEN_QUESTIONS = 10
SECONDS_TO_LEARN_NODES = 900
SECONDS_TO_GET_STEP = 1800  # while SLURM answers; during an outage it is asked as long as that lasts
SECONDS_EARLY = 60  # that SLURM may signal before the moment it was asked for


class SlurmJob:
    def __init__(
        self, slurm: Slurm, number: str, folder: Path, nodes: NodeCounts, size: NodeSize, restarts: Restarts, silence_seconds: float,
        here: str = "", save_before_limit: float = 0.0,
    ):  # fmt: skip
        """`here`: the name of this node in SLURM. `save_before_limit`: how many seconds before the time limit SLURM signals the processes."""
        self.slurm, self.folder, self.nodes, self.size, self.restarts = slurm, folder, nodes, size, restarts
        self.signals: list[int] = []  # that were received: SLURM is ending the job, and knows why
        self.silence_seconds, self.save_before_limit = silence_seconds, save_before_limit
        self.saved_before = last_saved(folder)
        self.job = self.allocation(number)
        self.ends_at = self.job.ends_at
        self.dead: set[str] = set()
        self.unfit: set[str] = set()
        self.refused_since: float | None = None  # SLURM has given no step since then
        # by a later start of the job, which may still be waiting for nodes: this node was cut off, and SLURM has not ended this start yet
        self.replaced = not self.job.hosts or (bool(here and self.job.script_host) and here != self.job.script_host)

    def allocation(self, number: str) -> Allocation:
        """Ask until SLURM answers, during an outage for as long as it lasts: the controller may be overloaded or unreachable from this node."""
        end, said = time.monotonic() + SECONDS_TO_LEARN_NODES, False
        while True:
            try:
                return self.slurm.allocation(number)
            except SlurmError as error:
                if time.monotonic() > end and not OUTAGE.search(str(error)):
                    raise
                if not said:
                    print(f"job {number}: {error}; asking again until SLURM answers", flush=True)
                    said = True
            time.sleep(SECONDS_BETWEEN_QUESTIONS)

    def train(self, command: list[str]) -> int:
        """The exit code of the job."""
        if self.replaced:
            self.say(f"SLURM has already restarted it on {self.job.script_host}" if self.job.hosts else "SLURM has already requeued it")
            self.wait(SECONDS_UNTIL_ENDED)  # as at the end
            return FAILED
        before, code, start = end_of_journal(self.folder), None, 0
        while code is None:
            self.leave_out_unfit()
            if self.signals:
                return 128 + self.signals[0]
            if len(usable := self.usable()) < self.nodes.fewest:
                code = self.start_without_unfit()
                break
            hosts, spare = usable[: self.nodes.most], usable[self.nodes.most :]
            number = self.size.processes
            self.say(
                f"{number} process{'es' * (number > 1)} on each of {', '.join(hosts)}" + (f"; spare: {', '.join(spare)}" if spare else "")
            )
            step = Step(self.slurm, self.job, hosts, self.size, self.silence_seconds, lambda: self.signals)
            code = self.exit_code(step.run(command, f"{self.job.restarts}.{start}"), stopped_by(self.folder, before))
            start += 1
        if code and not self.signals and self.started_elsewhere():
            # if this start failed, the Snakemake in it would delete the results of the one that has replaced it
            self.wait(SECONDS_UNTIL_ENDED)
        return code

    def exit_code(self, found: StepEnding, stopped: list[str]) -> int | None:
        """The job's exit code; None to start again, after the pause. `stopped`: the signals that stopped a training that has saved."""
        ending = found.ending
        if found.refused and not self.signals and self.may_get_step(found.refused):
            return ending.code if self.signals or self.started_elsewhere() else None
        self.refused_since = None
        if not ending.code:
            return 0
        if ending.memory_kill:
            self.say(f"{OUT_OF_MEMORY}{ending.memory_kill}")
        out_of_time = OUT_OF_TIME in stopped and not self.signals
        if out_of_time and self.has_saved():
            return self.requeue(ending.code, "its time ran out; saved")
        if ending.code == KILLED_BY_USR1 and not self.signals and self.has_saved():
            return self.requeue(ending.code, "its time ran out while the processes started; resuming from the last checkpoint")
        if not self.signals and self.is_being_preempted():  # it ended within the GraceTime, so that SLURM would count it as failed
            return self.requeue(ending.code, "it is preempted; resuming from the last checkpoint")
        if out_of_time:
            self.say(
                f"its time ran out before it took a step after {self.saved_before}; another start would end the same way: raise compute.minutes"
            )
            return ending.code
        if self.signals or not ending.lost:
            return STOPPED_EARLY if stopped else ending.code
        self.leave_out(found)
        if len(self.usable()) < self.nodes.fewest:
            return self.requeue(ending.code, f"{ending.lost}; {self.too_few_nodes()}; resuming from the last checkpoint")
        if (pause := self.restarts.pause_after(ending)) is None:
            return ending.code
        self.wait(pause)
        if self.signals or self.started_elsewhere():
            return ending.code
        if self.may_miss_signal():
            return self.requeue(ending.code, "its time runs out; resuming from the last checkpoint")
        return None

    def may_get_step(self, why: str) -> bool:
        """Whether to ask SLURM for a step again, after a pause: what it refuses for now is no failure of the training."""
        now = time.monotonic()
        if self.refused_since is None:
            self.refused_since = now
            minutes = SECONDS_TO_GET_STEP // 60
            self.say(f"SLURM lets it start nothing yet ({why}); asking again until it does, or for {minutes} minutes if it answers")
        elif OUTAGE.search(why):
            pass
        elif now - self.refused_since > SECONDS_TO_GET_STEP:
            return False
        self.wait(SECONDS_BETWEEN_QUESTIONS)
        return True

    def may_miss_signal(self) -> bool:
        """Whether SLURM may have signalled the time limit while no process ran, or may do so before a new process can catch the signal."""
        if not self.save_before_limit or self.ends_at is None or not self.has_saved():
            return False
        return time.time() > self.ends_at - self.save_before_limit - SECONDS_EARLY

    def has_saved(self) -> bool:
        """Whether this start of the job has saved a checkpoint. If it has not, requeueing it at its time limit could repeat for ever."""
        return last_saved(self.folder) > self.saved_before

    def is_being_preempted(self) -> bool:
        try:
            return self.slurm.is_being_preempted(self.job.number)
        except SlurmError:
            return False

    def usable(self) -> list[str]:
        return [host for host in self.job.hosts if host not in self.dead | self.unfit]

    def too_few_nodes(self) -> str:
        return f"{len(self.usable())} of {len(self.job.hosts)} nodes left, fewer than {self.nodes.fewest}"

    def leave_out_unfit(self) -> None:
        found = unfit_nodes(self.slurm, self.job.number, self.usable(), self.folder, self.size.python, self.say)
        for host, problem in found.items():
            self.say(f"{host} {problem}; it is left out")
        self.unfit |= found.keys()

    def start_without_unfit(self) -> int:
        """Requeue the job, unless it was requeued for these nodes before, and was given them again."""
        try:
            again = noted_nodes(self.folder, self.job.number) & self.unfit
        except ValueError as error:
            self.say(str(error))
            again = set()
        if again:
            self.say(f"{', '.join(sorted(again))} failed it before, and nobody has excluded them; giving up")
            return FAILED
        return self.requeue(FAILED, self.too_few_nodes())

    def leave_out(self, found: StepEnding) -> None:
        """Do without these nodes. Dead ones are released: SLURM would end the whole job when it notices them."""
        self.dead |= set(found.dead)
        self.unfit |= set(found.unfit)
        if found.dead:
            try:
                self.slurm.shrink(self.job.number, [host for host in self.job.hosts if host not in self.dead])
            except SlurmError as error:
                self.say(f"{', '.join(found.dead)} cannot be given up, so SLURM will requeue the job when it notices: {error}")

    def requeue(self, code: int, reason: str) -> int:
        """Returns `code`, which SLURM ignores, since it ends this start of the job itself."""
        if self.started_elsewhere():
            return code
        lost = sorted(self.dead | self.unfit)
        write_json(
            self.folder / NODES_TO_EXCLUDE, {"job": self.job.number, "nodes": lost}
        )  # only a pending job can be told: see snakemake_executor_plugin_slurm_steady/monitor.py
        try:
            self.slurm.requeue(self.job.number)
        except SlurmError as error:
            if not self.signals:  # SLURM, which may end scontrol together with this start before it has printed its answer
                self.say(f"{reason}, but it cannot be requeued: {error}")
                return code  # the job fails, and Snakemake retries it
        self.say(f"{reason}; requeued" + (f", to start without {', '.join(lost)}" if lost else ""))
        self.wait(SECONDS_UNTIL_ENDED)  # until SLURM ends this start; exiting earlier would count as a failure
        return code

    def started_elsewhere(self) -> bool:
        """Whether SLURM has started the job again on other nodes: a script on a node that was cut off may outlive its start."""
        told = False
        while not (self.signals or self.replaced):
            try:
                now = self.slurm.allocation(self.job.number)
                self.ends_at = now.ends_at  # which an administrator may have changed
                if now.restarts == self.job.restarts:
                    return False
                self.say("SLURM has already restarted it elsewhere")
                self.replaced = True
            except SlurmError:  # it does not answer, so nothing can be started either
                if not told:
                    self.say("SLURM does not answer; going on when it does")
                    told = True
                self.wait(SECONDS_BETWEEN_QUESTIONS)
        return self.replaced

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.signals and time.monotonic() < end:
            time.sleep(0.2)

    def say(self, message: str) -> None:
        print(f"job {self.job.number}: {message}", flush=True)
