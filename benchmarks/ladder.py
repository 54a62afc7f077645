"""What each optimisation gains for a language model, one after the other: similar lengths, packing, compile, a fused optimizer; and
what recomputing activations costs.

A randomly initialised Llama on texts as long as those of instruction data (from packing.py). Each rung keeps the ones before;
reported are tokens per second, MFU (six operations for each parameter and token, and those of attention, relative to the
device's peak; padding and recomputation do not count), and peak memory.
Made for a GPU: `--size 1b --peak-teraflops 790` on an H200, with bf16. `--size tiny` is for trying it on a CPU.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from harness import add_figures, command_line, device_name
from packing import ANY_ORDER, LONGEST, PACKED, PADDED, batches, make, write_texts

from snaketrain.config.schema import Train, Use
from snaketrain.training.state import TrainState
from snaketrain.training.step import take_step

SIZES = {  # hidden size, layers, heads; as many parameters as the name says, without the embeddings
    "tiny": (64, 2, 4),
    "124m": (768, 13, 12),
    "350m": (1024, 21, 16),
    "1b": (2048, 15, 32),
}
RATE = 1e-4
PLAIN = {"optimizer": Use(use="torch.optim.AdamW", arguments={"foreach": True})}
FUSED = {"optimizer": Use(use="torch.optim.AdamW", arguments={"fused": True})}
RUNGS: dict[str, tuple[str, dict[str, Any]]] = {
    "padded, any order": (ANY_ORDER, PLAIN),
    "+ batches of like lengths": (PADDED, PLAIN),
    "+ packing": (PACKED, PLAIN),
    "+ compile": (PACKED, PLAIN | {"compile": True}),
    "+ fused optimizer": (PACKED, FUSED | {"compile": True}),
    "+ recomputed activations": (PACKED, FUSED | {"compile": True, "recompute_activations": True}),
}


def operations(state: TrainState, work: list[Any]) -> float:
    """Of the model for these batches, forwards and backwards. A token looks at half of its own text on average."""
    (module,) = state.plain_modules().values()
    multiplied = sum(p.numel() for p in module.parameters()) - module.get_input_embeddings().weight.numel()
    shape = module.config
    total = 0.0
    for _, batch in work:
        lengths = text_lengths(batch)
        total += 6.0 * multiplied * sum(lengths)
        total += 6.0 * shape.num_hidden_layers * shape.hidden_size * sum(length**2 for length in lengths)
    return total


def text_lengths(batch: dict[str, torch.Tensor]) -> list[int]:
    """Of the texts in a batch, padded or packed: in a packed row each text's positions begin with 0, and padding is texts of one token."""
    if "position_ids" not in batch:
        return batch["attention_mask"].sum(1).tolist()
    ends = [[*torch.nonzero(row == 0).flatten().tolist(), len(row)] for row in batch["position_ids"]]
    return [end - start for row in ends for start, end in itertools.pairwise(row) if end - start > 1]


def measure(state: TrainState, source: Iterator, steps: int, warm_up: int) -> dict[str, float]:
    device = state.strategy.device
    for piece, batch in itertools.islice(source, warm_up):
        step(state, piece, batch)
    work = list(itertools.islice(source, steps))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for piece, batch in work:
        started = time.perf_counter()
        loss = step(state, piece, batch)  # a number, so that the device is done
        seconds.append(time.perf_counter() - started)
    learnt = sum(state.task.count(batch) for _, batch in work)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    teraflops = operations(state, work) / sum(seconds) / 1e12
    found = {"tokens/s": learnt / sum(seconds), "teraflop/s": teraflops, "GiB": memory, "loss": loss}
    return found | {"median step, s": statistics.median(seconds)}


def step(state: TrainState, piece: Any, batch: dict[str, torch.Tensor]) -> float:
    count = state.task.count(batch)
    losses, _ = take_step(state, [(piece, batch)], count, RATE)
    return sum(losses.values()).item() / count


def main() -> None:
    parser = command_line("ladder", __doc__)
    parser.add_argument("--size", choices=SIZES, default="124m", help="parameters of the model (default: %(default)s)")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS), help="rungs to run (default: all)")
    parser.add_argument(
        "--tokens", type=int, default=16384, help="tokens in a batch, padding included but in any order (default: %(default)s)"
    )
    parser.add_argument("--texts", type=int, default=8000, help="texts to train on (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=32000, help="size of the model's vocabulary (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="that are timed (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=10, help="steps before them, in which compiling is done (%(default)s)")
    parser.add_argument("--device", default="auto", help="device to train on: auto, cpu or cuda (default: %(default)s)")
    parser.add_argument("--precision", default="bf16", help="train.precision (default: %(default)s)")
    parser.add_argument("--peak-teraflops", type=float, help="dense peak of the device in this precision; without it no MFU is reported")
    args = parser.parse_args()
    hidden, layers, heads = SIZES[args.size]
    shape = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="ladder-") as folder:
        examples = write_texts(Path(folder) / "texts.arrow", args.texts, args.vocabulary)
        for name in args.rungs:
            layout, train = RUNGS[name]
            torch.compiler.reset()
            settings = Train(task="causal_lm", learning_rate=RATE, **train)
            state = make(shape, settings, args.vocabulary, args.device, args.precision)
            row = measure(state, batches(layout, examples, args.tokens, LONGEST), args.steps, args.warm_up)
            if args.peak_teraflops:
                row["MFU"] = row["teraflop/s"] / args.peak_teraflops
            found[name] = row
            print(name, {key: round(value, 3) for key, value in row.items() if value is not None}, flush=True)
            del state
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    settings = {key: value for key, value in vars(args).items() if key not in ("output", "rungs")}
    name = device_name("cuda" if torch.cuda.is_available() else "cpu")
    add_figures(args.output, {args.size: {"device name": name} | settings | {"rungs": found}})


if __name__ == "__main__":
    main()
