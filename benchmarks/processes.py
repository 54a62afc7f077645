"""Two training processes of one thread each against one of two threads: the same steps on the same batches of varied lengths.

The default configuration's pretrained model and sentences, by turns, each training in the processes that the workflow would start.
The throughput is that of whole trainings by their journals: examples of all processes, over the time of the steps, without start, evaluation
and saving. Goal: at least 0.95.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "workflow/scripts"
sys.path.insert(0, str(SCRIPTS))

from snaketrain.journal import all_events  # noqa: E402
from snaketrain.workflow.pipeline import Pipeline  # noqa: E402

LAYOUTS = {"2 processes": (2, "ddp"), "1 process": (1, "single")}


def prepared(folder: Path, steps: int, batch_size: int) -> Pipeline:
    """The data and the model; a run for each layout."""
    config = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
    config["train"] |= {"steps": steps, "evaluate_every": steps, "batch_size": batch_size}
    config["train"].pop("epochs"), config["train"].pop("evaluations_per_epoch", None)
    config["runs"] = {
        name.replace(" ", "-"): {"compute": {"processes": processes, "threads": 2}, "train.strategy": strategy}
        for name, (processes, strategy) in LAYOUTS.items()
    }
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(yaml.safe_dump(config))
    os.chdir(folder)
    pipeline = Pipeline(config)
    command = [sys.executable, "-m", "snakemake", "--snakefile", REPOSITORY / "Snakefile", "--cores", "2", "--show-failed-logs"]
    made = {pipeline.data(run) for run in pipeline.runs} | {weights for run in pipeline.runs for weights in pipeline.weights(run)}
    subprocess.run([*map(str, command), *sorted(made)], check=True, stdout=sys.stderr)
    return pipeline


def trained(pipeline: Pipeline, run: str, number: int) -> float:
    """Examples a second."""
    folder = Path(f"turns/{number}/{run}/training")
    paths = ["--run-name", run, "--output", f"{folder}/manifest.json", "--data", pipeline.data(run), "--model", *pipeline.weights(run)]
    words = [
        pipeline.command("train_model", run),
        shlex.join(paths),
        pipeline.training_options(run),
        pipeline.arguments("train_model", run),
    ]
    done = subprocess.run(" ".join(words), shell=True, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the training {run} failed:\n{done.stderr[-4000:]}")
    lines = [event for event in all_events(folder / "journal.jsonl") if event["event"] == "train"]
    seconds = [batch["examples_per_second"] for batch in (line["metrics"] for line in lines[1:])]  # the first ones warm up
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of each training (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="of both processes together (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each layout (%(default)s)")
    parser.add_argument(
        "--output", type=Path, default=REPOSITORY / "benchmarks/results/processes.json", help="what is in it stays (%(default)s)"
    )
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        pipeline = prepared(Path(folder), args.steps, args.batch_size)
        for number in range(args.turns):
            for name in LAYOUTS if number % 2 else reversed(LAYOUTS):
                found[name].append(trained(pipeline, name.replace(" ", "-"), number))
                print(f"{name}: {found[name][-1]:.1f} examples a second", flush=True)
        os.chdir(REPOSITORY)
    ratio = statistics.median(two / one for two, one in zip(*found.values(), strict=True))
    results = {"date": time.strftime("%Y-%m-%d"), "steps": args.steps, "examples a second": found, "ratio": round(ratio, 3)}
    print(json.dumps(results, indent=2))
    before = json.loads(args.output.read_text()) if args.output.is_file() else {}
    args.output.write_text(json.dumps(before | {f"batches of {args.batch_size}": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
