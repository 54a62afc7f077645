"""A workspace on the cluster: start snakemake in it, wait for something to happen, disturb it, check what is left."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import limits
from pipeline.warm_python import warm_python
from pipeline.workspace import configuration, make_workspace, read_configuration, write_configuration
from safetensors.numpy import load_file

from snaketrain.runtime.journal import read_events

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
STEPS = 80
RUN = "results/runs/patient"
TRAINING = f"{RUN}/training"
LONG_SECONDS = 240  # for what takes seconds on an idle machine


def make(folder: Path, pace: float = 0.0, steps: int = STEPS, evaluate_every: int = 10, **compute) -> Path:
    """A workspace of one run."""
    config = configuration()
    config["model"] = {"use": "patient.py:Words", "arguments": {"size": 32}}
    config["train"] = {
        "task": {"use": "patient.py:Patient"},
        "batch_size": 16,
        "steps": steps,
        "evaluate_every": evaluate_every,
        "learning_rate": 1e-3,
        "deterministic": True,  # several processes would add in another order after a resume
    }
    config["compute"] = {"nodes": "2", "threads": 2, "device": "cpu", "memory_mb": 2000, "minutes": 20} | compute
    config["tracking"] = {"experiment": "patient", "log_every_steps": 1}
    config["runs"] = {"patient": {}}
    make_workspace(folder, **config)
    shutil.copy(HERE / "patient.py", folder)
    return set_pace(folder, pace)


def untrained(finished: Path, folder: Path) -> Path:
    """Another workspace with its data prepared and nothing trained yet, as soon as all nodes are idle."""
    of_results = ("runs", "comparison", "logs", "mlflow.db*", "mlartifacts", ".follower.*", ".mlflow.json", "snakemake.out")
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns(*of_results))
    until(lambda: set(slurm("sinfo", "--noheader", "--Node", "--format=%t").split()) == {"idle"}, "all nodes are idle")
    return set_pace(folder, 0.3)  # a step takes long enough to be disturbed


def set_pace(folder: Path, seconds: float) -> Path:
    (folder / "pace.new").write_text(str(seconds))
    (folder / "pace.new").rename(folder / ".pace")  # never empty
    return folder


class Workflow:
    """A snakemake over the SLURM profile, in a process group of its own, as a terminal would have it."""

    def __init__(self, folder: Path, *options: str, python: str | Path | None = None):
        self.folder = folder
        self.output = open(folder / "snakemake.out", "a")  # noqa: SIM115 - open as long as the process
        profile = ["--profile", REPOSITORY / "profiles/slurm", "--slurm-init-seconds-before-status-checks", 1]
        self.command = [str(word) for word in (python or warm_python(), *self.before_options(), *profile, *options)]
        as_in_terminal = ["env", "--default-signal=INT"]  # the tests may have been started with Ctrl-C ignored, like a background job
        self.process = subprocess.Popen(
            [*as_in_terminal, *self.command], cwd=folder, stdout=self.output, stderr=self.output, start_new_session=True
        )

    def before_options(self) -> list[str | Path]:
        return [HERE / "fast_snakemake.py", "--snakefile", REPOSITORY / "Snakefile", "--directory", self.folder]

    def finish(self) -> str:
        """What it printed, if it succeeded."""
        until(lambda: self.process.poll() is not None, "snakemake ends", 2 * LONG_SECONDS, self)
        assert self.process.returncode == 0, self.story()
        return self.printed()

    def printed(self) -> str:
        return (self.folder / "snakemake.out").read_text()

    def story(self) -> str:
        """What one asks first after a failure: the state of the cluster, when the training started and ended, the end of each log."""
        told = sorted(events(self.folder, "attempt") + events(self.folder, "end"), key=lambda event: event["time"])
        told = [
            f"{datetime.fromtimestamp(event['time']):%T} {event['event']} {event.get('status', '')} of job {event.get('job')}"
            for event in told
        ]
        logs = [*self.folder.glob("logs/slurm/*/*/*.log"), self.folder / "snakemake.out"]
        ends = [f"--- {log.name}\n{last_lines(log)}" for log in sorted(logs, key=lambda log: log.stat().st_mtime)]
        return "\n".join([f"{datetime.now():%T}\n{state()}", *told, *ends])

    def signal(self, number: signal.Signals) -> None:
        """As from a terminal: to all processes that it has started here."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.output.close()


class SampledSearch(Workflow):
    """`snaketrain sample`, which starts such workflows."""

    def before_options(self) -> list[str | Path]:
        return [
            HERE.parents[1] / "workflow/scripts/snaketrain/extras/search/tests/sampling_by.py",
            HERE / "fast_snakemake.py",
            "config/config.yaml",
            "--",
        ]


def last_lines(log: Path, number: int = 30) -> str:
    """Cut, as commands are long; of a progress bar its last state."""
    lines = [line.rpartition("\r")[2] for line in log.read_text(errors="replace").split("\n")]
    return "\n".join(line[:200] for line in lines[-number:])


def until(condition: Callable, what: str, seconds: float = LONG_SECONDS, workflow: Workflow | None = None):
    """The first true answer of `condition`."""
    began = time.monotonic()
    while not (answer := condition()):
        if workflow and workflow.process.poll() not in (None, 0):
            raise AssertionError(f"snakemake failed before {what}\n{workflow.story()}")
        if (waited := time.monotonic() - began) > limits.seconds(seconds):
            raise AssertionError(f"waited {waited:.0f} s in vain until {what}\n{workflow.story() if workflow else state()}")
        time.sleep(0.2)
    return answer


def state() -> str:
    return slurm("squeue", "--states=all", "--format=%i %T %N %r %k") + slurm("sinfo", "--Node")


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def jobs_tool(folder: Path, *words: str) -> str:
    command = [sys.executable, REPOSITORY / "workflow/scripts/snaketrain/extras/jobs/jobs.py", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def events(folder: Path, kind: str) -> list[dict]:
    return [event for event in read_events(folder / TRAINING / "journal.jsonl")[0] if event["event"] == kind]


def steps(folder: Path) -> list[int]:
    return [event["step"] for event in events(folder, "train")]


def attempts(folder: Path) -> int:
    return len(events(folder, "attempt"))


def job_of(folder: Path) -> str:
    """The SLURM job that signed the training's folder."""
    return json.loads((folder / TRAINING / "owner.json").read_text())["job"]


def restarts(job: str) -> int:
    return int(re.search(r"Restarts=(\d+)", slurm("scontrol", "show", "job", job))[1])


def nodes_of(job: str) -> list[str]:
    """The first one runs the job's script, and rank 0."""
    return slurm("scontrol", "show", "hostnames", slurm("squeue", "--noheader", "--job", job, "--format", "%N").strip()).split()


def earlier_starts_live(folder: Path) -> bool:
    """Whether processes of the training's job are left from before its last start: srun among them, which may still cancel a step."""
    owner = json.loads((folder / TRAINING / "owner.json").read_text())
    return any(
        environment.get("SLURM_JOB_ID") == owner["job"] and environment.get("SNAKETRAIN_START", owner["start"]) != owner["start"]
        for environment in environments()
    )


def rank_process(job: str, rank: int) -> int:
    """Its process id."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            words = file.read_text(errors="replace").split("\0")
            if {f"SLURM_JOB_ID={job}", f"RANK={rank}"} <= set(words):
                return int(file.parent.name)
    raise AssertionError(f"job {job} has no rank {rank} now")


def environments() -> Iterator[dict[str, str]]:
    """Of all processes of this machine, which the nodes share."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            words = file.read_text(errors="replace").split("\0")
            yield dict((name, value) for name, sign, value in (word.partition("=") for word in words) if sign)


def weights(folder: Path, step: int = STEPS) -> dict:
    return load_file(folder / TRAINING / f"checkpoints/step-{step:08d}/model.safetensors")


def configured(folder: Path, **changes) -> Path:
    """The workspace with other settings: `compute={...}` and the like are merged into what is there."""
    config = read_configuration(folder)
    for section, settings in changes.items():
        config[section] |= settings
    write_configuration(folder, config)
    return folder


def well_on_its_way(workflow: Workflow) -> None:
    until(lambda: max(steps(workflow.folder), default=0) > 12, "it trains", workflow=workflow)
    set_pace(workflow.folder, limits.seconds(1))  # it must not come to its end before it is disturbed


def finished(workflow: Workflow) -> None:
    """From here on without delay."""
    set_pace(workflow.folder, 0)
    workflow.finish()


def assert_as_undisturbed(folder: Path, undisturbed: Path, starts: int, rel: float = 0.0) -> None:
    found, expected = weights(folder), weights(undisturbed)
    for name, values in expected.items():
        assert abs(found[name] - values).max() <= rel * abs(values).max(), name
    assert attempts(folder) == starts
    assert all(event["resume_step"] >= 10 for event in events(folder, "attempt")[1:])
    assert set(steps(folder)) == set(range(1, STEPS + 1))
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        runs = store.execute("select run_uuid, status from runs join tags using (run_uuid) where tags.value like 'train:%'").fetchall()
        assert [status for _, status in runs] == ["FINISHED"]
        counted = store.execute("select step, count(*) from metrics where key = 'train/loss' group by step order by step").fetchall()
    assert counted == [(step, 1) for step in range(1, STEPS + 1)]


class Cluster:
    def __init__(self, folder: Path):
        self.folder, self.slowness = folder, limits.whole_seconds(1)

    def act(self, action: str, *node_or_seconds: str, environment: dict[str, str] | None = None) -> None:
        """As the script cluster.sh knows them: start, stop, crash, start-node, cut, heal, hide, show, node-timeout."""
        command = [HERE / "cluster.sh", action, self.folder, *node_or_seconds]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, env=os.environ | {"SLOWNESS": str(self.slowness)} | (environment or {})
        )
        assert done.returncode == 0, f"{action} {' '.join(node_or_seconds)}: {done.stdout}{done.stderr}"


@contextmanager
def started(folder: Path, **environment: str) -> Iterator[Cluster]:
    """Only SLURM_CONF tells of it, as at many sites: without that no program of SLURM works, also not within a job."""
    cluster = Cluster(folder)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        cluster.act("start", environment=environment)
        yield cluster
    finally:
        cluster.act("stop")
        del os.environ["SLURM_CONF"]


@contextmanager
def hidden(cluster: Cluster, node: str, path: Path) -> Iterator[None]:
    """A node does not have what the others have there, and cannot write there."""
    cluster.act("hide", node, str(path))
    try:
        yield
    finally:
        cluster.act("show", node, str(path))


@contextmanager
def lost(cluster: Cluster, how: str, node: str) -> Iterator[None]:
    """Until what is in here is over."""
    cluster.act(how, node)
    try:
        yield
    finally:
        cluster.act({"crash": "start-node", "cut": "heal"}[how], node)
