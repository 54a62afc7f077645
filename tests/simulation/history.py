"""One history: a cluster, a workflow and what goes wrong, all drawn from a seed; and what is to be found at its end."""

import io
import os
import re
import shutil
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from simulation.cluster import Controller, Limits
from simulation.faults import Faults
from simulation.jobs import Machines, Work, output_of
from simulation.judge import Judge
from simulation.programs import Programs
from simulation.stage import SlowFiles, simulated
from simulation.user import User
from simulation.virtual_time import StuckForEver, World
from simulation.workflow import SnakemakeJob, Workflow
from snaketrain.config.schema import Compute
from snaketrain.runtime.journal import read_events

HOUR = 3600.0
COMPUTES = [
    *[Compute(nodes="1", threads=4, minutes=minutes) for minutes in (15, 60)],
    *[Compute(nodes="2", threads=4, minutes=minutes) for minutes in (15, 60)],
    Compute(nodes="1-2", threads=4, minutes=20), Compute(nodes="2-4", threads=4, minutes=30), Compute(nodes="2+1", threads=4, minutes=30),
]  # fmt: skip
STATE = re.compile(r"SLURM-job '(\d+)' failed.*SLURM status is: '(\w+)'")


class Told(io.StringIO):
    """What processes print is part of the story."""

    def __init__(self, world: World):
        super().__init__()
        self.world = world

    def write(self, text: str) -> int:
        if text.strip():
            self.world.note(f"printed: {text.strip()}")
        return len(text)


@dataclass
class Outcome:
    seed: int
    problems: list[str]
    runs: Counter[str]
    faults: Counter[str]
    events: list[tuple[float, str]]
    hours: float
    jobs: int
    submitted: int
    reasons: Counter[str] = field(default_factory=Counter)

    def story(self, about: str = "") -> str:
        return "\n".join(f"{seconds / 60:8.2f} min  {text}" for seconds, text in self.events if about in text)


class History:
    def __init__(self, seed: int, folder: Path, jobs: int, certain: tuple[str, ...] = ()):
        """`certain`: faults that happen as often as can be, and no others."""
        random = Random(seed)
        self.seed, self.folder, self.size, self.certain = seed, folder, jobs, certain
        self.world = World()
        names = [f"run{i:03}" for i in range(jobs // 2)]
        self.computes = {name: random.choice(COMPUTES) for name in names}
        works = {name: self.work(random, name, self.computes[name]) for name in names}
        nodes = max(6, jobs // 12)
        seconds = 1800 + 1.5 * sum(work.steps * work.step_seconds for work in works.values()) / nodes
        self.judge = Judge(self.world)
        self.machines = Machines(self.world, Random(seed + 1), works, self.judge)
        limits = Limits(random.choice([30.0, 120.0, 300.0, 300.0]), random.choice([None, None, max(3, jobs // 10)]))
        self.controller = Controller(self.world, random, nodes, limits, self.machines.launch)
        self.programs = Programs(self.controller, Random(seed + 2), random.choice([0, 0, 0.002, 0.01]))
        self.machines.controller, self.machines.programs = self.controller, self.programs
        self.files = SlowFiles(self.world, self.machines, random.choice([0, 0, 20, 50]))
        at_once = random.choice([100, jobs])
        self.faults = Faults(self.world, Random(seed + 3), self.controller, self.machines, seconds)
        self.user = User(
            self.controller, Random(seed + 4), lambda: Workflow(self.controller, self.computes, self.files.sees, at_once), seconds
        )
        self.horizon = seconds + 60 * HOUR

    @staticmethod
    def work(random: Random, name: str, compute: Compute) -> Work:
        return Work(
            name,
            compute,
            random.randint(6, 16),
            random.choice([20, 40, 90]),
            random.choice([2, 4]),
            random.choice([1, 5, 40]),
            random.random() < 0.01,
        )

    def run(self) -> Outcome:
        here = Path.cwd()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        os.chdir(self.folder)
        try:
            with (
                redirect_stdout(Told(self.world)),
                redirect_stderr(Told(self.world)),
                simulated(self.world, self.programs, self.machines, self.files),
            ):
                try:
                    self.faults.plan(self.certain)
                    self.user.plan(self.certain)
                    self.world.run(lambda: self.user.content, self.horizon)
                    # what is queued still runs, on few nodes and perhaps held for hours
                    self.world.run(lambda: not self.controller.queued(), self.world.now + (3 + self.size / 50) * HOUR)
                except StuckForEver as stuck:
                    self.world.problem(f"waits for ever: {stuck}; {self.at_work()}")
                finally:
                    self.world.close()
            return self.outcome()
        finally:
            os.chdir(here)
            shutil.rmtree(self.folder, ignore_errors=True)

    def at_work(self) -> str:
        queued = ", ".join(f"{job.number} {job.state} {job.reason}" for job in self.controller.queued()[:5])
        workflow = self.user.workflow
        left = [f"{job.name} {job.run}" for job in workflow.scheduler.running] if workflow and workflow.scheduler else []
        return f"the workflow {'lives' if workflow and workflow.process.alive else 'has ended'}, waiting for {left[:5]}; queued: {queued or 'nothing'}"

    # --- what is found at the end

    def outcome(self) -> Outcome:
        workflow = self.user.workflow
        assert workflow
        if not self.controller.all:
            self.world.problem("no job was submitted, so that nothing was tried")
        jobs = {(job.name, job.run): job for job in workflow.dag.jobs}
        runs: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for run in self.computes:
            training, evaluation = (jobs.get((rule, run)) for rule in ("train_model", "evaluate_model"))
            found, reason = self.end_of(run, training, evaluation)
            runs[found] += 1
            if reason:
                reasons[reason] += 1
        return Outcome(
            self.seed, self.world.problems, runs, self.counted(), self.world.events, self.world.now / HOUR, self.size, len(self.controller.all), reasons
        )  # fmt: skip

    def end_of(self, run: str, training: SnakemakeJob | None, evaluation: SnakemakeJob | None) -> tuple[str, str]:
        if output_of("evaluate_model", run).exists():
            self.check_journal(run)
            return "finished", ""
        scheduler = self.user.workflow.scheduler if self.user.workflow else None
        failed = next((job for job in (training, evaluation) if job and scheduler and job in scheduler.failed), None)
        if failed:
            return self.check_reason(failed)
        if self.user.gives_up:
            return "cancelled by the user", "Ctrl-C"
        self.world.problem(f"{run} is not finished, and nothing says why")
        return "lost", ""

    def check_journal(self, run: str) -> None:
        folder = output_of("train_model", run).parent
        events = read_events(folder / "journal.jsonl")[0]
        steps = [event["step"] for event in events if event["event"] == "train"]
        expected = set(range(1, self.machines.works[run].steps + 1))
        if set(steps) != expected or not output_of("train_model", run).exists():
            self.world.problem(f"{run} counts as finished, but has {len(set(steps))} of {len(expected)} steps")
        if [event["attempt"] for event in events] != sorted(event["attempt"] for event in events):
            self.world.problem(f"{run}: the lines of two attempts are mixed in its journal")

    def check_reason(self, job: SnakemakeJob) -> tuple[str, str]:
        """Whether what was told is true."""
        told = job.errors[-1] if job.errors else ""
        if found := STATE.search(told):
            number, state = found.groups()
            slurm_job = next(each for each in self.controller.all if each.number == number)
            if state != slurm_job.state:
                self.world.problem(f"{job.name} {job.run}: {state} was told, but job {number} is {slurm_job.state}")
            if state == "CANCELLED" and slurm_job.ended_by != "scancel by user":
                self.world.problem(f"{job.name} {job.run}: told as cancelled, but not by the user: {slurm_job.ended_by}")
            return "cancelled by the user" if state == "CANCELLED" else "failed", state
        if "node configuration is not available" in told:
            self.world.problem(f"{job.name} {job.run} failed for lack of nodes, although they were to register")
        for words in ("left no result", "Missing output", "SLURM sbatch failed", "submission failed", "earlier submission was accepted"):
            if words in told:
                return "failed", words
        self.world.problem(f"{job.name} {job.run} failed for no reason that is understood: {told!r}")
        return "failed", "?"

    def counted(self) -> Counter[str]:
        found = Counter(self.faults.happened) + Counter(self.user.happened)
        patterns = {
            "submission waited for SLURM": "is not submitted yet: SLURM does not answer",
            "submission waited for a limit": "is not submitted yet: a limit",
            "job had left squeue": "SLURM no longer knows job",
            "ended by the time limit": "ended as TIMEOUT",
            "saved before the time limit": "its time ran out",
            "restarted within the job": "; resuming from step",
            "requeued for too few nodes": " nodes left, fewer than ",
            "node lost, noticed by SLURM": " died",
            "writer found the folder taken": "TakenOver",
            "left-over job ended at the start": "with other settings, resources, code or inputs",
            "left-over job adopted": " continues as SLURM job",
            "completed while no workflow ran": "while no workflow ran",
        }
        for name, words in patterns.items():
            found[name] += sum(words in text for _, text in self.world.events)
        found["answer lost"] += self.programs.lost_answers
        found["command failed"] += self.programs.failures
        found["manifest seen late"] += self.files.late
        found["living writer taken over"] += self.judge.takeovers
        return found
