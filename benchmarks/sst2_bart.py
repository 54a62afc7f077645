"""Accuracy and speed on SST-2: the pipeline with a small random BART, in a temporary folder.

DATA_FOLDER holds sentiment-train, sentiment-dev and sentiment-test, with `sentence<TAB>label` on each line.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from harness import command_line, write_figures

REPOSITORY = Path(__file__).resolve().parents[1]
LABELS = {0: "negative", 1: "positive"}
# [CLS], [SEP] and [PAD] of the tokenizer; BART reads its answer off the last end-of-sentence token
TOKENS = {"bos_token_id": 101, "eos_token_id": 102, "pad_token_id": 0, "decoder_start_token_id": 102, "forced_eos_token_id": 102}
SIZE = {"d_model": 128, "max_position_embeddings": 256}
LAYERS = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 512))}


def configuration(folder: Path, examples: int | None, epochs: float, threads: int) -> dict[str, Any]:
    default = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
    files = {split: {"path": str(folder / f"sentiment-{split}")} for split in ("train", "dev", "test")}
    columns = {"format": "tsv", "columns": ["sentence", "label"], "text": "sentence", "label": "label", "labels": LABELS}
    return {
        "data": {"name": "sst2", **files, **columns, "limit_train": examples, "max_length": 64, "tokenizer": default["data"]["tokenizer"]},
        "model": {"use": "transformers.BartForSequenceClassification", "arguments": SIZE | LAYERS | TOKENS},
        "train": {"batch_size": 32, "epochs": epochs, "learning_rate": 5e-4, "warmup": 0.1, "evaluations_per_epoch": 2},
        "compute": {"threads": threads},
        "tracking": {"experiment": "sst2"},
        "runs": {"bart": {}},
    }


def run_workflow(folder: Path, config: dict[str, Any]) -> float:
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(yaml.safe_dump(config))
    started = time.perf_counter()
    command = [sys.executable, "-m", "snakemake", "--snakefile", REPOSITORY / "Snakefile", "--directory", folder]
    subprocess.run([*command, "--cores", str(config["compute"]["threads"]), "--show-failed-logs"], check=True, stdout=sys.stderr)
    return time.perf_counter() - started


def figures(folder: Path, seconds: float) -> dict[str, Any]:
    run = folder / "results/runs/bart"
    splits = {split: json.loads((run / f"evaluation/{split}_results.json").read_text()) for split in ("dev", "test")}
    events = [json.loads(line) for line in (run / "training/journal.jsonl").read_text().splitlines()]
    training = [event["metrics"] for event in events if event["event"] == "train"]
    speeds = sorted(metrics["examples_per_second"] for metrics in training)
    kept = ("examples", "accuracy", "interval", "macro_f1", "majority_accuracy", "loss")
    return {
        **{split: {key: found[key] for key in kept} for split, found in splits.items()},
        "examples": json.loads((run / "training/run.json").read_text())["data"]["examples"],
        "examples_per_second": speeds[len(speeds) // 2],
        "training_minutes": round(next(e["seconds"] for e in reversed(events) if e["event"] == "end") / 60, 2),
        "minutes": round(seconds / 60, 2),
    }


def main() -> None:
    parser = command_line("sst2_bart", __doc__)
    parser.add_argument("folder", type=Path, metavar="DATA_FOLDER", help="folder with the files of SST-2 named above")
    parser.add_argument("--examples", type=int, help="use only so many training examples (all)")
    parser.add_argument("--epochs", type=float, default=3.0, help="passes over them (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU cores of the training (%(default)s)")
    args = parser.parse_args()
    missing = [name for name in ("train", "dev", "test") if not (args.folder / f"sentiment-{name}").is_file()]
    if missing:
        raise SystemExit(f"{args.folder} has no sentiment-{missing[0]}. Give the folder of sentiment-train, -dev and -test.")
    config = configuration(args.folder.resolve(), args.examples, args.epochs, args.threads)
    with tempfile.TemporaryDirectory(prefix="sst2-bart-") as folder:
        found = {"epochs": args.epochs} | figures(Path(folder), run_workflow(Path(folder), config))
    for split in ("dev", "test"):
        low, high = found[split]["interval"]
        print(
            f"{split:5} accuracy {found[split]['accuracy']:.4f} [{low:.4f}, {high:.4f}]  majority {found[split]['majority_accuracy']:.4f}"
        )
    print(f"{found['examples']} training examples, {args.epochs:g} epochs: {found['examples_per_second']:.0f} examples/s,")
    print(f"{found['training_minutes']} minutes of training, {found['minutes']} minutes in all")
    write_figures(args.output, found)


if __name__ == "__main__":
    main()
