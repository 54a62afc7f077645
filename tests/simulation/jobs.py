"""What runs on the nodes: the script of a job, and in it a training with one process on each node.

Real are launch/slurm_job.py with its restarts, the ownership of a folder, run_folder, the journal and the manifest. Simulated are
Snakemake's own start in the job, the step of srun with its agents, the steps and checkpoints of the training, and how long it all takes.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from simulation.cluster import Controller, Job, Node
from simulation.judge import Judge
from simulation.programs import Programs
from simulation.virtual_time import Flag, Process, Raise, World, current, origin, sleep
from snaketrain.config.schema import Compute
from snaketrain.launch.slurm_job import SlurmJob
from snaketrain.launch.slurm_step import NodeSize, StepEnding, dead_nodes, first_cause
from snaketrain.launch.workers import Ending, Restarts
from snaketrain.runtime import stages
from snaketrain.runtime.journal import Journal
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.ownership import TakenOver, check
from snaketrain.runtime.ranks import STOPPED_EARLY, WORTH_ANOTHER_START
from snaketrain.runtime.run_folder import (
    fingerprint,
    last_saved,
    record_failure,
    take_over,
)
from snaketrain.runtime.stages import JobSettings
from snaketrain.slurm.client import Allocation, Slurm, SlurmError

BROKEN = "an error in the user's code"
KILLED = -9
SIGNALS = {2: "SIGINT", 10: "SIGUSR1", 15: "SIGTERM"}


@dataclass(frozen=True)
class Work:
    """What a run is: how long it takes, and whether its script fails by itself."""

    name: str
    compute: Compute
    steps: int
    step_seconds: float
    save_every: int
    save_seconds: float
    broken: bool = False


class PeerLost(Exception):
    """What the collectives of the other ranks raise."""


class Machines:
    """Starts scripts and trainings on the nodes."""

    def __init__(self, world: World, random: Random, works: dict[str, Work], judge: Judge):
        self.world, self.random, self.works, self.judge = world, random, works, judge
        self.controller: Controller
        self.programs: Programs
        self.trainings: dict[Process, Training] = {}
        self.failed_on: dict[tuple[str, str, int], Job] = {}  # by comment, node, and the process that submitted it
        self.written: dict[str, float] = {}  # when each manifest was

    def launch(self, job: Job) -> Process:
        return self.place(job, job.hosts[0]).start(lambda: self.script(job))

    def place(self, job: Job, node: Node, **environment: str) -> Process:
        process = Process(self.world, node.name, {"SLURM_JOB_ID": job.number, "USER": f"job {job.number}", **environment})
        node.processes.add(process)
        job.processes.append(process)
        process.at_exit.append(lambda _: node.processes.discard(process))
        return process

    def script(self, job: Job) -> int:
        """Snakemake in the job, which removes what an earlier start has left of the output, and launch_slurm.py."""
        if self.controller.nodes[current().process.host].unfit:
            return self.fail_without_python(job)
        sleep(self.random.uniform(5, 20))
        rule, run = job.script.split()[-2:]
        output = output_of(rule, run)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        compute = self.works[run].compute
        restarts = Restarts(output.parent, compute.restarts, 2.0, partial(print, flush=True))
        try:
            started = SlurmJob(
                Slurm(), job.number, output.parent, compute.counts, NodeSize(1, 4), restarts, 60.0, current().process.host,
                compute.save_before_limit_seconds,
            )  # fmt: skip
            started.signals = current().process.signals
            code = started.train([f"{rule}.py", "--output", str(output)])
        except SlurmError as error:  # as launch_slurm.main does
            self.world.note(f"job {job.number}: {error}")
            code = 1
        if code:
            output.unlink(missing_ok=True)
        return code or (0 if output.exists() else 1)

    def fail_without_python(self, job: Job) -> int:
        here = current().process.host
        job.log.write_text(f"/var/spool/slurmd/job{job.number}/slurm_script: line 3: {sys.executable}: No such file or directory\n")
        before = self.failed_on.get((job.comment, here, job.submitter))
        known_until = (before.ended or 0) + self.controller.limits.min_job_age if before and before.confirmed else 0
        if job.submitted < known_until and not self.controller.troubled_since(self.world.now - 600):
            self.world.problem(f"job {job.number} ({job.comment}) was submitted to {here}, on which it has failed")
        self.failed_on[job.comment, here, job.submitter] = job
        return 127

    def network_lost(self, node: Node) -> None:
        for training in list(self.trainings.values()):
            if len(training.hosts) > 1 and node in training.hosts:
                training.lose_peer()


class SimulatedStep:
    """In place of launch/slurm_step.py's: an agent's report is what really happened, and only a silent node is asked for."""

    def __init__(
        self, machines: Machines, slurm: Slurm, job: Allocation, hosts: list[str], size: NodeSize, silence: float, stopping: Callable[[], object]
    ):  # fmt: skip
        self.machines, self.slurm, self.job, self.hosts, self.silence, self.stopping = machines, slurm, job, hosts, silence, stopping

    def run(self, command: list[str], start: str) -> StepEnding:
        waited = 0
        while not self.machines.programs.reaches_controller():  # srun tries for a while
            if waited > 300 or self.stopping():
                return StepEnding(Ending(1, "srun started nothing"))
            sleep(10)
            waited += 10
        if self.machines.controller.registering:
            return StepEnding(Ending(1), refused="Requested nodes are busy")
        if unfit := [host for host in self.hosts if self.machines.controller.nodes[host].unfit]:
            sleep(20)
            return StepEnding(Ending(WORTH_ANOTHER_START, "it has no Python"), unfit=unfit)
        training = Training(self.machines, self.machines.controller.jobs[self.job.number], self.hosts, Path(command[-1]), start)
        dead: list[str] = []
        while not training.ended.wait(self.silence):
            if (quiet := self.quiet()) and (dead := dead_nodes(self.slurm, self.job, quiet) or []):
                training.kill()
                return StepEnding(first_cause(1, {}, quiet, dead), dead)
        code, quiet = training.code, self.quiet()
        if not code:
            return StepEnding(Ending(0))
        while quiet and not self.stopping():
            if (found := dead_nodes(self.slurm, self.job, quiet)) is not None:
                dead = found
                break
            sleep(6)
        lost = Ending(137, "rank 0 was killed by SIGKILL") if code == KILLED else Ending(code)
        return StepEnding(first_cause(code, {self.hosts[0]: lost}, quiet, dead), dead)

    def quiet(self) -> list[str]:
        return [host for host in self.hosts if not self.machines.controller.nodes[host].reachable]


def output_of(rule: str, run: str) -> Path:
    return Path("results/runs") / run / {"train_model": "training", "evaluate_model": "evaluation"}[rule] / "manifest.json"


class Training:
    """The processes of one start; all that they do is done by the first one."""

    def __init__(self, machines: Machines, job: Job, hosts: list[str], output: Path, start: str):
        self.machines, self.job, self.output = machines, job, output
        self.hosts = [machines.controller.nodes[host] for host in hosts]
        self.work, self.random, self.ended, self.code = machines.works[output.parts[2]], machines.random, Flag(machines.world), 0
        self.process, *self.peers = [machines.place(job, node, SNAKETRAIN_START=start) for node in self.hosts]
        machines.trainings[self.process] = self
        for peer in self.peers:
            peer.at_exit.append(lambda _: self.lose_peer())
        self.process.at_exit.append(self.end)
        self.process.start(self.main)

    def end(self, code: int) -> None:
        self.code = code
        del self.machines.trainings[self.process]
        for peer in self.peers:
            peer.kill()
        self.ended.set()

    def kill(self) -> None:
        """What srun reaches."""
        for process in (self.process, *self.peers):
            if self.machines.controller.nodes[process.host].reachable:
                process.kill()

    def lose_peer(self) -> None:
        """The next collective raises, after a while."""

        def fail() -> None:
            if self.process.alive and self.process.main is not None:
                self.process.main.wake(self.process.main.turn, Raise(PeerLost("connection closed by peer")))

        self.machines.world.after(self.random.uniform(1, 90), fail)

    def main(self) -> int:
        try:
            sleep(self.random.uniform(5, 40))
            return self.train() if "training" in self.output.parts else self.evaluate()
        except (Exception, SystemExit) as error:
            told = f"job {self.job.number}: {self.work.name} ends: {error!r}"
            expected = isinstance(error, PeerLost | TakenOver | SystemExit) or str(error) == BROKEN
            self.machines.world.note(told) if expected else self.machines.world.problem(told + origin(error))
            record_failure(self.output.parent, str(error) or repr(error))
            return stages.code_of(error)

    def evaluate(self) -> int:
        if not output_of("train_model", self.work.name).exists():
            raise SystemExit("the training's manifest is missing")
        sleep(self.work.step_seconds * 3)
        self.finish(stages.Job(self.output, JobSettings("evaluate_model", {}, {})), {})
        return 0

    def train(self) -> int:
        job = stages.Job(self.output, JobSettings("train_model", {"train": {"strategy": {"use": "auto"}, "name": self.work.name}}, {}))
        folder, work = job.folder, self.work
        take_over(job, {})
        self.check(folder)
        ours = {"fingerprint": fingerprint(job, {}), "identity": job.identity({}), "code": {}, "settings": job.given.settings}
        write_checked(folder / "run.json", ours | {"inputs": {}, "started": 0})
        step, saved = last_saved(folder), None
        journal = Journal(folder / "journal.jsonl", True, lambda: self.check(folder))
        journal.begin(step, job=self.job.number, host=self.process.host, pid=self.process.pid)
        while step < work.steps and not self.process.signals:
            sleep(work.step_seconds)
            if work.broken and step >= work.save_every:
                raise ValueError(BROKEN)
            step += 1
            journal.write("train", step=step)
            if step % work.save_every == 0 or step == work.steps or self.process.signals:
                journal.sync()
                saved = step
                self.save(folder, step)
        finished = step >= work.steps
        signals = [SIGNALS[number] for number in self.process.signals]
        journal.write("end", status="FINISHED" if finished else "STOPPED", step=step, signals=signals, saved=saved)
        if not finished:
            return STOPPED_EARLY
        sleep(self.random.uniform(0, 20))  # for the digests
        self.check(folder)
        self.finish(job, {"steps": step})
        return 0

    def save(self, folder: Path, step: int) -> None:
        beside, final = folder / f"checkpoints/.step-{step:08}", folder / f"checkpoints/step-{step:08}"
        beside.mkdir(parents=True, exist_ok=True)
        sleep(self.work.save_seconds)
        self.check(folder)
        if not final.exists():
            beside.rename(final)

    def finish(self, job: stages.Job, facts: dict[str, int]) -> None:
        job.finish({}, [], facts, 0.0)
        self.machines.written[str(self.output)] = self.machines.world.now

    def check(self, folder: Path) -> None:
        """Before each line of the journal."""
        check(folder)
        self.machines.judge.writes(folder, self.process)
