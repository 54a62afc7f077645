"""The whole workflow against one script that does the same work: the stages one after the other in one process, without Snakemake and MLflow.

Both run the default configuration in a folder of their own, by turns. What the workflow adds is what Snakemake, the start of each
stage in a process of its own, and the follower beside it cost. Goals: at most 25 seconds at the size of the demo, at most 1.05 times
at ten times its length (`--times 10`: as many epochs).
"""

import argparse
import json
import os
import runpy
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from harness import add_figures, command_line

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "workflow/scripts"
sys.path.insert(0, str(SCRIPTS))

from snaketrain.cli import commands  # noqa: E402
from snaketrain.orchestration.pipeline import Pipeline  # noqa: E402


def configuration(folder: Path, times: float) -> Path:
    config = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
    config["train"]["epochs"] *= times
    config["runs"]["from_scratch"]["train.epochs"] *= times
    (folder / "config").mkdir(parents=True)
    (folder / "config/config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return folder


def workflow(folder: Path) -> list[str]:
    return [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(folder), "--cores", "2"]


def one_script(folder: Path) -> list[str]:
    return [sys.executable, __file__, "--stages-in", str(folder)]


def run_stages(folder: Path) -> None:
    """What the rules do, in their order."""
    os.chdir(folder)
    pipeline = Pipeline(yaml.safe_load(Path("config/config.yaml").read_text()))
    for name in pipeline.models:
        stage(pipeline, "fetch_model", name, f"results/models/{name}")
    for name in pipeline.datasets:
        stage(pipeline, "fetch_data", name, f"results/raw/{name}")
        given = {
            "raw": f"results/raw/{name}/manifest.json",
            "tokenizer": pipeline.manifest(*pipeline.stages["prepare_data"].reads(name)["tokenizer"]),
            "threads": 2,
        }
        stage(pipeline, "prepare_data", name, f"results/data/{name}", **given)
    for run in pipeline.runs:
        home = f"results/runs/{run}"
        data = {"data": pipeline.data(run)}
        trained, named = {"training": f"{home}/training/manifest.json", **data}, {"run-name": run}
        model = {"model": pipeline.weights(run)}
        of_compute = commands.training_options(pipeline.runs[run])
        stage(pipeline, "train_model", run, f"{home}/training", of_compute, **data, **model, **named)
        stage(pipeline, "select_checkpoint", run, f"{home}/selection", **trained)
        chosen = {"selection": f"{home}/selection/manifest.json"}
        stage(pipeline, "evaluate_model", run, f"{home}/evaluation", **chosen, **trained, **model, **named)
    stage(pipeline, "compare_runs", "", "results/comparison", **{"runs-root": "results/runs", "runs": list(pipeline.runs)})


def stage(pipeline: Pipeline, rule: str, name: str, folder: str, options: str = "", **given: Any) -> None:
    script = pipeline.stages[rule].script
    given = {"output": f"{folder}/manifest.json", "settings": pipeline.stages[rule].settings_file(name), **given}
    words = [[f"--{option}", *(value if isinstance(value, list) else [str(value)])] for option, value in given.items()]
    sys.argv = [script.name, *(word for option in words for word in option), *shlex.split(options)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


def seconds(command: list[str], log: Path) -> tuple[float, float]:
    """By the clock, and of the processors."""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    started, before = time.perf_counter(), os.times()
    with open(log, "w", encoding="utf-8") as output:
        code = subprocess.run(command, stdout=output, stderr=output, env=environment).returncode
    if code:
        raise SystemExit(f"{shlex.join(command)} failed:\n{log.read_text(encoding='utf-8')[-4000:]}")
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, spent


def main() -> None:
    parser = command_line("whole_pipeline", __doc__)
    parser.add_argument(
        "--times", type=float, default=1, help="as many epochs as by default (%(default)s); what is added hardly depends on it"
    )
    parser.add_argument("--rounds", type=int, default=1, help="turns of each of the two (default: %(default)s)")
    parser.add_argument("--stages-in", type=Path, help=argparse.SUPPRESS)  # the one script, in a process of its own
    args = parser.parse_args()
    if args.stages_in:
        return run_stages(args.stages_in)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="whole-") as folder:
        for number in range(args.rounds):
            sides = [(ours, workflow), (theirs, one_script)]
            for times, command in sides if number % 2 else sides[::-1]:
                place = configuration(Path(folder) / f"{command.__name__}-{number}", args.times)
                times.append(seconds(command(place), place / "log.txt"))
                print(f"{command.__name__}: {times[-1][0]:.1f} s, CPU {times[-1][1]:.1f} s", flush=True)
    found = {"date": time.strftime("%Y-%m-%d"), "rounds": args.rounds}
    for number, kind in enumerate(("s", "CPU s")):
        mine, others = ([pair[number] for pair in pairs] for pairs in (ours, theirs))
        found |= {
            f"workflow, {kind}": round(statistics.median(mine), 1),
            f"one script, {kind}": round(statistics.median(others), 1),
            f"more, {kind}": round(statistics.median(a - b for a, b in zip(mine, others, strict=True)), 1),
            f"ratio of {kind}": round(statistics.median(a / b for a, b in zip(mine, others, strict=True)), 3),
        }
    print(json.dumps(found, indent=2))
    add_figures(args.output, {f"{args.times:g} times the epochs": found})


if __name__ == "__main__":
    main()
