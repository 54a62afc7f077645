"""What a checkpoint costs a training on several processes: whole tensors gathered by rank 0, beside shards written by each rank.

A Llama with random weights and AdamW's state under `fsdp`, on the CPU with gloo; the real `Checkpoints`, with digests and fsync. For each
format: how long the training waits for a save, how long the save takes, the bytes on disk, how long a resume loads, and how much more
memory of its own (RssAnon) each rank needs at its peak meanwhile, in sizes of the model's parameters. A format is measured in processes
of its own; the first save and load count for memory alone, since they meet empty caches. Ends with `met` or `missed` for the goal.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "workflow/scripts"))

FORMATS = ("whole", "sharded")
MOST_OF_A_GATHER = 0.2  # of the memory that rank 0 needs
POLL_SECONDS = 0.002


class Peak:
    """The most memory of its own that this process had, beyond what it had at the start."""

    def __init__(self) -> None:
        self.start = self.most = own_bytes()

    @contextmanager
    def sampled(self) -> Iterator[None]:
        over = threading.Event()

        def sample() -> None:
            while not over.wait(POLL_SECONDS):
                self.most = max(self.most, own_bytes())

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


def own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


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
    memory = {"saving": saving.bytes / parameters, "loading": loading.bytes / parameters}
    of_ranks = strategy.all_gather_object(memory)
    if strategy.rank == 0:
        newest = max(folder.glob("step-*"))
        row = {f"seconds a save {what}" if what != "loads" else "seconds a load takes": round(statistics.median(seconds[1:]), 2)
               for what, seconds in found.items()}  # fmt: skip
        row |= {f"memory of each rank while {what}": [round(each[what], 2) for each in of_ranks] for what in memory}
        row |= {"megabytes": round(sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()) / 1e6)}
        print(json.dumps(row | {"parameters": parameters // 4}), flush=True)
    strategy.finish()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4, help="ranks that save together (default: %(default)s)")
    parser.add_argument("--width", type=int, default=512, help="hidden size of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model (default: %(default)s)")
    parser.add_argument("--times", type=int, default=5, help="saves and loads (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the checkpoints are for a while; a temporary folder by default")
    parser.add_argument(
        "--output",
        type=Path,
        default=REPOSITORY / "benchmarks/results/checkpoints.json",
        help="where to write the figures (default: %(default)s)",
    )
    parser.add_argument("--measure", choices=FORMATS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.folder, args.width, args.layers, args.times)
        return 0
    torchrun = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", str(args.processes)]
    sizes = ["--width", str(args.width), "--layers", str(args.layers), "--times", str(args.times)]
    # freed memory is returned at once: otherwise the peaks would depend on the order of allocations
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    found: dict[str, object] = {"date": date.today().isoformat(), "processes": args.processes}
    rows = {}
    for format in FORMATS:
        with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=args.folder) as folder:
            words = [*torchrun, __file__, "--measure", format, "--folder", folder, *sizes]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        rows[format] = json.loads(done.stdout.splitlines()[-1])
        print(f"{format}: " + ", ".join(f"{name}: {value}" for name, value in rows[format].items()), flush=True)
    whole, shards = (rows[format]["memory of each rank while saving"][0] for format in FORMATS)
    goal = f"memory of rank 0 while saving shards, of that while gathering: {shards / whole:.2f}, at most {MOST_OF_A_GATHER}"
    print(f"{goal}: {'met' if shards <= MOST_OF_A_GATHER * whole else 'missed'}")
    found |= rows | {"ratio of memory": round(shards / whole, 3)}
    args.output.write_text(json.dumps(found, indent=2) + "\n")
    return int(shards > MOST_OF_A_GATHER * whole)


if __name__ == "__main__":
    sys.exit(main())
