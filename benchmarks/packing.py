"""Tokens per second in training a small Llama, on texts as long as those of instruction data: padded, packed, in blocks.

The layouts take turns in one run, so that a busy machine slows all of them down; the result is the median over the rounds, in CPU
and wall-clock seconds. Every batch except those of "any order" has at most `--tokens` tokens, padding included.
"""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from harness import Stopwatch, command_line, write_figures

from snaketrain.config.schema import Model, Train
from snaketrain.data.loading.batches import Batches, MicroBatch
from snaketrain.data.loading.examples import Blocks, Packed, TextExamples
from snaketrain.strategies import make_strategy
from snaketrain.tasks.causal_lm import CausalLm
from snaketrain.training.building import build, make_train_state
from snaketrain.training.state import TrainState
from snaketrain.training.step import take_step

ANY_ORDER, PADDED, ONE_ROW, PACKED, BLOCKS = "padded, any order", "padded, like lengths", "packed, one row", "packed", "blocks"
LLAMA = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4}
MEDIAN, SPREAD, SHORTEST, LONGEST = 150, 0.9, 8, 1024  # tokens of a text: log-normal, and cut


def write_texts(path: Path, texts: int, vocabulary: int, median: int = MEDIAN, label: int = -100) -> TextExamples:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(median), SPREAD, texts).astype(int), SHORTEST, LONGEST)
    rows = [random.integers(1, vocabulary, length).tolist() for length in lengths]
    table = pyarrow.table({"input_ids": pyarrow.array(rows, pyarrow.list_(pyarrow.int32())), "label": [label] * texts})
    with pyarrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    return TextExamples(path, pad_token_id=0)


def batches(layout: str, examples: TextExamples, tokens: int, block: int) -> Iterator[tuple[MicroBatch, dict[str, torch.Tensor]]]:
    data: Any = Packed(examples) if layout in (PACKED, ONE_ROW) else Blocks(examples, block) if layout == BLOCKS else examples
    made = Batches(data.lengths, 0, 1, tokens, padded=layout in (PADDED, BLOCKS, ANY_ORDER))
    for epoch in range(1000):
        parts = made.of(epoch)
        if layout == ANY_ORDER:  # as many texts in each, as they come
            parts = np.array_split(np.random.default_rng(epoch).permutation(len(data)), len(parts))
        yield from ((MicroBatch(tuple(map(int, ids))), data.batch(ids, epoch)) for ids in parts)


def make(shape: dict[str, int], train: Train, vocabulary: int, device: str, precision: str = "auto") -> TrainState:
    model = Model(use="transformers.LlamaForCausalLM", arguments=shape | {"max_position_embeddings": LONGEST})
    task, strategy = CausalLm(), make_strategy("single", {}, device=device, precision=precision)
    modules = build(task, train, model, None, {"vocab_size": vocabulary, "end_token_id": None})
    return make_train_state(task, train, modules, strategy)


def measure(state: TrainState, source: Iterator, steps: int) -> dict[str, float]:
    """What `steps` steps take, and how many tokens they learn."""
    work = [next(source) for _ in range(steps)]
    learnt = sum(state.task.count(batch) for _, batch in work)
    cells = sum(batch["input_ids"].numel() for _, batch in work)
    watch = Stopwatch()
    for piece, batch in work:
        take_step(state, [(piece, batch)], state.task.count(batch), 1e-3)[1].item()
    clock, cpu = watch.read()
    return {"tokens": learnt, "cells": cells, "clock": clock, "cpu": cpu}


def main() -> None:
    parser = command_line("packing", __doc__)
    parser.add_argument("--texts", type=int, default=4000, help="texts to train on (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in a batch (default: %(default)s)")
    parser.add_argument("--block", type=int, default=512, help="tokens of a block (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="size of the model's vocabulary (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps of each layout in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="device to train on: auto, cpu or cuda (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    state = make(LLAMA, Train(task="causal_lm", learning_rate=1e-3), args.vocabulary, args.device)
    with tempfile.TemporaryDirectory(prefix="packing-") as folder:
        examples = write_texts(Path(folder) / "texts.arrow", args.texts, args.vocabulary)
        sources = {name: batches(name, examples, args.tokens, args.block) for name in (ANY_ORDER, PADDED, ONE_ROW, PACKED, BLOCKS)}
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for _ in range(args.rounds + 1):
            for name, source in sources.items():
                state.task.one_row = name == ONE_ROW
                rounds[name].append(measure(state, source, args.steps))
    found = {name: figures(each[1:]) for name, each in rounds.items()}  # without the first, which warms up
    device, precision = str(state.strategy.device), state.strategy.precision
    write_figures(args.output, {"device": device, "precision": precision, "threads": args.threads, "layouts": found})


def figures(rounds: list[dict[str, float]]) -> dict[str, float]:
    speeds = {name: statistics.median(each["tokens"] / each[name] for each in rounds) for name in ("cpu", "clock")}
    share = sum(each["tokens"] for each in rounds) / sum(each["cells"] for each in rounds)
    return {"tokens_per_cpu_second": round(speeds["cpu"]), "tokens_per_second": round(speeds["clock"]), "padding": round(1 - share, 4)}


if __name__ == "__main__":
    main()
