"""Seven ratios in a few minutes, for before and after a change of the hot path: did it become slower?

    make bench-guard            # exits with 1 if a ratio is clearly above what was recorded
    python benchmarks/guard.py --record

Each part takes turns with a reference in the same run, so that a slow or busy machine changes the ratio little; by the clock, and in
CPU time. `--record` measures each several times, and writes the lowest, the median and the highest. Clearly above is: above the highest
by more than all of that spread, and by more than 3 %. What is above is measured once more, since chance seldom strikes twice.
Record on a quiet machine: on a busy one the spread is wide, and by the clock only much is noticed. Other benchmarks measure longer.
"""

import itertools
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import LOAD, Spent, add_figures, command_line, ratios, timed
from overhead import beside, dry_runs, nothing_to_do
from packing import write_texts
from preparing import prepared, sentences, shuffled
from preparing import write_texts as write_file
from torch import nn
from training_loop import Logits, measured, measured_small
from transformers import BertConfig, BertForSequenceClassification

from snaketrain.data.loading.batches import Batches
from snaketrain.data.loading.examples import TextExamples
from snaketrain.strategies.ddp import Single
from snaketrain.tasks.text_classification import TextClassification
from snaketrain.training.evaluation import evaluate
from snaketrain.training.state import TrainState

CLOCKS = {"ratio": "by the clock", "ratio of CPU time": "CPU time"}
AT_LEAST = 0.03  # what a change must cost to be noticed
RECORDED = 3  # times
BATCH, SHORT, VOCABULARY = 32, 20, 30_000  # examples; the median of their tokens
BLOCKS = 7  # of the tiny model: a plain step takes about a millisecond

Ratios = dict[str, float]


# --- in this process


def tiny_step(_: Path) -> Ratios:
    return measured_small(BLOCKS, turns=60, turn=20)


def small_step(_: Path) -> Ratios:
    return measured(Logits(), torch.randint(5, VOCABULARY, (512, 32)), 16, turn=1, turns=8)


def reading(folder: Path) -> Ratios:
    """A batch of examples, against a loop over the tokens in memory."""
    examples = write_texts(folder / "read.arrow", 10_000, VOCABULARY, SHORT, label=0)
    batches = Batches(examples.lengths, 0, BATCH).of(0)
    column, labels = examples.table["input_ids"].combine_chunks(), np.asarray(examples.table["label"])
    tokens, ends = np.asarray(column.values), np.asarray(column.offsets)

    def by_hand(ids: np.ndarray) -> dict[str, torch.Tensor]:
        padded = np.zeros((len(ids), (ends[ids + 1] - ends[ids]).max()), np.int64)
        mask = np.zeros_like(padded)
        for row, number in enumerate(ids):
            text = tokens[ends[number] : ends[number + 1]]
            padded[row, : len(text)], mask[row, : len(text)] = text, 1
        arrays = {"input_ids": padded, "attention_mask": mask, "labels": labels[ids], "ids": ids}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def all_by(read: Callable[[np.ndarray], Any]) -> Spent:
        return timed(lambda: [read(ids) for ids in batches])

    return ratios(*beside(partial(all_by, examples.batch), partial(all_by, by_hand), turns=20))


def evaluation(folder: Path) -> Ratios:
    """Of a tiny BERT, against a loop by hand."""
    examples = write_texts(folder / "evaluated.arrow", 2000, VOCABULARY, SHORT, label=0)
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=1024)
    model, task = BertForSequenceClassification(config), TextClassification()
    facts = {"label_kind": "class", "label_names": ["negative", "positive"], "vocab_size": VOCABULARY, "pad_token_id": 0}
    task.build({"use": "transformers.BertForSequenceClassification", "arguments": {}}, None, facts)
    state = TrainState(task, Single("cpu", "fp32"), {"model": model}, {}, None)
    ours, by_hand = (
        partial(timed, work) for work in (partial(evaluate, state, examples, BATCH), partial(evaluate_by_hand, model, examples))
    )
    return ratios(*beside(ours, by_hand, turns=12))


@torch.no_grad()
def evaluate_by_hand(model: nn.Module, examples: TextExamples) -> tuple[float, float]:
    """The loss and the accuracy."""
    model.eval()
    order, loss, right = np.argsort(-examples.lengths[:], kind="stable"), 0.0, 0
    for start in range(0, len(order), BATCH):
        batch = examples.batch(order[start : start + BATCH])
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss += float(nn.functional.cross_entropy(logits, batch["labels"], reduction="sum"))
        right += int((logits.argmax(-1) == batch["labels"]).sum())
    return loss / len(order), right / len(order)


# --- in processes of their own


def preparing(folder: Path) -> Ratios:
    """Short texts, against the bare tokenizer; the start of the process is a part of ours."""
    file = folder / "texts.jsonl"
    write_file(file, itertools.islice(shuffled(sentences()), 50_000))
    return ratios(*beside(*(partial(prepared, name, file, folder) for name in ("ours", "tokenizer")), turns=2))


PARTS: dict[str, Callable[[Path], Ratios]] = {
    "a step of a tiny model, against a plain loop": tiny_step,
    "a step of MiniLM's size, against a plain loop": small_step,
    "reading batches, against a loop over arrays": reading,
    "evaluation, against a plain loop": evaluation,
    "prepare_data, against the bare tokenizer": preparing,
    "nothing to do, against a Snakefile of one rule": lambda folder: ratios(*nothing_to_do(folder, turns=4)),
    "a dry run of 200 runs, against the same jobs": lambda folder: ratios(*dry_runs(folder, 200, turns=2)),
}


# --- what was recorded


def measure(name: str) -> Ratios:
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        found = PARTS[name](Path(folder))
    return {clock: found[clock] for clock in CLOCKS}


def recorded(found: list[float]) -> dict[str, float]:
    return {"low": min(found), "median": round(statistics.median(found), 3), "high": max(found)}


def above(found: Ratios, before: dict[str, Any]) -> list[str]:
    """By which clocks it is clearly slower than it was."""
    known = {clock: before[clock] for clock in CLOCKS}
    limits = {clock: each["high"] + max(each["high"] - each["low"], AT_LEAST * each["high"]) for clock, each in known.items()}
    return [clock for clock in CLOCKS if found[clock] > limits[clock]]


def record(output: Path, names: list[str]) -> None:
    for name in names:
        found = [measure(name) for _ in range(RECORDED)]
        add_figures(output, {name: {clock: recorded([each[clock] for each in found]) for clock in CLOCKS}})


def compare(before: dict[str, Any], names: list[str]) -> None:
    """Ends with 1 if one is slower."""
    slower: list[str] = []
    print(f"load {LOAD}\n{'':62}{'found':>6}  recorded")
    for name in names:
        known, found = before.get(name), measure(name)
        if known and above(found, known):
            again = measure(name)
            found = {clock: min(found[clock], again[clock]) for clock in CLOCKS}
        worse = above(found, known) if known else []
        for clock, words in CLOCKS.items():
            print(f"{f'{name}, {words}':62}{found[clock]:6.3f}  {shown(known, clock)}{' **slower**' * (clock in worse)}", flush=True)
        slower += [name] * bool(worse)
    if slower:
        sys.exit("Slower than recorded. If that is the price of something, record it: python benchmarks/guard.py --record")


def shown(known: dict[str, Any] | None, clock: str) -> str:
    if known is None:
        return "not recorded yet"
    return f"{known[clock]['median']:.3f}, between {known[clock]['low']:.3f} and {known[clock]['high']:.3f}, {known['date']}, load {known['load']}"


def main() -> None:
    parser = command_line("guard", __doc__)
    parser.add_argument("--record", action="store_true", help="measure several times, and write what is found")
    parser.add_argument("--only", default="", help="the parts whose names contain this (default: all)")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # trainings say what they wait for
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names = [name for name in PARTS if args.only in name]
    if args.record:
        record(args.output, names)
    else:
        compare(json.loads(args.output.read_text(encoding="utf-8")), names)


if __name__ == "__main__":
    main()
