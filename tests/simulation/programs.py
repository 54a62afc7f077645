"""SLURM's programs: what they print, how long they take, and how they fail. What the simulation does not know is an error."""

import contextlib
import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

from simulation.cluster import IN_QUEUE, Controller, Job
from simulation.standard_library import split_words
from simulation.virtual_time import EPOCH, current, sleep

NO_ANSWER = "Unable to contact slurm controller (connect failure)"
NO_ANSWER_IN_TIME = "Socket timed out on send/recv operation"
AT_THE_LIMIT = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)
VALUES = {  # options of sbatch whose value is the next word
    "--job-name", "--output", "--comment", "--mem", "-A", "-p", "-t", "-D", "--wrap",
}  # fmt: skip
COLUMNS: dict[str, Callable[[Job], str]] = {
    "i": lambda job: job.number,
    "A": lambda job: job.number,
    "T": lambda job: job.state,
    "r": lambda job: job.reason,
    "k": lambda job: job.comment,
    "j": lambda job: job.name,
    "N": lambda job: ",".join(node.name for node in job.hosts),
    "R": lambda job: ",".join(node.name for node in job.hosts) or f"({job.reason})",
    "Z": lambda job: job.folder,
    "V": lambda job: moment(job.submitted),
}


def without_accounting(command: list[str], *_: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.CompletedProcess(command, 1, "", "Slurm accounting storage is disabled")


class Refused(Exception):
    """What a program writes to stderr before it fails."""


def moment(seconds: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(EPOCH + seconds).isoformat(timespec="seconds")


class Programs:
    """Called in a thread of a simulated process, as subprocess would be."""

    def __init__(self, controller: Controller, random: Random, hiccups: float):
        """`hiccups`: how often a single command fails without a reason, before or after SLURM has carried it out, or answers nothing."""
        self.controller, self.random, self.hiccups = controller, random, hiccups
        self.lost_answers = self.failures = 0
        self.garbles = 0.0  # how often squeue lists nonsense
        self.sbatch_answers_to_lose = 0

    def __call__(self, command: list[str] | str, script: str | None, timeout: float | None) -> "subprocess.CompletedProcess[str]":
        words = split_words(command) if isinstance(command, str) else list(command)
        words = words[1:] if words[0] == "exec" else words
        if words[0] == "which":
            return subprocess.CompletedProcess(words, 1, "", "")
        if words[0] == "sacct":  # a cluster without accounting
            raise FileNotFoundError(words[0])
        answer = getattr(self, words[0])
        sleep(self.random.uniform(0.02, 0.4))
        if not self.reaches_controller():
            self.failures += 1
            return self.fail(words, timeout, self.random.uniform(5, 100))
        if self.controller.registering:
            sleep(self.random.uniform(1, 40))
        if self.sbatch_answers_to_lose and words[0] == "sbatch" and "--test-only" not in words:
            self.sbatch_answers_to_lose -= 1
            self.lost_answers += 1
            with contextlib.suppress(Refused):
                answer(words, script)
            return subprocess.CompletedProcess(words, 0, self.random.choice(["", "sbatch: lua: welcome\n"]), "")
        if self.random.random() < self.hiccups:
            self.failures += 1
            if words[0] == "squeue" and self.random.random() < 0.3:
                return subprocess.CompletedProcess(words, 0, "", "")  # as if there were no jobs
            if words[0] == "sbatch" and "--test-only" not in words and self.random.random() < 0.3:
                self.lost_answers += 1
                with contextlib.suppress(Refused):
                    answer(words, script)
                return subprocess.CompletedProcess(words, 0, "", "")
            if self.random.random() < 0.5:  # it was done, but the answer is lost
                self.lost_answers += 1
                with contextlib.suppress(Refused):
                    answer(words, script)
            return self.fail(words, timeout, self.random.uniform(1, 20), NO_ANSWER_IN_TIME)
        try:
            code, out, error = 0, answer(words, script), ""
        except Refused as refused:
            code, out, error = 1, "", str(refused)
        sleep(self.random.uniform(0.02, 0.4))
        if words[0] == "sbatch" and out:
            self.controller.jobs[out.strip()].confirmed = True
        if words[0] == "squeue" and self.garbles and self.random.random() < self.garbles:
            self.failures += 1
            out = self.random.choice(["", "slurm_load_jobs: Zero Bytes\n", out[: self.random.randint(0, max(0, len(out) - 2))]])
        return subprocess.CompletedProcess(words, code, out, error)

    def reaches_controller(self) -> bool:
        node = self.controller.nodes.get(current().process.host)
        return not self.controller.away and (node is None or node.reachable)

    def fail(self, words: list[str], timeout: float | None, seconds: float, why: str = NO_ANSWER) -> "subprocess.CompletedProcess[str]":
        if timeout and seconds > timeout:
            sleep(timeout)
            self.controller.trouble = self.controller.world.now
            raise subprocess.TimeoutExpired(words, timeout)
        sleep(seconds)
        self.controller.trouble = self.controller.world.now
        said = {"sbatch": "Batch job submission failed", "squeue": "slurm_load_jobs error"}.get(words[0], "error")
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: error: {said}: {why}\n")

    # --- the programs

    def sbatch(self, words: list[str], script: str | None) -> str:
        options = parsed(words[1:])
        if self.controller.registering:
            raise Refused("sbatch: error: Batch job submission failed: Requested node configuration is not available")
        limit = self.controller.limits.most_jobs
        if limit is not None and len(self.controller.queued()) >= limit:
            raise Refused(AT_THE_LIMIT)
        if "--test-only" in options:
            return ""
        most = options["-N"].partition("-")
        number = str(len(self.controller.all) + 1)
        log = Path(options["--output"].replace("%j", number))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("started\n")  # already now; a job that left none is reported
        usr1 = options.get("--signal", "").partition("@")[2]
        self.controller.submit(
            Job(
                number, options["--job-name"], options["--comment"], options["-D"], (int(most[0]), int(most[2] or most[0])), 60 * float(options["-t"]),
                float(usr1) if usr1 else None, script or "", set(filter(None, options.get("--exclude", "").split(","))), self.controller.world.now, current().process.pid, log,
            )
        )  # fmt: skip
        return f"{number}\n"

    def squeue(self, words: list[str], _: str | None) -> str:
        options = asked(words[1:], {"--user", "--format", "--name", "--jobs", "--states", "-o", "-j"})
        jobs = list(self.controller.jobs.values())
        if options.get("--states") != "all":
            jobs = [job for job in jobs if job.state in IN_QUEUE]
        if name := options.get("--name"):
            names = set(name.split(","))
            jobs = [job for job in jobs if job.name in names]
        if numbers := options.get("--jobs"):
            wanted = set(numbers.split(","))
            if len(wanted) == 1 and not wanted & self.controller.jobs.keys():
                raise Refused("slurm_load_jobs error: Invalid job id specified")
            jobs = [job for job in jobs if job.number in wanted]
        assert "--noheader" in options, words
        columns = columns_of(options["--format"])
        return "".join([row(columns, job) + "\n" for job in jobs])

    def scontrol(self, words: list[str], _: str | None) -> str:
        match words[1:]:
            case ["show", "config"]:
                return f"MinJobAge               = {self.controller.limits.min_job_age:.0f} sec\nMaxArraySize            = 1001\n"
            case ["show", "hostnames", nodes]:
                return "".join(f"{node}\n" for node in nodes.split(","))
            case ["show", "job", "--details", "--oneliner", number] | ["show", "job", "--oneliner", number]:
                return self.shown(self.known(number))
            case ["requeue", number]:
                job = self.known(number)
                if job.state not in ("RUNNING", "SUSPENDED"):
                    raise Refused("scontrol: error: Job/step already completing or completed")
                self.controller.requeue(job, "scontrol requeue")
                return ""
            case ["update", number, *changes]:
                self.update(self.known(number.partition("=")[2]), dict(change.split("=", 1) for change in changes))
                return ""
        raise AssertionError(f"scontrol of the simulation does not know {words}")

    def shown(self, job: Job) -> str:
        nodes = COLUMNS["N"](job) or "(null)"
        return f"JobId={job.number} JobName={job.name} JobState={job.state} Restarts={job.restarts} NodeList={nodes} BatchHost={job.script_host or '(null)'} EndTime={moment(job.started + job.seconds) if job.hosts else 'Unknown'} ExcNodeList={','.join(sorted(job.excluded)) or '(null)'}\n"

    def update(self, job: Job, changes: dict[str, str]) -> None:
        for name, value in changes.items():
            if name == "NumNodes":
                least, _, most = value.partition("-")
                job.nodes = int(least), int(most or least)
            elif name == "ExcNodeList":
                job.excluded = set(value.split(","))
            elif name == "NodeList":
                self.controller.shrink(job, set(value.split(",")))
            else:
                assert name == "NumTasks", changes

    def scancel(self, words: list[str], _: str | None) -> str:
        unknown = []
        for number in (word for word in words[1:] if not word.startswith("-")):
            if job := self.controller.jobs.get(number):
                self.controller.cancel(job, current().process.environment.get("USER", "us"))
            else:
                unknown.append(number)
        if unknown:
            raise Refused("".join(f"scancel: error: Kill job error on job id {each}: Invalid job id specified\n" for each in unknown))
        return ""

    def sinfo(self, words: list[str], _: str | None) -> str:
        if words[1:] == ["-o", "%P"]:
            return "PARTITION\nnormal*\n"
        options = asked(words[1:], {"--nodes", "--format", "-o"})
        if options["--format"] == "%N %T":
            return "".join(f"{name} {'unknown' if self.controller.registering else 'idle'}\n" for name in self.controller.nodes)
        assert options["--format"] == "%N|%T|%E", words
        names = options.get("--nodes", "").split(",")
        found = (self.controller.nodes[name] for name in names if name)
        return "".join(f"{node.name}|{'down' if node.down else 'allocated' if node.job else 'idle'}|none\n" for node in found)

    def srun(self, words: list[str], _: str | None) -> str:
        """Only the question whether a node still starts a program; trainings are started in jobs.py."""
        options = asked(words[1:], {"--jobid", "--nodelist"})
        if self.controller.registering:
            raise Refused(f"srun: error: Unable to create step for job {options['--jobid']}: Requested nodes are busy")
        unreachable = [node for node in options["--nodelist"].split(",") if not self.controller.nodes[node].reachable]
        if unreachable:
            sleep(self.random.uniform(5, 60))
            raise Refused(
                f"srun: error: Task launch for StepId={options['--jobid']}.1 failed on node {unreachable[0]}: Communication connection failure"
            )
        return ""

    def known(self, number: str) -> Job:
        try:
            return self.controller.jobs[number]
        except KeyError:
            raise Refused("slurm_load_jobs error: Invalid job id specified") from None


def asked(words: list[str], with_value: set[str]) -> dict[str, str]:
    """Options by name; one that takes a value has it in the same word or in the next."""
    found, rest = {}, list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        found[name] = rest.pop(0) if name in with_value and not equals else value
    return found


def parsed(words: list[str]) -> dict[str, str]:
    """Of sbatch, whose short options have their value in the same word, or in the next."""
    found = asked(words, VALUES)
    for word in words:
        if len(word) > 2 and word[0] == "-" and word[1] in "NptA" and word[2] != "-":
            found[word[:2]] = word[2:]
    return found


@functools.cache
def columns_of(form: str) -> list[tuple[Callable[[Job], str], str]]:
    """Of a format such as `%i|%T`: what each column shows, and what follows it."""
    nothing, *parts = form.split("%")
    assert not nothing, form
    return [(COLUMNS[part[0]], part[1:]) for part in parts]


def row(columns: list[tuple[Callable[[Job], str], str]], job: Job) -> str:
    return "".join([show(job) + after for show, after in columns])
