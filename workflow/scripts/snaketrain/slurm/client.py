"""The only place that runs SLURM's programs, each with the same time limit and the same error.

Questions take many jobs at once. Those that are asked again and again may take an answer that is a few seconds old, so that a
workflow with a hundred jobs does not burden a busy controller.
"""

import contextlib
import getpass
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from snaketrain.slurm.jobs import QueuedJob


@dataclass(frozen=True)
class Allocation:
    """The nodes a running job was given. A requeued job keeps its number; `restarts` counts its starts."""

    number: str
    restarts: int
    hosts: tuple[str, ...]
    gpus: int = 0  # on each node; of unequal nodes, the fewest
    script_host: str = ""  # the node that runs the job's script
    ends_at: float | None = None  # its time limit, in seconds since the epoch; None if it has none


def moment_of(shown: str) -> float | None:
    """A time as SLURM shows it, in the time zone of this machine; None where it shows none, such as `Unknown`."""
    try:
        return datetime.fromisoformat(shown).timestamp()
    except ValueError:
        return None


def gpus_of(job: str) -> int:
    """The GPUs of a job on each of its nodes, from `scontrol show job --details`: `GRES=gpu:a100:4(IDX:0-3)` for each group of nodes."""
    groups = re.findall(r" CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", job)
    return min((sum(int(count) for count in re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", group)) for group in groups), default=0)


# --- SLURM's programs

TIMEOUT_SECONDS = 60
FOR_EVER = float("inf")
ENDED_STATES = ("COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED", "FAILED", "BOOT_FAIL", "DEADLINE", "PREEMPTED")
NODES_TO_EXCLUDE = "nodes_to_exclude.json"  # beside a training's manifest: what its job found unfit when it was requeued
NO_SUCH_JOB = "Invalid job id specified"
ENDED_ALREADY = (NO_SUCH_JOB, "already completing or completed")  # what scancel says of such jobs

OUTAGE = re.compile(
    "unable to contact|unable to connect|connection refused|connection failure|socket timed out|zero bytes were transmitted|"
    "transport endpoint|backup controller|temporarily un(able|available)|did not answer within",
    re.IGNORECASE,
)
REASON = re.compile("sbatch: error: |allocation failure: ")  # before a line that says why SLURM would refuse a job

# of a controller that has just come back: nodes have not registered with it yet, or it still counts a step that has ended meanwhile
NOT_NOW = re.compile("Memory required by task is not available|Requested nodes are busy")
STEP_CREATED = "Step created for job"  # what srun says when it got one after all
NO_STEP = re.compile(
    r"Unable to (?:create step|confirm allocation) for job \d+: (.*)$|step creation (?:temporarily|still) disabled, retrying \((.*)\)$",
    re.M,
)


class SlurmError(Exception):
    """One of SLURM's programs is not installed here, failed, or did not answer in time."""


def refused_for_now(said: str) -> str | None:
    """Why srun was given no step, if it may get one later: that says nothing about the nodes of the job."""
    whys = [] if STEP_CREATED in said else [refused or delayed for refused, delayed in NO_STEP.findall(said)]
    return whys[-1] if whys and (OUTAGE.search(whys[-1]) or NOT_NOW.search(whys[-1])) else None


class Slurm:
    def __init__(self) -> None:
        self._answers: dict[tuple[str, ...], tuple[float, str]] = {}
        self._asking = threading.Lock()  # a hundred threads with one question share one answer

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("squeue") is not None

    # --- squeue

    def user_jobs(self) -> list[QueuedJob]:
        """This user's jobs, with those that ended within the last minutes."""
        shown = self._ask("squeue", "--user", getpass.getuser(), "--states=all", "--noheader", "--format", "%i|%T|%r|%k|%N|%Z")
        rows = [line.split("|", 5) for line in shown.splitlines()]
        begun = [row for row in rows if len(row) > 1 and row[0][:1].isdigit()]
        # a line that begins no job may be the rest of a comment; a list that was cut off lacks jobs that are in the queue
        if shown.strip() and not (begun and shown.endswith("\n")):
            raise SlurmError(f"squeue's answer is not a list of jobs: {shown.strip()[:200]!r}")
        return [QueuedJob(*row) for row in begun if len(row) == 6]

    def has_jobs(self, max_age_seconds: float = 0.0) -> bool:
        return bool(self._ask("squeue", "--me", "--noheader", "--format", "%i", max_age_seconds=max_age_seconds).strip())

    def in_queue(self, numbers: Iterable[str], max_age_seconds: float = 0.0) -> set[str]:
        """The jobs among these that are pending or running; one that squeue does not list has ended if `is_over` confirms it."""
        if not (asked := sorted(set(numbers))):
            return set()
        try:
            shown = self._ask("squeue", "--noheader", "--format=%A", f"--jobs={','.join(asked)}", max_age_seconds=max_age_seconds)
        except SlurmError as error:
            if NO_SUCH_JOB not in str(error):  # the answer for a single job that ended long ago
                raise
            shown = ""
        listed = set(shown.split()) & set(asked)  # the answer may be no list of jobs
        missing = (number for number in asked if number not in listed)
        return listed | {number for number in missing if not self.is_over(number, max_age_seconds=max_age_seconds)}

    def is_over(self, number: str, folder: str = "", max_age_seconds: float = 0.0) -> bool:
        """Whether SLURM says that a job has ended, or knows it no more. That squeue does not list it proves nothing: it may answer nothing at all.

        `folder`: where it was submitted; a job of another folder that has the number is not it.
        """
        return self._state_by_scontrol(number, folder, max_age_seconds) in (None, *ENDED_STATES)

    def _state_by_scontrol(self, number: str, folder: str = "", max_age_seconds: float = 0.0) -> str | None:
        """None if it knows no such job."""
        try:
            shown = self._ask("scontrol", "show", "job", "--oneliner", number, max_age_seconds=max_age_seconds)
        except SlurmError as error:
            if NO_SUCH_JOB in str(error):
                return None
            raise
        state, submitted_in = re.search(r" JobState=(\w+)", shown), re.search(r" WorkDir=(.*?)(?= \w+=|\s*$)", shown)
        if folder and submitted_in and os.path.realpath(submitted_in[1]) != os.path.realpath(folder):
            return None
        return state[1] if state else ""

    def submitted_at(self, number: str) -> datetime:
        shown = self._ask("squeue", "--noheader", "--jobs", number, "--format", "%V").strip()
        try:
            return datetime.fromisoformat(shown)
        except ValueError:
            raise SlurmError(f"squeue gave no time of submission for job {number}, but {shown!r}") from None

    def ended_as(self, number: str) -> str:
        """The state of a job that squeue no longer lists, as far as scontrol or accounting know it."""
        with contextlib.suppress(SlurmError):
            if (state := self._state_by_scontrol(number)) in ENDED_STATES:
                return str(state)
        with contextlib.suppress(SlurmError):  # most often there is no accounting
            shown = self._ask("sacct", "--jobs", number, "--allocations", "--noheader", "--parsable2", "--format=State").split()
            return shown[0] if shown and shown[0] in ENDED_STATES else ""
        return ""

    def most_memory_mb(self, number: str) -> int | None:
        """The most that a process of any step of a job had in use, as far as accounting knows."""
        shown = self._ask("sacct", "--jobs", number, "--noheader", "--parsable2", "--units=M", "--format=MaxRSS").split()
        found = [float(value.removesuffix("M")) for value in shown if re.fullmatch(r"[\d.]+M?", value)]
        return round(max(found)) if found else None

    # --- scontrol, sinfo, scancel

    def allocation(self, number: str) -> Allocation:
        shown = self._ask("scontrol", "show", "job", "--details", "--oneliner", number)
        found = {key: re.search(rf" {key}=(\S+)", shown) for key in ("Restarts", "NodeList", "BatchHost", "EndTime")}
        restarts, nodes, script_host, end = (match[1].replace("(null)", "") if match else "" for match in found.values())
        hosts = self.hosts(nodes) if nodes else ()
        return Allocation(number, int(restarts or 0), hosts, gpus_of(shown), script_host, moment_of(end))

    def is_being_preempted(self, number: str) -> bool:
        """Whether SLURM preempts this start of the job, with a GraceTime in which it may still run."""
        shown = self._ask("scontrol", "show", "job", "--oneliner", number)
        started, preempted = (re.search(rf" {key}=(\d\S*)", shown) for key in ("StartTime", "PreemptTime"))
        return bool(started and preempted and preempted[1] >= started[1])

    def log_of(self, number: str) -> Path:
        """Where a job's output goes; it never changes."""
        shown = self._ask("scontrol", "show", "job", "--oneliner", number, max_age_seconds=FOR_EVER)
        found = re.search(r" StdOut=(.*?)(?= Power=| \w+=|$)", shown)
        return Path(found[1] if found else "")

    def hosts(self, nodes: str) -> tuple[str, ...]:
        """`a[1-2]` as `a1`, `a2`."""
        return tuple(self._ask("scontrol", "show", "hostnames", nodes).split())

    def down_nodes(self, nodes: str) -> dict[str, str]:
        """The nodes among these that SLURM has given up, with what it says of each: `down (Not responding)`."""
        shown = self._ask("sinfo", "--noheader", "--Node", "--nodes", nodes, "--format", "%N|%T|%E")
        found = dict[str, str]()
        for name, state, reason in (line.split("|", 2) for line in shown.splitlines() if line.count("|") > 1):
            if state.startswith(("down", "drain", "fail")):
                found[name] = state.rstrip("*~#!%$@^-") + (f" ({reason.strip()})" if reason.strip() not in ("", "none") else "")
        return found

    def unregistered_nodes(self, max_age_seconds: float = 0.0) -> list[str]:
        """The nodes that have not registered yet with a controller that has just started: until then it takes them for unavailable."""
        shown = self._ask("sinfo", "--noheader", "--Node", "--format", "%N %T", max_age_seconds=max_age_seconds)
        states = (line.split() for line in shown.splitlines())
        return sorted({name for name, state in states if state.startswith("unk")})

    def resize(self, number: str, nodes: str, tasks: int) -> None:
        """Change the number of nodes, or the range, that a pending job asks for."""
        self._ask("scontrol", "update", f"JobId={number}", f"NumNodes={nodes}", f"NumTasks={tasks}")

    def shrink(self, number: str, hosts: Iterable[str]) -> None:
        """Give up all other nodes of a running job: when SLURM finds one of a job's nodes dead, it ends the job."""
        self._ask("scontrol", "update", f"JobId={number}", f"NodeList={','.join(hosts)}")

    def exclude(self, number: str, hosts: Iterable[str]) -> None:
        """Let a pending job start on none of these nodes either."""
        found = re.search(r" ExcNodeList=(\S+)", self._ask("scontrol", "show", "job", "--oneliner", number))
        before = found[1] if found and found[1] != "(null)" else ""
        excluded = {*hosts, *(self.hosts(before) if before else ())}
        self._ask("scontrol", "update", f"JobId={number}", f"ExcNodeList={','.join(sorted(excluded))}")

    def requeue(self, number: str) -> None:
        self._ask("scontrol", "requeue", number)

    def cancel(self, *numbers: str) -> None:
        """Those among them that have ended already are no error."""
        try:
            self._ask("scancel", *numbers)
        except SlurmError as error:
            if not all(any(words in line for words in ENDED_ALREADY) for line in str(error).splitlines()):
                raise

    # --- sbatch, srun

    def refusal(self, submission: str) -> str | None:
        """Why SLURM would refuse this `sbatch --test-only` command, given as the plugin writes it, for a shell; None if it would not."""
        done = self._run(f"exec {submission}")  # the shell itself would outlive the time limit
        lines = done.stderr.strip().splitlines() or ["no answer"]
        reasons = [REASON.sub("", line) for line in lines if REASON.match(line)]  # among them the name of a limit that is reached
        return "; ".join(reasons or lines[-1:]) if done.returncode else None

    def on_each_node(self, number: str, hosts: Sequence[str], words: Sequence[str]) -> str:
        """What a short command prints on nodes of a running job."""
        size = ("--overlap", f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1")
        return self._ask("srun", "--jobid", number, *size, "--input=none", "--nodelist", ",".join(hosts), *words)

    def starts_programs(self, number: str, host: str) -> bool:
        """Whether a node of a running job still starts a program. SLURM itself may take minutes to notice that a node is lost."""
        try:
            self.on_each_node(number, [host], ["true"])
        except SlurmError as error:
            if refused_for_now(str(error)):
                raise
            return False
        return True

    def silent_nodes(self, number: str, hosts: Iterable[str]) -> list[str]:
        """The nodes among these that start no program, asked all at once: each may take a minute not to answer."""
        hosts = list(hosts)
        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            answers = list(pool.map(lambda host: self.starts_programs(number, host), hosts))
        return [host for host, answer in zip(hosts, answers, strict=True) if not answer]

    def _ask(self, *command: str, max_age_seconds: float = 0.0) -> str:
        """What the program prints. An answer no older than `max_age_seconds` is not asked for again."""
        if not max_age_seconds:
            return self._answer(command)
        with self._asking:
            asked_at, answer = self._answers.get(command, (-max_age_seconds, ""))
            if time.monotonic() - asked_at >= max_age_seconds:
                answer = self._answer(command)
                self._answers[command] = time.monotonic(), answer
            return answer

    def _answer(self, command: tuple[str, ...]) -> str:
        done = self._run(command)
        if done.returncode:
            raise SlurmError(f"{shlex.join(command)} failed: {done.stderr.strip()}")
        return done.stdout

    def _run(self, command: tuple[str, ...] | str) -> subprocess.CompletedProcess[str]:
        """A text is run by a shell."""
        program = command.split()[1] if isinstance(command, str) else command[0]
        try:
            return subprocess.run(
                command, shell=isinstance(command, str), capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS
            )
        except FileNotFoundError:
            raise SlurmError(f"{program} is not installed here: run the workflow where jobs of SLURM can be submitted") from None
        except OSError as error:
            raise SlurmError(f"{program} cannot be run: {error}") from None
        except subprocess.TimeoutExpired as error:
            said = error.stderr.decode(errors="replace").strip() if isinstance(error.stderr, bytes) else ""
            raise SlurmError(f"{program} did not answer within {TIMEOUT_SECONDS} seconds{said and f': {said}'}") from None


# --- What a job that is requeued for its nodes leaves for the next start: only a pending job can have nodes excluded, by somebody else.


def noted_nodes(folder: Path, number: str) -> set[str]:
    """The nodes that a job has found unfit; none if it has noted none."""
    file = folder / NODES_TO_EXCLUDE
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        return set(map(str, noted["nodes"])) if noted["job"] == number else set()
    except FileNotFoundError:
        return set()
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{file} cannot be read ({type(error).__name__}: {error}); no node is excluded for it") from None


# --- Where SLURM's programs find their configuration. Snakemake's plugin removes all variables of SLURM from the shell of a job, SLURM_CONF included.

KEPT = "SNAKETRAIN_SLURM_CONF"


def keep_slurm_conf() -> None:
    """In each process that parses the Snakefile, from the login node down to the shell of a job."""
    if "SLURM_CONF" in os.environ:
        os.environ[KEPT] = os.environ["SLURM_CONF"]
    elif KEPT in os.environ:
        os.environ["SLURM_CONF"] = os.environ[KEPT]


# --- The jobs that workflows in this folder have submitted.


def jobs_here(slurm: Slurm) -> list[QueuedJob]:
    return of_this_folder(slurm, slurm.user_jobs())


def of_this_folder(slurm: Slurm, found: list[QueuedJob]) -> list[QueuedJob]:
    here = os.path.realpath(".")
    ours = {folder for folder in {job.folder for job in found} if os.path.realpath(folder) == here}
    commented = (with_own_comment(slurm, job) for job in found if job.folder in ours)
    return [job for job in commented if job.comment.startswith("rule_")]


def with_own_comment(slurm: Slurm, job: QueuedJob) -> QueuedJob:
    """Some sites rewrite a job's comment. Where its log goes says the same: `rule_<name>/<wildcards>/<number>.log`, or `group_<name>/<number>.log`."""
    if job.comment.startswith("rule_"):
        return job
    try:
        folder = slurm.log_of(job.number).parent
    except SlurmError:  # it has ended, or SLURM does not answer
        return job
    if folder.parent.name.startswith("rule_"):
        return replace(job, comment=f"{folder.parent.name}_wildcards_{folder.name}")
    return replace(job, comment=re.sub("^group_", "rule_", folder.name))


# --- Waiting for cancelled jobs: a training saves before it ends.

ENDING_SECONDS = 300  # so long is waited for jobs that save
SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_LINES = 1.0, 10.0
NAMES_SHOWN = 5


def wait_for_end(slurm: Slurm, jobs: Mapping[str, str], say: Callable[[str], None]) -> set[str]:
    """Which of the jobs, names by number, have not ended after a while, or when Ctrl-C is pressed."""
    left, began, reported = set(jobs), time.monotonic(), 0.0
    say(f"Cancelled {listed(jobs, left)}. Waiting until they have saved and ended; Ctrl-C leaves at once, and they save all the same.")
    try:
        while left and (waited := time.monotonic() - began) < ENDING_SECONDS:
            with contextlib.suppress(SlurmError):  # asked again
                left = slurm.in_queue(left)
            if left and waited - reported > SECONDS_BETWEEN_LINES:
                reported = waited
                say(f"Still waiting for {listed(jobs, left)}, after {waited:.0f} seconds.")
            if left:
                time.sleep(SECONDS_BETWEEN_LOOKS)
    except KeyboardInterrupt:
        say(f"Not waiting any longer for {listed(jobs, left)}. The next start waits until they have ended.")
        return left
    say(f"All have ended, after {time.monotonic() - began:.0f} seconds." if not left else f"Still running: {listed(jobs, left)}.")
    return left


def listed(jobs: Mapping[str, str], numbers: Iterable[str]) -> str:
    shown = [f"{number} ({jobs[number]})" for number in sorted(numbers, key=lambda number: (len(number), number))]
    more = f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else ""
    return f"SLURM job{'s' if len(shown) > 1 else ''} {', '.join(shown[:NAMES_SHOWN])}{more}"
