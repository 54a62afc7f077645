"""Compares settings that only affect the speed: the same steps on the same batches of varied lengths.

    processes   two processes of one thread each, against one of two threads; goal: at least 0.95 of its throughput
    bf16        half precision against fp32; faster on CPUs that support it (`avx512_bf16` or `amx_bf16` in /proc/cpuinfo)
    compile     blocks compiled by torch.compile, first with an empty cache and then with a full one, against blocks that are not compiled

The default configuration's pretrained model and sentences, in turns, each training in the processes that the workflow would start.
The throughput is that of whole trainings by their journals: examples of all processes, over the time of the steps, without start, evaluation
and saving; the median of the stretches between two lines of the journal, without the first, which warms up. The seconds are those of the
whole process.
"""

import copy
import os
import shlex
import statistics
import tempfile
from pathlib import Path

from harness import CONFIGURATION, REPOSITORY, add_figures, command_line, in_turns, project, ratio, run, snakemake

from snaketrain.orchestration import launching
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.rule_values import training_options
from snaketrain.runtime.journal import all_events

ONE_PROCESS = {"compute": {"processes": 1, "threads": 2}}
PAIRS = {
    "processes": {"two": {"compute": {"processes": 2, "threads": 2}}, "one": ONE_PROCESS},
    "compile": {
        "compiled cold": ONE_PROCESS | {"train.compile": True},
        "plain": ONE_PROCESS,
        "compiled warm": ONE_PROCESS | {"train.compile": True},
    },
    "bf16": {"bf16": ONE_PROCESS | {"train.precision": "bf16"}, "fp32": ONE_PROCESS | {"train.precision": "fp32"}},
}


def prepared(folder: Path, pair: str, steps: int, batch_size: int) -> Pipeline:
    """The data and the model; a run for each way."""
    config = copy.deepcopy(CONFIGURATION)
    config["train"] |= {"steps": steps, "evaluate_every": steps, "batch_size": batch_size}
    config["train"].pop("epochs"), config["train"].pop("evaluations_per_epoch", None)
    config["runs"] = {name.replace(" ", "-"): settings for name, settings in PAIRS[pair].items()}
    os.chdir(project(folder, config))
    pipeline = Pipeline(config)
    made = {pipeline.data(run) for run in pipeline.runs} | {weights for run in pipeline.runs for weights in pipeline.weights(run)}
    run(snakemake(folder, "--cores", 2, "--show-failed-logs", *sorted(made)))
    return pipeline


def trained(pipeline: Pipeline, name: str, number: int) -> tuple[float, float, float]:
    """Examples a second, the loss on the development set at the end, and the seconds from start to end."""
    folder = Path(f"turns/{number}/{name}/training")
    settings, compute = pipeline.stages["train_model"].settings_file(name), pipeline.stages["train_model"].compute(name)
    words = ["--run-name", name, "--output", f"{folder}/manifest.json", "--settings", settings, "--data", pipeline.data(name)]
    words += ["--model", *pipeline.weights(name)]
    script, options = REPOSITORY / "workflow/scripts/train_model.py", training_options(pipeline.runs[name])
    command = f"{launching.launch(compute, in_slurm_job=False)} {shlex.join([str(script), *words])} {options}"
    cache = Path("warm" if name.endswith("warm") else f"turns/{number}/{name}-cache").resolve()
    seconds = run(["bash", "-c", command], {"TORCHINDUCTOR_CACHE_DIR": str(cache)}).seconds
    events = list(all_events(folder / "journal.jsonl"))
    speeds = [event["metrics"]["examples_per_second"] for event in events if event["event"] == "train"][1:]
    return statistics.median(speeds), [event for event in events if event["event"] == "eval"][-1]["metrics"]["loss"], seconds


def main() -> None:
    parser = command_line("ways", __doc__)
    parser.add_argument("pair", choices=PAIRS, help="the settings to compare: see above")
    parser.add_argument("--steps", type=int, default=60, help="steps of each training (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="batch of all processes together (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each of the settings (default: %(default)s)")
    args = parser.parse_args()
    speeds: dict[str, list[float]] = {name: [] for name in PAIRS[args.pair]}
    seconds: dict[str, list[float]] = {name: [] for name in PAIRS[args.pair]}
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ways-") as folder:
        pipeline = prepared(Path(folder), args.pair, args.steps, args.batch_size)
        if args.pair == "compile":
            trained(pipeline, "compiled-warm", -1)  # which fills the cache
        for number, name in in_turns(list(speeds), args.turns):
            speed, losses[name], took = trained(pipeline, name.replace(" ", "-"), number)
            speeds[name].append(round(speed, 2)), seconds[name].append(round(took, 1))
            print(f"{name}: {speed:.1f} examples a second, {took:.1f} s in all, dev loss {losses[name]:.4f}", flush=True)
        os.chdir(REPOSITORY)
    first, second, *_ = speeds.values()
    results = {"steps": args.steps, "examples a second": speeds, "seconds": seconds, "dev loss": losses, "ratio": ratio(first, second)}
    add_figures(args.output, {f"{args.pair}, batches of {args.batch_size}": results})


if __name__ == "__main__":
    main()
