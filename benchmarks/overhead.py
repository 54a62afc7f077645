"""What the workflow itself costs, where there is nothing to do and where there is much to plan.

1. `snakemake` on finished results, against `snakemake` on a finished Snakefile of one rule: goal 1.2 times.
2. A dry run of a sweep of 200, 1,000 and 3,000 runs, against one of a Snakefile with the same jobs, which reads no configuration and takes
   its settings as JSON: goals 1.35 times its CPU time, and 1.2 times its memory.

Each is measured in turn with what it is compared with, so that whatever else the machine does hits both.
"""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Spent, command_line, judge, ratio, run, side_by_side, snakemake, write_figures
from pipeline import workspace

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
CPU_GOAL, MEMORY_GOAL = 1.35, 1.2  # of a dry run
FLOOR_GOAL = 1.2  # of a start with nothing to do


Beside = tuple[list[Spent], list[Spent]]  # ours and a reference


def beside(ours: Callable[[], Spent], reference: Callable[[], Spent], turns: int) -> Beside:
    """Each once more before it counts: the first dry run tries what the runs name, and the first start of one rule makes its file."""
    found = side_by_side({"ours": ours, "reference": reference}, turns, warm_up=1)
    return found["ours"], found["reference"]


def nothing_to_do(folder: Path, turns: int) -> Beside:
    """Against a finished Snakefile of one rule."""
    ours, plain = workspace.make_workspace(folder / "finished", runs={"small": {}}), folder / "plain"
    workspace.snakemake(ours)
    if "Nothing to be done" not in (again := workspace.snakemake(ours).stderr):
        raise SystemExit(f"There is something to be done, so that this would measure something else:\n{again[-4000:]}")
    plain.mkdir()
    (plain / "Snakefile").write_text(ONE_RULE)
    return beside(lambda: run(snakemake(ours)), lambda: run(snakemake(plain, snakefile=plain / "Snakefile")), turns)


def dry_runs(folder: Path, runs: int, turns: int) -> Beside:
    """Against a Snakefile with the same jobs."""
    sweep = {"rate": {"train.learning_rate": [i / 1e5 for i in range(1, runs // 10 + 1)], "train.seed": list(range(10))}}
    ours = workspace.make_workspace(folder / f"sweep-{runs}", runs={}, sweeps=sweep)
    same = folder / "Snakefile"
    same.write_text(SAME_JOBS.replace("RUNS", str(runs)))
    dry = partial(snakemake, ours, "--cores", 2, "--dry-run")
    return beside(lambda: run(dry()), lambda: run(dry(snakefile=same)), turns)


def medians(found: Beside, name: str, ours: str, theirs: str) -> dict[str, float]:
    """With the ratio under the name alone."""
    figures: dict[str, float] = {}
    for what, unit, field in (("wall", "wall seconds", "seconds"), ("CPU", "CPU seconds", "cpu_seconds"), ("memory", "MB", "megabytes")):
        own, other = ([getattr(each, field) for each in spent] for spent in found)
        figures |= {f"{ours}, {unit}": round(statistics.median(own), 2), f"{theirs}, {unit}": round(statistics.median(other), 2)}
        figures[f"{name}, {what}"] = ratio(own, other)
    return figures


def main() -> None:
    parser = command_line("overhead", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="repetitions of the first comparison (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of the dry run (%(default)s)")
    parser.add_argument("--runs", type=int, nargs="+", default=[200, 1000, 3000], help="the sizes of the sweeps (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        found = medians(nothing_to_do(Path(folder), args.pairs), "nothing to do", "workflow", "one rule")
        goals = {f"nothing to do, {what}: {FLOOR_GOAL}": found[f"nothing to do, {what}"] <= FLOOR_GOAL for what in ("CPU", "wall")}
        for runs in args.runs:
            name = f"{runs} runs against the same jobs"
            found |= medians(dry_runs(Path(folder), runs, args.repeats), name, f"{runs} runs", f"the same jobs as {runs} runs")
            goals[f"{name}, CPU: {CPU_GOAL}"] = found[f"{name}, CPU"] <= CPU_GOAL
            goals[f"{name}, memory: {MEMORY_GOAL}"] = found[f"{name}, memory"] <= MEMORY_GOAL
    write_figures(args.output, {"pairs": args.pairs, "repeats": args.repeats} | found)
    judge(goals)


if __name__ == "__main__":
    main()
