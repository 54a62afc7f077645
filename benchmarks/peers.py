"""The time of a training: the pipeline's against that with the Trainer of transformers and with Lightning.

DATA_FOLDER holds stsa.binary.train and stsa.binary.dev, sentences of SST-2 with `label sentence` on each line. A pretrained MiniLM is
fine-tuned, on a CPU in fp32 unless otherwise said; all have the same tokens, batch size, AdamW (fused), weight decay, clipping, linear schedule, seed,
threads, and evaluations of the same sentences at the same steps, each in a process of its own. contenders.py says what each does
in its own way. The goal is a share of the other's time for all steps and evaluations. The time to the same accuracy is not compared: it
depends on the seed more than on the library.
Ours evaluates before the first step as well, and Lightning not after the last one. Needs requirements-peers.lock.
"""

import argparse
import importlib.metadata
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import CONFIGURATION, command_line, device_name, in_turns, judge, project, ratio, run, snakemake, training, write_figures

from snaketrain.config.schema import Model, Train
from snaketrain.runtime.journal import read_events

OURS = "snaketrain"
GOALS = {"trainer_tutorial": 0.5, "trainer_defaults": 0.5, "trainer_best": 0.9, "lightning": 0.9}


@dataclass(frozen=True)
class Where:
    """All contenders train, and how."""

    device: str
    precision: str
    environment: dict[str, str]


def prepare(folder: Path, raw: Path, examples: int, dev_examples: int) -> tuple[Path, Path]:
    """The manifests of the tokenised data and of the pretrained model, made by the workflow."""
    for split in ("train", "dev"):
        rows = (line.split(" ", 1) for line in (raw / f"stsa.binary.{split}").read_text(encoding="latin-1").splitlines())
        (folder / f"{split}.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    files = {split: {"path": str(folder / f"{split}.tsv")} for split in ("train", "dev")}
    limits = {"limit_train": examples, "limit_dev": dev_examples, "test_fraction": 0.01}
    columns = {"columns": ["label", "text"], "labels": {0: "negative", 1: "positive"}}
    data = {"name": "sst2", **files, **columns, **limits, "tokenizer": CONFIGURATION["data"]["tokenizer"]}
    project(folder, {"data": data, "model": CONFIGURATION["model"], "runs": {"one": {}}})
    run(snakemake(folder, "--cores", 1, "--until", "prepare_data"))
    return next(folder.glob("results/data/*/manifest.json")), next(folder.glob("results/models/*/manifest.json"))


def plan(examples: int, args: argparse.Namespace) -> dict[str, Any]:
    steps = -(-examples // args.batch_size) * args.epochs
    every = max(1, steps // args.evaluations)
    return {
        "batch_size": args.batch_size, "steps": steps, "evaluate_every": every, "learning_rate": 1e-4, "warmup": max(1, steps // 10),
        "weight_decay": 0.01, "clip_norm": 1.0, "seed": args.seed,
    }  # fmt: skip


def run_ours(folder: Path, data: Path, model: Path, train: dict[str, Any], where: Where) -> dict[str, Any]:
    """train_model.py as the workflow calls it, with journal, TensorBoard and checkpoints."""
    options = ["--model", model, "--keep-best-by", "accuracy", "--device", where.device]
    words = training(folder, data, Train(**train, precision=where.precision), Model(**CONFIGURATION["model"]), *options, run=OURS)
    cpu_seconds = run([sys.executable, *words], where.environment).cpu_seconds
    events = read_events(folder / "journal.jsonl")[0]
    spent = next(event["spent"] for event in reversed(events) if event["event"] == "end")
    accuracies = [event["metrics"]["accuracy"] for event in events if event["event"] == "eval"]
    waiting = spent["data_wait"] / (spent["data_wait"] + spent["steps"])
    seconds = {"startup": spent["startup"], "seconds": sum(spent.values()) - spent["startup"], "CPU seconds": cpu_seconds}
    return seconds | {"best": max(accuracies), "waiting": waiting}


def run_peer(name: str, folder: Path, data: Path, model: Path, train: dict[str, Any], where: Where) -> dict[str, Any]:
    task = {"contender": name, "folder": str(folder), "data": str(data), "model": str(model), "train": train, "launched": time.time()}
    task |= {"device": where.device, "precision": where.precision}
    cpu_seconds = run([sys.executable, Path(__file__).with_name("contenders.py"), json.dumps(task)], where.environment).cpu_seconds
    return json.loads((folder / "found.json").read_text()) | {"CPU seconds": cpu_seconds}


SHARES = {"ours/theirs, whole plan": "seconds", "ours/theirs, CPU time of the whole process": "CPU seconds"}


def compared(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, and the median share of each peer's time that ours took in the same round."""
    table: dict[str, dict[str, float]] = {}
    for name in rounds[0]:
        of = {key: [found[name][key] for found in rounds] for key in ("seconds", "startup", "CPU seconds", "best")}
        table[name] = {key: round(statistics.median(values), 4 if max(values) <= 1 else 2) for key, values in of.items()}
        if name != OURS:
            table[name] |= {label: ratio([found[OURS][key] for found in rounds], of[key]) for label, key in SHARES.items()}
        else:
            table[name]["share of steps spent waiting for data"] = round(statistics.median(found[name]["waiting"] for found in rounds), 4)
    return table


def main() -> None:
    parser = command_line("peers", __doc__)
    parser.add_argument("folder", type=Path, metavar="DATA_FOLDER", help="folder with the files of SST-2 named above")
    parser.add_argument("--examples", type=int, default=1000, help="sentences to train on (default: %(default)s)")
    parser.add_argument("--dev-examples", type=int, default=400, help="for evaluations (%(default)s)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over them (default: %(default)s)")
    parser.add_argument("--evaluations", type=int, default=4, help="evaluations in each training (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences in a batch (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="seed of the first round; each has its own (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each training (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device to train on (default: %(default)s)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="train.precision (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of all contenders, in another order each time (default: %(default)s)")
    parser.add_argument(
        "--contenders", nargs="+", default=[OURS, *GOALS], choices=[OURS, *GOALS], help="contenders to compare (default: all)"
    )
    args = parser.parse_args()
    environment = {"OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    where = Where(args.device, args.precision, environment)
    rounds: list[dict[str, dict[str, Any]]] = [{} for _ in range(args.rounds)]
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        data, model = prepare(folder, args.folder, args.examples, args.dev_examples)
        for number, contender in in_turns(args.contenders, args.rounds):
            train = plan(args.examples, args) | {"seed": args.seed + number}
            place = folder / f"{contender}-{number}"
            place.mkdir()
            how = run_ours if contender == OURS else partial(run_peer, contender)
            rounds[number][contender] = how(place, data, model, train, where)
            print(f"{contender}: {rounds[number][contender]['seconds']:.1f} s", file=sys.stderr, flush=True)
    table = compared(rounds)
    versions = {package: importlib.metadata.version(package) for package in ("torch", "transformers", "accelerate", "lightning")}
    settings = {key: value for key, value in vars(args).items() if key not in ("folder", "output", "contenders")}
    write_figures(
        args.output, {"versions": versions, "device name": device_name(args.device)} | settings | {"contenders": table, "runs": rounds}
    )
    theirs = {name: row[next(iter(SHARES))] for name, row in table.items() if name != OURS}
    waiting = table[OURS]["share of steps spent waiting for data"]
    judge({f"{name}: {share:.2f} of its time, at most {GOALS[name]}": share <= GOALS[name] for name, share in theirs.items()}
          | {f"ours waited for data {waiting:.2%} of its steps, below 2 %": waiting < 0.02})  # fmt: skip


if __name__ == "__main__":
    main()
