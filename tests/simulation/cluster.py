"""SLURM's controller and its nodes: what happens to jobs. What its programs print is in programs.py."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from simulation.virtual_time import Process, World

PENDING, RUNNING, SUSPENDED, COMPLETING = "PENDING", "RUNNING", "SUSPENDED", "COMPLETING"
IN_QUEUE = {PENDING, RUNNING, SUSPENDED, COMPLETING}
KILL_WAIT = 30
NODE_TIMEOUT = 300  # SlurmdTimeout: until a node that does not answer is given up
REQUEUE_DELAY = 20  # really up to two minutes


@dataclass(eq=False)
class Node:
    name: str
    job: "Job | None" = None
    crashed: bool = False
    cut: bool = False  # its processes live on, and reach the file system, but not SLURM
    down: bool = False  # in SLURM's view
    unfit: bool = False  # it starts programs, but has no Python
    prolog_fails: bool = False
    processes: set[Process] = field(default_factory=set)

    @property
    def reachable(self) -> bool:
        return not (self.crashed or self.cut)

    @property
    def sound(self) -> bool:
        return self.reachable and not (self.down or self.unfit or self.prolog_fails)


@dataclass(eq=False)
class Job:
    number: str
    name: str
    comment: str
    folder: str
    nodes: tuple[int, int]
    seconds: float
    signal_seconds: float | None
    script: str
    excluded: set[str]
    submitted: float
    submitter: int  # process that ran sbatch
    log: Path
    confirmed: bool = False  # which was told the number
    state: str = PENDING
    reason: str = "None"
    restarts: int = 0
    hosts: list[Node] = field(default_factory=list)
    script_host: str = ""  # also of a job that has ended
    processes: list[Process] = field(default_factory=list)
    begin: float = 0.0
    started: float = 0.0
    held: str = ""  # the reason that squeue shows
    ended: float | None = None
    ended_by: str = ""  # who or what, for the judge
    requeues: int = 0


@dataclass
class Limits:
    """What differs between sites."""

    min_job_age: float = 300.0
    most_jobs: int | None = None  # MaxSubmitJobsPerUser


class Controller:
    def __init__(self, world: World, random: Random, nodes: int, limits: Limits, launch: Callable[[Job], Process]):
        self.world, self.random, self.limits, self.launch = world, random, limits, launch
        self.nodes = {f"n{i:03}": Node(f"n{i:03}") for i in range(nodes)}
        self.jobs: dict[str, Job] = {}  # those that SLURM still knows
        self.all: list[Job] = []
        self.away = False
        self.registering = False  # it has come back, and its nodes have not registered yet
        self.trouble = -1e9  # when it last failed to answer
        self._postponed: list[Callable[[], None]] = []
        self._looks = False

    # --- outages of the controller itself

    def go_away(self) -> None:
        self.away = True

    def come_back(self) -> None:
        self.away, postponed, self._postponed = False, self._postponed, []
        for action in postponed:
            action()
        self.look_soon()

    def come_back_slowly(self, seconds: float) -> None:
        def know_nodes() -> None:
            self.registering, self.trouble = False, self.world.now
            self.look_soon()

        self.registering = True
        self.come_back()
        self.world.after(seconds, know_nodes)

    def troubled_since(self, moment: float) -> bool:
        return self.away or self.registering or self.trouble >= moment

    def when_here(self, action: Callable[[], None]) -> None:
        if self.away:
            self._postponed.append(action)
        else:
            action()

    # --- what users ask

    def queued(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in IN_QUEUE]

    def submit(self, job: Job) -> None:
        before = [each for each in self.jobs.values() if each.comment == job.comment]
        for each in before:
            if each.state == "CANCELLED" and each.ended_by == "scancel by user" and each.confirmed and each.submitter == job.submitter:
                self.world.problem(f"job {each.number} ({job.comment}) was cancelled by the user, and is submitted again")
            elif each.state in IN_QUEUE and not each.ended_by:
                self.world.problem(f"job {each.number} ({job.comment}) is in the queue, and is submitted again")
        self.jobs[job.number] = job
        self.all.append(job)
        self.world.note(f"SLURM: job {job.number} ({job.comment}) submitted")
        self.look_soon()

    def cancel(self, job: Job, by: str) -> None:
        if job.state not in IN_QUEUE or job.ended_by:
            return
        job.ended_by = f"scancel by {by}"
        if job.state == PENDING:
            self.close(job, "CANCELLED")
        elif job.state != COMPLETING:  # else it is about to be queued again, and will not be
            self.terminate(job, lambda: self.close(job, "CANCELLED"))

    def requeue(self, job: Job, why: str) -> None:
        """Back into the queue under its number, once its processes have ended."""
        if job.state in (RUNNING, SUSPENDED) and not job.ended_by:
            job.requeues += 1
            self.world.note(f"SLURM: job {job.number} is requeued: {why}")
            self.terminate(job, lambda: self.pend_again(job))

    # --- what happens to jobs

    def look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self.world.after(2, self._look)

    def _look(self) -> None:
        self._looks = False
        if self.away or self.registering:
            return
        free = [node for node in self.nodes.values() if node.job is None and not node.down]
        for job in [job for job in self.jobs.values() if job.state == PENDING]:
            usable = [node for node in free if node.name not in job.excluded] if job.excluded else free
            if job.held:
                job.reason = job.held
            elif job.begin > self.world.now:
                job.reason = "BeginTime"
            elif len(usable) < job.nodes[0]:
                job.reason = "Resources"
            else:
                given = usable[: job.nodes[1]]
                free = [node for node in free if node not in given]
                self._start(job, given)

    def _start(self, job: Job, given: list[Node]) -> None:
        job.state, job.hosts, job.reason, job.ended_by, job.started = RUNNING, given, "None", "", self.world.now
        job.script_host = given[0].name
        for node in given:
            node.job = job
        start = job.restarts
        self.world.note(f"SLURM: job {job.number} ({job.comment}) starts on {','.join(node.name for node in given)}")
        if failing := [node for node in given if node.prolog_fails]:
            self.world.after(5, lambda: self.when_here(lambda: self._drain(job, start, failing)))
        elif all(node.reachable for node in given):
            process = self.launch(job)
            process.at_exit.append(lambda code: self._script_ended(job, start, code))
            if job.signal_seconds:
                self._at_limit(job, start, job.seconds - job.signal_seconds, lambda: self.signal(job, signal.SIGUSR1, steps_only=True))
            self._at_limit(job, start, job.seconds, lambda: self._out_of_time(job))
        else:  # the prolog does not answer
            self.world.after(60, lambda: self.when_here(lambda: self.requeue(job, "launch failed")))

    def _drain(self, job: Job, start: int, failing: list[Node]) -> None:
        for node in failing:
            node.down = node.prolog_fails  # or it was repaired meanwhile
        if job.restarts == start:
            self.requeue(job, "its prolog failed")
            self.hold(job, "launch failed requeued held", 600)

    def hold(self, job: Job, reason: str, seconds: float) -> None:
        """Until the user releases it."""

        def release() -> None:
            job.held = ""
            self.look_soon()

        job.held = reason
        self.world.after(seconds, release)

    def _at_limit(self, job: Job, start: int, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if job.restarts == start and job.state == RUNNING and not job.ended_by:
                action()

        self.world.after(seconds, lambda: self.when_here(act))

    def _out_of_time(self, job: Job) -> None:
        job.ended_by = "time limit"
        self.terminate(job, lambda: self.close(job, "TIMEOUT"))

    def out_of_memory(self, job: Job) -> None:
        if job.state == RUNNING and not job.ended_by:
            job.ended_by = "memory"
            for process in job.processes:
                process.kill()
            self.when_here(lambda: self.close(job, "OUT_OF_MEMORY"))

    def _script_ended(self, job: Job, start: int, code: int) -> None:
        def act() -> None:
            # COMPLETING: SLURM ends the job, and does not ask how its script ended
            if job.restarts == start and job.state == RUNNING and not job.ended_by and job.hosts[0].reachable:
                self.close(job, "FAILED" if code else "COMPLETED")

        self.when_here(act)

    def signal(self, job: Job, number: int, steps_only: bool = False) -> None:
        for process in job.processes:
            if process.alive and self.nodes[process.host].reachable and not (steps_only and process is job.processes[0]):
                process.signals.append(number)

    def terminate(self, job: Job, then: Callable[[], None]) -> None:
        """SIGTERM, KillWait, SIGKILL."""
        start, job.state = job.restarts, COMPLETING
        self.signal(job, signal.SIGTERM)
        for process in job.processes:
            if process.frozen:
                process.thaw()

        def finish() -> None:
            if job.state == COMPLETING and job.restarts == start:
                self._kill(job)
                self.close(job, "CANCELLED") if job.ended_by.startswith("scancel") else then()

        def look(seconds_left: float) -> None:
            if seconds_left <= 0 or not any(process.alive for process in job.processes):
                self.when_here(finish)
            else:
                self.world.after(2, lambda: look(seconds_left - 2))

        self.world.after(1, lambda: look(KILL_WAIT))

    def _kill(self, job: Job) -> None:
        for process in job.processes:
            if self.nodes[process.host].reachable:
                process.kill()

    def pend_again(self, job: Job) -> None:
        self._free(job)
        job.state, job.restarts, job.begin = PENDING, job.restarts + 1, self.world.now + REQUEUE_DELAY
        self.world.after(REQUEUE_DELAY + 1, self.look_soon)

    def close(self, job: Job, state: str) -> None:
        self._kill(job)
        self._free(job)
        job.state, job.ended = state, self.world.now
        self.world.note(f"SLURM: job {job.number} ({job.comment}) ended as {state}{f' by {job.ended_by}' if job.ended_by else ''}")
        self.world.after(self.limits.min_job_age, lambda: self.jobs.pop(job.number, None))

    def _free(self, job: Job) -> None:
        for node in job.hosts:
            node.job = None
        job.hosts, job.processes = [], []
        self.look_soon()

    def shrink(self, job: Job, kept: set[str]) -> None:
        """A running job releases its other nodes, and SLURM no longer cares about them."""
        for node in job.hosts:
            if node.name not in kept:
                node.job = None
        job.hosts = [node for node in job.hosts if node.name in kept]
        job.processes = [process for process in job.processes if process.host in kept]

    # --- nodes

    def lose(self, node: Node, crash: bool) -> None:
        """Its power, or its network."""
        node.crashed, node.cut = crash, not crash
        if crash:
            for process in list(node.processes):
                process.kill()
        job, start = node.job, node.job.restarts if node.job else 0
        self.world.after(NODE_TIMEOUT, lambda: self.when_here(lambda: self._give_up(node, job, start)))

    def _give_up(self, node: Node, job: Job | None, start: int) -> None:
        if not node.reachable:
            node.down = True
        if job and node in job.hosts and job.restarts == start and not job.ended_by:
            self.requeue(job, f"{node.name} died")

    def heal(self, node: Node) -> None:
        def register() -> None:
            if node.reachable:
                node.down = False
                if (job := node.job) and not any(process.alive for process in node.processes):
                    self.requeue(job, f"{node.name} was booted again")
                for process in list(node.processes):  # slurmd ends what belongs to no job of this node any more
                    if node.job is None or process not in node.job.processes:
                        process.kill()
                self.look_soon()

        node.crashed = node.cut = False
        self.world.after(5, lambda: self.when_here(register))
