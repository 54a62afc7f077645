"""What a checkpoint costs a training on several processes: whole tensors gathered by rank 0, beside shards written by each rank.

A Llama with random weights and AdamW's state under `fsdp`, on the CPU with gloo; the real `Checkpoints`, with digests and fsync. For each
format: how long the training waits for a save, how long the save takes, the bytes on disk, how long a resume loads, and how much more
memory of its own (RssAnon) each rank needs at its peak meanwhile, in sizes of the model's parameters. A format is measured in processes
of its own; the first save and load count for memory alone, since they meet empty caches.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import RETURNS_MEMORY, command_line, judge, memory, run, torchrun, write_figures

FORMATS = ("whole", "sharded")
MOST_OF_A_GATHER = 0.2  # of the memory that rank 0 needs
POLL_SECONDS = 0.002


class Peak:
    """The most memory of its own that this process had, beyond what it had at the start."""

    def __init__(self) -> None:
        self.start = self.most = memory()

    @contextmanager
    def sampled(self) -> Iterator[None]:
        over = threading.Event()

        def sample() -> None:
            while not over.wait(POLL_SECONDS):
                self.most = max(self.most, memory())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def bytes(self) -> int:
        return self.most - self.start


def measure(format: str, folder: Path, width: int, layers: int, times: int) -> None:
    """On each rank; rank 0 prints what was found."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from snaketrain.config.schema import Train
    from snaketrain.tasks.base import Task
    from snaketrain.training.building import make_train_state, start_strategy
    from snaketrain.training.checkpoints.formats import make_format
    from snaketrain.training.checkpoints.ranking import BY_LOSS
    from snaketrain.training.checkpoints.store import Checkpoints

    train = Train(strategy={"use": "fsdp"})
    strategy = start_strategy(train, "cpu")
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "vocab_size": 4096}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=8))
    parameters = 4 * sum(parameter.numel() for parameter in model.parameters())
    state = make_train_state(Task(), train, {"model": model}, strategy)
    del model
    for optimizer in state.optimizers.values():  # its state, as after a step
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    checkpoints = Checkpoints(folder, BY_LOSS, 1, make_format(format, strategy))
    found: dict[str, list[float]] = {"waits": [], "takes": [], "loads": []}
    saving, loading = Peak(), Peak()
    for number in range(times + 1):
        state.step = number + 1
        strategy.wait()
        began = time.perf_counter()
        with saving.sampled():
            checkpoints.save(state, {"loss": 1.0 / (number + 1)}, {})
            found["waits"].append(time.perf_counter() - began)
            checkpoints.finish()
            strategy.wait()
        found["takes"].append(time.perf_counter() - began)
        began = time.perf_counter()
        with loading.sampled():
            checkpoints.restore(state, {})
            strategy.wait()
        found["loads"].append(time.perf_counter() - began)
    peaks = {"saving": saving.bytes / parameters, "loading": loading.bytes / parameters}
    of_ranks = strategy.all_gather_object(peaks)
    if strategy.rank == 0:
        newest = max(folder.glob("step-*"))
        row = {f"seconds a save {what}" if what != "loads" else "seconds a load takes": round(statistics.median(seconds[1:]), 2)
               for what, seconds in found.items()}  # fmt: skip
        row |= {f"memory of each rank while {what}": [round(each[what], 2) for each in of_ranks] for what in peaks}
        row |= {"megabytes": round(sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()) / 1e6)}
        print(json.dumps(row | {"parameters": parameters // 4}), flush=True)
    strategy.finish()


def main() -> None:
    parser = command_line("checkpoints", __doc__)
    parser.add_argument("--processes", type=int, default=4, help="ranks that save together (default: %(default)s)")
    parser.add_argument("--width", type=int, default=512, help="hidden size of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model (default: %(default)s)")
    parser.add_argument("--times", type=int, default=5, help="saves and loads (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the checkpoints are for a while; a temporary folder by default")
    parser.add_argument("--measure", choices=FORMATS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.folder, args.width, args.layers, args.times)
        return
    sizes = ["--width", args.width, "--layers", args.layers, "--times", args.times]
    rows = {}
    for format in FORMATS:
        with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=args.folder) as folder:
            done = run([*torchrun(args.processes), __file__, "--measure", format, "--folder", folder, *sizes], RETURNS_MEMORY)
        rows[format] = json.loads(done.output.splitlines()[-1])
    whole, shards = (rows[format]["memory of each rank while saving"][0] for format in FORMATS)
    write_figures(args.output, {"processes": args.processes} | rows | {"ratio of memory": round(shards / whole, 3)})
    goal = f"memory of rank 0 while saving shards, of that while gathering: {shards / whole:.2f}, at most {MOST_OF_A_GATHER}"
    judge({goal: shards <= MOST_OF_A_GATHER * whole})


if __name__ == "__main__":
    main()
