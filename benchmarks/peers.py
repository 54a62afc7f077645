"""Time to the same accuracy: the pipeline's training against the Trainer of transformers and against Lightning.

DATA_FOLDER holds stsa.binary.train and stsa.binary.dev, sentences of SST-2 with `label sentence` on each line. A pretrained MiniLM is
fine-tuned in fp32 on the CPU; all have the same tokens, batch size, AdamW (fused), weight decay, clipping, linear schedule, seed,
threads, and evaluations of the same sentences at the same steps, each in a process of its own. contenders.py says what each does
in its own way. The goal is a share of the other's time, to the highest accuracy that every contender reached; the time of
the whole plan, in which luck has no part, is given as well.
Ours evaluates before the first step as well, and Lightning not after the last one. Needs requirements-peers.lock.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from harness import command_line, write_figures

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "workflow/scripts"))

from snaketrain.config.schema import Model, Train  # noqa: E402
from snaketrain.runtime.journal import read_events  # noqa: E402
from snaketrain.runtime.stages import settings_words  # noqa: E402

OURS = "snaketrain"
GOALS = {"trainer_tutorial": 0.5, "trainer_defaults": 0.5, "trainer_best": 0.9, "lightning": 0.9}
DEFAULT = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())


def prepare(folder: Path, raw: Path, examples: int, dev_examples: int) -> tuple[Path, Path]:
    """The manifests of the tokenised data and of the pretrained model, made by the workflow."""
    for split in ("train", "dev"):
        rows = (line.split(" ", 1) for line in (raw / f"stsa.binary.{split}").read_text(encoding="latin-1").splitlines())
        (folder / f"{split}.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    files = {split: {"path": str(folder / f"{split}.tsv")} for split in ("train", "dev")}
    limits = {"limit_train": examples, "limit_dev": dev_examples, "test_fraction": 0.01}
    columns = {"columns": ["label", "text"], "labels": {0: "negative", 1: "positive"}}
    data = {"name": "sst2", **files, **columns, **limits, "tokenizer": DEFAULT["data"]["tokenizer"]}
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(yaml.safe_dump({"data": data, "model": DEFAULT["model"], "runs": {"one": {}}}))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(folder)]
    done = subprocess.run([*command, "--cores", "1", "--until", "prepare_data"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return next(folder.glob("results/data/*/manifest.json")), next(folder.glob("results/models/*/manifest.json"))


def plan(examples: int, args: argparse.Namespace) -> dict[str, Any]:
    steps = -(-examples // args.batch_size) * args.epochs
    every = max(1, steps // args.evaluations)
    return {
        "batch_size": args.batch_size, "steps": steps, "evaluate_every": every, "learning_rate": 1e-4, "warmup": max(1, steps // 10),
        "weight_decay": 0.01, "clip_norm": 1.0, "seed": args.seed,
    }  # fmt: skip


def run_ours(folder: Path, data: Path, model: Path, train: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """train_model.py as the workflow calls it, with journal, TensorBoard and checkpoints."""
    settings = {"train": Train(**train, precision="fp32").as_json} | {"model": Model(**DEFAULT["model"]).as_json}
    command = [sys.executable, str(REPOSITORY / "workflow/scripts/train_model.py"), "--run-name", OURS, "--data", str(data)]
    command += ["--model", str(model), "--output", str(folder / "manifest.json"), "--keep-best-by", "accuracy", "--device", "cpu"]
    cpu_seconds = run([*command, *settings_words(folder, "train_model", settings)], folder / "log", environment)
    events = read_events(folder / "journal.jsonl")[0]
    spent = next(event["spent"] for event in reversed(events) if event["event"] == "end")
    evaluations = [
        {
            "seconds": sum(event["spent"].values()) - event["spent"]["startup"],
            "accuracy": event["metrics"]["accuracy"],
            "step": event["step"],
        }
        for event in events
        if event["event"] == "eval"
    ]
    waiting = spent["data_wait"] / (spent["data_wait"] + spent["steps"])
    seconds = {"startup": spent["startup"], "seconds": sum(spent.values()) - spent["startup"], "CPU seconds": cpu_seconds}
    return seconds | {"evaluations": evaluations, "waiting": waiting}


def run_peer(name: str, folder: Path, data: Path, model: Path, train: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    task = {"contender": name, "folder": str(folder), "data": str(data), "model": str(model), "train": train, "launched": time.time()}
    script = [sys.executable, str(Path(__file__).with_name("contenders.py")), json.dumps(task)]
    cpu_seconds = run(script, folder / "log", environment)
    return json.loads((folder / "found.json").read_text()) | {"CPU seconds": cpu_seconds}


def run(command: list[str], log: Path, environment: dict[str, str]) -> float:
    """The CPU seconds of a process, from its start to its end: what else the machine does disturbs them less than the clock's."""
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)[:300]} failed:\n{log.read_text()[-4000:]}")
    return usage.ru_utime + usage.ru_stime


def compared(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, and the median share of each peer's time that ours took in the same round."""
    for contenders in rounds:
        accuracy = min(max(e["accuracy"] for e in found["evaluations"]) for found in contenders.values())
        for found in contenders.values():
            found["to accuracy"] = next(e["seconds"] for e in found["evaluations"] if e["accuracy"] >= accuracy)
            found["accuracy"], found["best"] = accuracy, max(e["accuracy"] for e in found["evaluations"])
    table = {}
    for name in rounds[0]:
        of = {key: [r[name][key] for r in rounds] for key in ("to accuracy", "seconds", "startup", "CPU seconds", "accuracy", "best")}
        row = {key: round(statistics.median(values), 4 if max(values) <= 1 else 2) for key, values in of.items()}
        if name != OURS:
            for label, seconds in SHARES.items():
                row[label] = round(statistics.median(seconds(r[OURS]) / seconds(r[name]) for r in rounds), 3)
        else:
            row["share of steps spent waiting for data"] = round(statistics.median(r[name]["waiting"] for r in rounds), 4)
        table[name] = row
    return table


SHARES = {
    "ours/theirs, to accuracy": lambda found: found["to accuracy"],
    "ours/theirs, to accuracy with start": lambda found: found["to accuracy"] + found["startup"],
    "ours/theirs, whole plan": lambda found: found["seconds"],
    "ours/theirs, CPU time of the whole process": lambda found: found["CPU seconds"],
}


def show(table: dict[str, Any]) -> None:
    print(
        f"{'':18}{'to accuracy':>12}{'whole plan':>12}{'start':>8}{'best':>8}   ours/theirs: to accuracy, with start, whole plan, CPU time"
    )
    for name, row in table.items():
        shares = "".join(f"{row[label]:>8.2f}" for label in SHARES if label in row)
        goal = f"   goal {GOALS[name]}: {'met' if row[next(iter(SHARES))] <= GOALS[name] else 'missed'}" if name in GOALS else ""
        print(
            f"{name:18}{row['to accuracy']:>10.1f} s{row['seconds']:>10.1f} s{row['startup']:>6.1f} s{row['best']:>8.3f}   {shares}{goal}"
        )
    waiting = table[OURS]["share of steps spent waiting for data"]
    print(f"accuracy reached by all {table[OURS]['accuracy']:.4f}; ours waited for data {waiting:.2%} of its steps (goal below 2 %)")


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
    parser.add_argument("--rounds", type=int, default=1, help="turns of all contenders, in another order each time (default: %(default)s)")
    parser.add_argument(
        "--contenders", nargs="+", default=[OURS, *GOALS], choices=[OURS, *GOALS], help="contenders to compare (default: all)"
    )
    args = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    rounds = []
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        data, model = prepare(folder, args.folder, args.examples, args.dev_examples)
        for number in range(args.rounds):
            train = plan(args.examples, args) | {"seed": args.seed + number}
            found = {}
            for contender in args.contenders if number % 2 == 0 else reversed(args.contenders):
                place = folder / f"{contender}-{number}"
                place.mkdir()
                how = run_ours if contender == OURS else partial(run_peer, contender)
                found[contender] = how(place, data, model, train, environment)
                print(f"{contender}: {found[contender]['seconds']:.1f} s", file=sys.stderr, flush=True)
            rounds.append({contender: found[contender] for contender in args.contenders})
    table = compared(rounds)
    show(table)
    versions = {package: importlib.metadata.version(package) for package in ("torch", "transformers", "accelerate", "lightning")}
    about = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "versions": versions}
    about |= {key: value for key, value in vars(args).items() if key not in ("folder", "output", "contenders")}
    write_figures(args.output, about | {"contenders": table, "runs": rounds})


if __name__ == "__main__":
    main()
