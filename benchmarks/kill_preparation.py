"""Kills each job that prepares shards with SIGKILL at random moments of its work, and repeats it: what it makes must come out the same.

    python benchmarks/kill_preparation.py --trials 20

A small text in two shards; the jobs of a real workflow, by the commands in their logs. Only trials in which the
job was killed after it had begun its work and before it ended count; the others are counted separately and replaced.
"""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import command_line, judge, write_figures
from preparing import real_texts, shuffled
from scaling_preparation import prepare, project, write_file

from snaketrain.runtime.manifests import file_digest, read_manifest

FILES, BYTES = 4, 4e5
MOST_MISSES = 10  # for each trial
WORKS_IN = {  # where a job makes its results; below the data set's folder
    "prepare_shard": "shards/{shard}",
    "prepare_data": "tokenizer",
}


@dataclass
class Found:
    killed: int = 0  # at work
    missed: int = 0  # had ended before
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """The first job of a stage, which has been done before."""

    folder: Path  # of the workflow
    command: list[str]
    manifest: Path
    works_in: Path

    @classmethod
    def of(cls, folder: Path, stage: str) -> "Job":
        for log in sorted((folder / "logs" / stage).rglob("*.log")):
            words = shlex.split(log.read_text().splitlines()[0])
            script = next(number for number, word in enumerate(words) if word.endswith(f"/{stage}.py"))
            command = [sys.executable, *words[script:]]  # the job itself, not what forks it in a test
            manifest = folder / command[command.index("--output") + 1]
            if manifest.exists():
                (data,) = folder.glob("results/data/*")
                return cls(folder, command, manifest, data / WORKS_IN[stage].format(shard=log.stem))
        raise SystemExit(f"{folder}: no job of {stage} has a log and a result")

    def made(self) -> tuple[Any, ...]:
        """The manifest, except for times, and the content of the files that it names."""
        manifest = read_manifest(self.manifest)
        content = {name: file_digest(manifest.folder / name) for name in manifest.files}
        return manifest.identity, manifest.inputs, manifest.facts, manifest.files, content

    def remove_results(self, parts: list[str]) -> None:
        for path in (self.works_in, *(self.works_in.parents[1] / "parts" / part for part in parts)):
            shutil.rmtree(path, ignore_errors=True)
        for name in (self.manifest.name, ".made-before.json"):
            self.manifest.with_name(name).unlink(missing_ok=True)

    def started(self) -> subprocess.Popen[bytes]:
        """Once it is at work."""
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(self.command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not self.works_in.exists() and process.poll() is None:
            time.sleep(0.001)
        return process

    def repeated(self) -> tuple[float, str]:
        """How long it was at work, and its errors if it failed."""
        process, began = self.started(), time.perf_counter()
        errors = process.communicate()[1].decode()
        return time.perf_counter() - began, errors if process.returncode else ""

    def was_killed(self, seconds: float) -> bool:
        """Whether it was still at work so many seconds after it had begun."""
        process = self.started()
        time.sleep(seconds)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL


def kill_trials(folder: Path, stage: str, trials: int, seed: int = 0) -> Found:
    job, found, draw = Job.of(folder, stage), Found(), random.Random(seed)
    wanted, parts = job.made(), read_manifest(job.manifest).facts.get("parts", [])
    job.remove_results(parts)
    seconds, errors = job.repeated()
    if errors or job.made() != wanted:
        raise SystemExit(f"{stage}: its job, repeated without being killed, fails or makes something else. {errors}")
    while found.killed < trials and found.missed < MOST_MISSES * trials:
        job.remove_results(parts)
        if not job.was_killed(after := draw.uniform(0, seconds)):
            found.missed, seconds = found.missed + 1, after
            continue
        found.killed += 1
        _, errors = job.repeated()
        if errors or job.made() != wanted:
            found.problems.append(f"{stage}, killed {after:.3f} s after it began its work: {errors or 'something else was made'}")
    if found.killed < trials:
        found.problems.append(f"{stage}: only {found.killed} of {trials} jobs were killed at work")
    return found


def main() -> None:
    parser = command_line("kill_preparation", __doc__)
    parser.add_argument("--trials", type=int, default=20, help="how often each job is killed at work (default: %(default)s)")
    args = parser.parse_args()
    stages: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kill-preparation-") as name:
        for number in range(FILES):
            write_file(Path(name) / f"raw/part-{number}.jsonl", shuffled(real_texts("imdb"), number), BYTES)
        project(Path(name))
        prepare(Path(name))
        for stage in WORKS_IN:
            found = kill_trials(Path(name), stage, args.trials)
            stages[stage] = {"killed at work": found.killed, "went wrong": len(found.problems), "had ended before": found.missed}
            print(stage, *found.problems, sep="\n  ", flush=True)
    write_figures(args.output, {"trials": args.trials, "stages": stages})
    judge({f"the same after {args.trials} kills of each job": not any(each["went wrong"] for each in stages.values())})


if __name__ == "__main__":
    main()
