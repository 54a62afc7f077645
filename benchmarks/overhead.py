"""What the workflow itself costs, where there is nothing to do and where there is much to plan.

1. `snakemake` on finished results, against `snakemake` on a finished Snakefile of one rule: goal 1.2 times.
2. A dry run of a sweep of 200, 1,000 and 3,000 runs, against one of a Snakefile with the same jobs, which reads no configuration and takes
   its settings as JSON: goals 3, 7 and 17 seconds of CPU time, and 1.2 times its memory.

Each is measured in turn with what it is compared with, so that whatever else the machine does hits both.
"""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from harness import command_line, write_figures

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from pipeline.workspace import configuration, make_workspace, snakemake, write_configuration  # noqa: E402

ONE_RULE = 'rule all:\n    output:\n        "done.txt",\n    shell:\n        "touch {output}"\n'
SAME_JOBS = """import json

SETTINGS = {f"rate-{i}": json.dumps({f"setting_{j}": i for j in range(40)}) for i in range(RUNS)}
SHARED = json.dumps({f"setting_{j}": j for j in range(40)})
of_run = lambda wildcards: SETTINGS[wildcards.run]


rule all:
    input:
        "results/comparison/manifest.json",
        expand("results/runs/{run}/evaluation/manifest.json", run=SETTINGS),


rule prepare_data:
    output:
        "results/data/manifest.json",
    log:
        "logs/prepare_data.log",
    params:
        data=SHARED,
    shell:
        "prepare_data --output {output:q} --settings {params.data:q} > {log:q}"


rule train_model:
    input:
        data="results/data/manifest.json",
    output:
        "results/runs/{run}/training/manifest.json",
    log:
        "logs/train_model/{run}.log",
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        model=SHARED,
        train=of_run,
    shell:
        "train_model --output {output:q} --data {input.data:q} --settings {params.model:q} {params.train:q} > {log:q}"


rule select_checkpoint:
    input:
        training="results/runs/{run}/training/manifest.json",
        data="results/data/manifest.json",
    output:
        "results/runs/{run}/selection/manifest.json",
    log:
        "logs/select_checkpoint/{run}.log",
    params:
        select=SHARED,
    shell:
        "select_checkpoint --output {output:q} --training {input.training:q} --data {input.data:q} --settings {params.select:q} > {log:q}"


rule evaluate_model:
    input:
        training="results/runs/{run}/training/manifest.json",
        selection="results/runs/{run}/selection/manifest.json",
        data="results/data/manifest.json",
    output:
        manifest="results/runs/{run}/evaluation/manifest.json",
        results=expand("results/runs/{{run}}/evaluation/{split}_results.json", split=["dev", "test"]),
    log:
        "logs/evaluate_model/{run}.log",
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        evaluate=SHARED,
    shell:
        "evaluate_model --output {output.manifest:q} --selection {input.selection:q} --data {input.data:q} --settings {params.evaluate:q} > {log:q}"


rule compare_runs:
    input:
        expand("results/runs/{run}/evaluation/manifest.json", run=SETTINGS),
    output:
        "results/comparison/manifest.json",
    log:
        "logs/compare_runs.log",
    params:
        runs=list(SETTINGS),
    shell:
        "compare_runs --output {output:q} --runs {params.runs:q} > {log:q}"
"""
GOALS = {
    "nothing to do, CPU": 1.2,
    "nothing to do, wall": 1.2,
    "dry run of 200 runs, CPU": 3.0,
    "dry run of 1000 runs, CPU": 7.0,
    "dry run of 3000 runs, CPU": 17.0,
} | {f"dry run of {runs} runs, memory against the same jobs": 1.2 for runs in (200, 1000, 3000)}


class Used(NamedTuple):
    """By a process with all processes below: seconds of CPU and of the clock, and the most memory that one of them had."""

    cpu: float
    wall: float
    mb: float


def measured(folder: Path, snakefile: Path, *arguments: str) -> Used:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile), "--directory", str(folder), "--cores", "2", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output, cwd=folder)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        output.seek(0)
        said = output.read()
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{said[-4000:]}")
    if not arguments and "Nothing to be done" not in said:
        raise SystemExit(f"There was something to be done, so that this measures something else:\n{said[-4000:]}")
    return Used(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1000)


def middle(times: list[Used]) -> Used:
    return Used(*map(statistics.median, zip(*times, strict=True)))


def nothing_to_do(folder: Path, pairs: int) -> dict[str, float]:
    ours, plain = make_workspace(folder / "ours"), folder / "plain"
    plain.mkdir()
    (plain / "Snakefile").write_text(ONE_RULE)
    snakemake(ours)
    subprocess.run([sys.executable, "-m", "snakemake", "--cores", "1"], check=True, capture_output=True, cwd=plain)
    mine, theirs = zip(
        *((measured(ours, REPOSITORY / "Snakefile"), measured(plain, plain / "Snakefile")) for _ in range(pairs)), strict=True
    )
    return {
        "workflow, CPU seconds": middle(mine).cpu,
        "one rule, CPU seconds": middle(theirs).cpu,
        "nothing to do, CPU": statistics.median(m.cpu / t.cpu for m, t in zip(mine, theirs, strict=True)),
        "workflow, wall seconds": middle(mine).wall,
        "one rule, wall seconds": middle(theirs).wall,
        "nothing to do, wall": statistics.median(m.wall / t.wall for m, t in zip(mine, theirs, strict=True)),
    }


def planning(folder: Path, runs: int, repeats: int) -> dict[str, float]:
    """After a dry run that is not measured, since the first one tries what the runs name, and remembers what it found."""
    sweep = {"rate": {"train.learning_rate": [i / 1e5 for i in range(1, runs // 10 + 1)], "train.seed": list(range(10))}}
    make_workspace(folder)
    write_configuration(folder, configuration() | {"runs": {}, "sweeps": sweep})
    floor = folder / "Snakefile"
    floor.write_text(SAME_JOBS.replace("RUNS", str(runs)))
    measured(folder, REPOSITORY / "Snakefile", "--dry-run")
    pairs = [(measured(folder, REPOSITORY / "Snakefile", "--dry-run"), measured(folder, floor, "--dry-run")) for _ in range(repeats)]
    ours, same = (middle(list(times)) for times in zip(*pairs, strict=True))
    name = f"dry run of {runs} runs"
    return {
        f"{name}, CPU": ours.cpu,
        f"{name}, CPU of the same jobs": same.cpu,
        f"{name}, CPU against the same jobs": ours.cpu / same.cpu,
        f"{name}, MB": ours.mb,
        f"{name}, MB of the same jobs": same.mb,
        f"{name}, memory against the same jobs": ours.mb / same.mb,
    }


def machine() -> str:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions = f"Python {platform.python_version()}, snakemake {importlib.metadata.version('snakemake')}"
    return f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}, {versions}"


def main() -> None:
    parser = command_line("overhead", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="repetitions of the first comparison (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of the dry run (%(default)s)")
    parser.add_argument("--runs", type=int, nargs="+", default=[200, 1000, 3000], help="the sizes of the sweeps (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        found = nothing_to_do(Path(folder), args.pairs)
        for runs in args.runs:
            found |= planning(Path(folder) / f"sweep-{runs}", runs, args.repeats)
    for name, value in found.items():
        goal = f"   goal {GOALS[name]:g}: {'met' if value <= GOALS[name] else 'missed'}" if name in GOALS else ""
        print(f"{name:50} {value:7.2f}{goal}")
    when = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "pairs": args.pairs, "repeats": args.repeats}
    write_figures(args.output, when | {name: round(value, 3) for name, value in found.items()})


if __name__ == "__main__":
    main()
