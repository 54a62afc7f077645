"""What goes wrong in a history: each kind of fault with its own probability, some of them many times."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from simulation.cluster import PENDING, RUNNING, SUSPENDED, Controller, Job, Node
from simulation.jobs import Machines
from simulation.virtual_time import World


@dataclass(frozen=True)
class Kind:
    chance: float  # that a history has it at all
    most: int  # how often then


KINDS = {
    "controller away": Kind(0.6, 4),
    "controller overloaded": Kind(0.4, 3),
    "controller returns slowly": Kind(0.4, 3),
    "limit full": Kind(0.4, 4),
    "squeue garbled": Kind(0.4, 3),
    "answer of sbatch lost": Kind(0.4, 6),
    "node unfit": Kind(0.3, 3),
    "prolog fails": Kind(0.3, 3),
    "preemption": Kind(0.6, 30),
    "node crashes": Kind(0.5, 6),
    "node is cut off": Kind(0.6, 8),
    "out of memory": Kind(0.4, 4),
    "user cancels a job": Kind(0.4, 5),
    "job held": Kind(0.3, 5),
    "job suspended": Kind(0.3, 8),
    "rank killed": Kind(0.5, 10),
}


class Faults:
    """Those of the cluster and the jobs; what the user does to the workflow is in user.py."""

    def __init__(self, world: World, random: Random, controller: Controller, machines: Machines, seconds: float):
        self.world, self.random, self.controller, self.machines, self.seconds = world, random, controller, machines, seconds
        self.happened: Counter[str] = Counter()  # those that took effect
        self.actions: dict[str, Callable[[], bool]] = {
            "controller away": self.outage,
            "controller overloaded": self.overload,
            "controller returns slowly": lambda: self.outage(slowly=True),
            "limit full": self.fill_limit,
            "squeue garbled": self.garble,
            "answer of sbatch lost": self.lose_answer,
            "node unfit": self.make_unfit,
            "prolog fails": self.break_prolog,
            "preemption": self.preempt,
            "node crashes": lambda: self.lose_node(crash=True),
            "node is cut off": lambda: self.lose_node(crash=False),
            "out of memory": self.out_of_memory,
            "user cancels a job": self.cancel,
            "job held": self.hold,
            "job suspended": self.suspend,
            "rank killed": self.kill_rank,
        }

    def plan(self, certain: tuple[str, ...]) -> None:
        """`certain`: only these, as often as can be; otherwise each has its chance."""
        for name, kind in KINDS.items():
            if name in certain if certain else self.random.random() < kind.chance:
                for _ in range(kind.most if certain else self.random.randint(1, kind.most)):
                    self.at_random(name)

    def at_random(self, name: str) -> None:
        self.world.after(self.random.uniform(0, self.seconds), lambda: self.strike(name))

    def strike(self, name: str) -> None:
        if self.actions[name]():
            self.happened[name] += 1

    def some(self, *states: str) -> Job | None:
        found = [job for job in self.controller.jobs.values() if job.state in states and not job.ended_by]
        return self.random.choice(found) if found else None

    def sound_node(self) -> Node | None:
        """One that may fail: most always work."""
        found = [node for node in self.controller.nodes.values() if node.sound]
        return self.random.choice(found) if len(found) > len(self.controller.nodes) * 2 / 3 else None

    def outage(self, slowly: bool = False) -> bool:
        if self.controller.away:
            return False
        seconds = self.random.choice([20, 60, 300, 1200, 2400]) * self.random.uniform(0.5, 1.2)
        self.world.note(f"FAULT: slurmctld is away for {seconds:.0f} s")
        self.controller.go_away()
        if slowly:
            registering = self.random.choice([10, 60, 240])
            self.world.after(seconds, lambda: self.controller.come_back_slowly(registering))
        else:
            self.world.after(seconds, self.controller.come_back)
        return True

    def fill_limit(self) -> bool:
        """With other jobs, of colleagues in the same account."""
        limits = self.controller.limits
        if limits.most_jobs == 0:
            return False
        usual, limits.most_jobs = limits.most_jobs, 0
        seconds = self.random.choice([60, 600, 3600])
        self.world.note(f"FAULT: the limit on submitted jobs is full for {seconds} s")

        def empty() -> None:
            limits.most_jobs = usual

        self.world.after(seconds, empty)
        return True

    def garble(self) -> bool:
        """Each second list of squeue is empty, cut off, or something else, with exit 0."""
        programs, seconds = self.machines.programs, self.random.choice([60, 300, 1200])
        if programs.garbles:
            return False
        programs.garbles = 0.5
        self.world.note(f"FAULT: squeue answers with nonsense for {seconds} s")

        def recover() -> None:
            programs.garbles = 0.0

        self.world.after(seconds, recover)
        return True

    def lose_answer(self) -> bool:
        self.machines.programs.sbatch_answers_to_lose += 1
        return True

    def make_unfit(self) -> bool:
        if not (node := self.sound_node()):
            return False
        self.world.note(f"FAULT: {node.name} has no Python")
        node.unfit = True

        def repair() -> None:
            node.unfit = False

        self.world.after(self.random.uniform(600, 7200), repair)
        return True

    def break_prolog(self) -> bool:
        if not (node := self.sound_node()):
            return False
        self.world.note(f"FAULT: the prolog of {node.name} fails")
        node.prolog_fails = True

        def repair() -> None:
            node.prolog_fails = node.down = False
            self.controller.look_soon()

        self.world.after(self.random.uniform(600, 7200), repair)
        return True

    def overload(self) -> bool:
        """Each third command fails, with or without having done its work."""
        programs = self.machines.programs
        if programs.hiccups >= 0.3:
            return False
        usual, programs.hiccups = programs.hiccups, 0.3
        seconds = self.random.choice([60, 300, 1200])
        self.world.note(f"FAULT: slurmctld is overloaded for {seconds} s")

        def recover() -> None:
            programs.hiccups = usual

        self.world.after(seconds, recover)
        return True

    def preempt(self) -> bool:
        if not (job := self.some(RUNNING)) or self.controller.away:
            return False
        self.controller.requeue(job, "FAULT: preempted")
        return True

    def lose_node(self, crash: bool) -> bool:
        if not (node := self.sound_node()):
            return False
        self.world.note(f"FAULT: {node.name} {'crashes' if crash else 'is cut off'}{f', with job {node.job.number}' if node.job else ''}")
        self.controller.lose(node, crash)
        if not crash:
            self.machines.network_lost(node)
        self.world.after(self.random.choice([30, 200, 600, 3600]) * self.random.uniform(0.5, 2), lambda: self.controller.heal(node))
        return node.job is not None

    def out_of_memory(self) -> bool:
        if not (job := self.some(RUNNING)):
            return False
        self.world.note(f"FAULT: job {job.number} runs out of memory")
        self.controller.out_of_memory(job)
        return True

    def cancel(self) -> bool:
        if not (job := self.some(RUNNING, PENDING)) or self.controller.away:
            return False
        self.world.note(f"FAULT: the user cancels job {job.number}")
        self.controller.cancel(job, "user")
        return True

    def hold(self) -> bool:
        if not (job := self.some(PENDING)):
            return False
        self.world.note(f"FAULT: job {job.number} is held")
        self.controller.hold(job, "JobHeldUser", self.random.uniform(60, 7200))
        return True

    def suspend(self) -> bool:
        if not (job := self.some(RUNNING)) or self.controller.away:
            return False
        self.world.note(f"FAULT: job {job.number} is suspended")
        start, job.state = job.restarts, SUSPENDED
        for process in job.processes:
            process.freeze()

        def resume() -> None:
            if job.state == SUSPENDED and job.restarts == start:
                self.world.note(f"SLURM: job {job.number} resumes")
                job.state = RUNNING
                for process in job.processes:
                    process.thaw()

        self.world.after(self.random.uniform(30, 3600), lambda: self.controller.when_here(resume))
        return True

    def kill_rank(self) -> bool:
        if not self.machines.trainings:
            return False
        process = self.random.choice(list(self.machines.trainings))
        self.world.note(f"FAULT: rank 0 of job {process.environment['SLURM_JOB_ID']} is killed")
        process.kill()
        return True
