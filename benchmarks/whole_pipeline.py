"""The whole workflow against one script that does the same work: the stages one after the other in one process, without Snakemake and MLflow.

Both run the default configuration in a folder of their own, by turns. What the workflow adds is what Snakemake, the start of each
stage in a process of its own, and the follower beside it cost. Goals: at most 25 seconds at the size of the demo, at most 1.05 times
at ten times its length (`--times 10`: as many epochs). With `--tiny` there are next to no steps: what is left is what a start costs, at
most 1.5 times that of the script, and 12 CPU seconds.
"""

import argparse
import copy
import os
import runpy
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from harness import CONFIGURATION, Spent, add_figures, command_line, project, ratio, run, side_by_side, snakemake
from pipeline import workspace

from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.rule_values import training_options


def configuration(folder: Path, times: float) -> Path:
    config = copy.deepcopy(CONFIGURATION)
    config["train"]["epochs"] *= times
    config["runs"]["from_scratch"]["train.epochs"] *= times
    return project(folder, config)


def tiny(folder: Path) -> Path:
    """One run of a BERT with one layer, on 240 sentences of a few words."""
    return workspace.make_workspace(folder, runs={"small": {}})


def one_script(folder: Path) -> list[object]:
    return [sys.executable, __file__, "--stages-in", folder]


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
    for name in pipeline.runs:
        home = f"results/runs/{name}"
        data = {"data": pipeline.data(name)}
        trained, named = {"training": f"{home}/training/manifest.json", **data}, {"run-name": name}
        model = {"model": pipeline.weights(name)}
        of_compute = training_options(pipeline.runs[name])
        stage(pipeline, "train_model", name, f"{home}/training", of_compute, **data, **model, **named)
        stage(pipeline, "select_checkpoint", name, f"{home}/selection", **trained)
        chosen = {"selection": f"{home}/selection/manifest.json"}
        stage(pipeline, "evaluate_model", name, f"{home}/evaluation", **chosen, **trained, **model, **named)
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


def main() -> None:
    parser = command_line("whole_pipeline", __doc__)
    parser.add_argument(
        "--times", type=float, default=1, help="as many epochs as by default (%(default)s); what is added hardly depends on it"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a run of a tiny model on a few sentences, instead of the default configuration"
    )
    parser.add_argument("--rounds", type=int, default=1, help="turns of each of the two (default: %(default)s)")
    parser.add_argument("--stages-in", type=Path, help=argparse.SUPPRESS)  # the one script, in a process of its own
    args = parser.parse_args()
    if args.stages_in:
        return run_stages(args.stages_in)
    environment = {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    with tempfile.TemporaryDirectory(prefix="whole-") as folder:

        def whole(command: Callable[[Path], list[object]]) -> Spent:
            place = Path(tempfile.mkdtemp(dir=folder))
            return run(command(tiny(place) if args.tiny else configuration(place, args.times)), environment)

        spent = side_by_side({"workflow": partial(whole, snakemake), "one script": partial(whole, one_script)}, args.rounds)
    found: dict[str, object] = {"rounds": args.rounds}
    for kind, clock in {"s": "seconds", "CPU s": "cpu_seconds"}.items():
        each = {name: [getattr(one, clock) for one in of] for name, of in spent.items()}
        found |= {f"{name}, {kind}": round(statistics.median(seconds), 1) for name, seconds in each.items()}
        found[f"more, {kind}"] = round(statistics.median(a - b for a, b in zip(*each.values(), strict=True)), 1)
        found[f"ratio of {kind}"] = ratio(*each.values())
    add_figures(args.output, {"a tiny run" if args.tiny else f"{args.times:g} times the epochs": found})


if __name__ == "__main__":
    main()
