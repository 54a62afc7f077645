"""Who starts the workflow, interrupts it, kills it, closes the laptop that it runs on, and starts it again."""

from collections import Counter
from collections.abc import Callable
from random import Random

from simulation.cluster import Controller
from simulation.faults import Kind
from simulation.workflow import Workflow

MOST_STARTS = 6


class User:
    def __init__(self, controller: Controller, random: Random, start: Callable[[], Workflow], seconds: float):
        self.controller, self.world, self.random, self.seconds, self.make = controller, controller.world, random, seconds, start
        self.happened: Counter[str] = Counter()
        self.workflow: Workflow | None = None
        self.starts = 0
        self.gives_up = self.content = False

    def plan(self, certain: tuple[str, ...]) -> None:
        for name, (action, kind) in self.actions().items():
            if name in certain if certain else self.random.random() < kind.chance:
                for _ in range(kind.most if certain else self.random.randint(1, kind.most)):
                    self.world.after(self.random.uniform(0, self.seconds), lambda name=name, action=action: self.act(name, action))
        self.start()

    def actions(self) -> dict[str, tuple[Callable[[Workflow], None], Kind]]:
        return {
            "Ctrl-C": (self.interrupt, Kind(0.3, 2)),
            "kill -9": (self.kill, Kind(0.4, 2)),
            "stopped for a while": (self.stop, Kind(0.4, 2)),
        }

    def act(self, name: str, action: Callable[[Workflow], None]) -> None:
        if self.workflow and self.workflow.process.alive and not self.workflow.cancelled:
            self.happened[name] += 1
            self.world.note(f"USER: {name}")
            action(self.workflow)

    def start(self) -> None:
        self.starts += 1
        self.workflow = workflow = self.make()
        workflow.process.at_exit.append(lambda code: self.after_end(workflow, code))
        workflow.start()

    def after_end(self, workflow: Workflow, code: int) -> None:
        """Starts it again, unless it succeeded, or nothing can be expected of another start."""
        again = self.random.random() < 0.5
        if workflow.cancelled and workflow.scheduler:  # or it had not taken up the jobs of the workflow before, which continue
            ended = self.world.now
            self.world.after(60, lambda: self.check_cancelled(ended))
        if workflow.succeeded or (workflow.cancelled and not again):
            self.content, self.gives_up = True, workflow.cancelled and not workflow.succeeded
        elif code == -9 or workflow.crashed or workflow.cancelled or (again and self.starts < MOST_STARTS):
            self.world.after(self.random.choice([30, 120, 1800]), self.start)
        else:
            self.content = True

    def check_cancelled(self, ended: float) -> None:
        """After Ctrl-C, while SLURM answers."""
        left = [job.number for job in self.controller.queued() if not job.ended_by and job.submitted <= ended]
        if left and not self.controller.troubled_since(self.world.now - 300):
            self.world.problem(f"jobs {left[:5]} keep running after Ctrl-C")

    def interrupt(self, workflow: Workflow) -> None:
        workflow.cancelled = True
        workflow.process.thaw()
        workflow.process.interrupt()
        if self.random.random() < 0.3:
            self.world.after(5, workflow.process.interrupt)

    def kill(self, workflow: Workflow) -> None:
        workflow.process.kill()

    def stop(self, workflow: Workflow) -> None:
        """SIGSTOP, or a laptop asleep, whose monotonic clock stands still."""
        seconds, asleep = self.random.choice([30, 400, 3600]), self.random.random() < 0.5
        workflow.process.freeze()
        self.world.after(seconds, lambda: workflow.process.thaw(seconds if asleep else 0.0))
