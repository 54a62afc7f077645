"""Whether models trained in half precision are as good as those trained in fp32: the same configuration with each, over several seeds.

DATA_FOLDER holds stsa.binary.train, .dev and .test, sentences of SST-2 with `label sentence` on each line. The whole workflow fine-tunes a
pretrained MiniLM, and evaluates it on the test set. Every difference between two precisions is that of runs with the same seed; its error is
the standard error over the seeds. Made for a GPU: few CPUs compute in half precision.
"""

import argparse
import csv
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import CONFIGURATION, command_line, device_name, judge, project, run, snakemake, write_figures

from snaketrain.runtime.journal import all_events

FIRST_SEED = 1


def configuration(folder: Path, raw: Path, args: argparse.Namespace) -> dict[str, Any]:
    for split in ("train", "dev", "test"):
        rows = [line.split(" ", 1) for line in (raw / f"stsa.binary.{split}").read_text(encoding="latin-1").splitlines()]
        with open(folder / f"{split}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("label", "text"), *rows])
    data = {"name": "sst2", "tokenizer": CONFIGURATION["data"]["tokenizer"], "labels": {0: "negative", 1: "positive"}, "max_length": 64}
    data |= {split: {"path": str(folder / f"{split}.csv")} for split in ("train", "dev", "test")}
    train = CONFIGURATION["train"] | {"epochs": args.epochs}
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    runs = {
        f"{precision}-{seed}": {"train.precision": precision, "train.seed": seed}
        for precision, seed in itertools.product(args.precisions, seeds)
    }
    sections = {"data": data, "model": CONFIGURATION["model"], "train": train, "select": CONFIGURATION["select"], "runs": runs}
    return sections | {"compute": {"threads": 1, "device": args.device}}


def accuracy(folder: Path, name: str) -> float:
    return json.loads((folder / f"results/runs/{name}/evaluation/test_results.json").read_text())["metrics"]["accuracy"]


def speed(folder: Path, name: str) -> float:
    """Examples a second in steps, while as many trainings as there are `--cores` share the device."""
    events = all_events(folder / f"results/runs/{name}/training/journal.jsonl")
    return statistics.median(event["metrics"]["examples_per_second"] for event in events if event["event"] == "train")


def main() -> None:
    parser = command_line("precisions", __doc__)
    parser.add_argument("folder", type=Path, metavar="DATA_FOLDER", help="folder with the files of SST-2 named above")
    parser.add_argument(
        "--precisions", nargs="+", default=["fp32", "bf16", "fp16"], help="the first one is the reference (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each precision (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the 6,920 sentences (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="device to train on (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=4, help="trainings at a time (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="precisions-") as name:
        folder = Path(name)
        project(folder, configuration(folder, args.folder, args))
        run(snakemake(folder, "--cores", args.cores, "--show-failed-logs"), folder=folder)
        seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
        found = {precision: [accuracy(folder, f"{precision}-{seed}") for seed in seeds] for precision in args.precisions}
        speeds = {precision: statistics.median(speed(folder, f"{precision}-{seed}") for seed in seeds) for precision in args.precisions}
    reference, *others = args.precisions
    table: dict[str, dict[str, Any]] = {}
    for precision, each in found.items():
        table[precision] = {"accuracies": [round(value, 4) for value in each], "mean": round(statistics.mean(each), 4)}
        table[precision] |= {"standard deviation": round(statistics.stdev(each), 4), "examples a second": round(speeds[precision])}
        if precision in others:
            differences = [one - other for one, other in zip(each, found[reference], strict=True)]
            table[precision]["difference"] = round(statistics.mean(differences), 4)
            table[precision]["its error"] = round(statistics.stdev(differences) / args.seeds**0.5, 4)
    settings = {"device name": device_name(args.device), "epochs": args.epochs, "seeds": args.seeds}
    write_figures(args.output, settings | {"precisions": table})
    close = {precision: abs(table[precision]["difference"]) <= 2 * table[precision]["its error"] for precision in others}
    judge({f"{precision} is within two standard errors of {reference}": within for precision, within in close.items()})


if __name__ == "__main__":
    main()
