"""The share of a training's time that it waits for data: our loader against torch's DataLoader and mosaicml's streaming.

An image takes `--milliseconds` to make; this waits instead of computing, so that the figures are about the loaders and not about the
number of cores. A step takes `--step` milliseconds, or `--text-step` on texts, which are loaded as they are. The ways take turns.

1. `the process waits`: it does nothing during a step, and then asks for the next batch, as where it computes the steps itself.
2. `the device waits`: steps are launched without waiting for them, and the process waits for the step before, as our trainer does on a
   GPU. So the device waits only for what does not fit into a step.

streaming is left out where it is not installed. On a busy machine all shares are too large.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import command_line, judge, write_figures
from packing import write_texts
from torch.utils.data import DataLoader, Dataset

from snaketrain.data.loading.batches import Batches, shard_batch
from snaketrain.data.loading.loader import Loader, Request
from snaketrain.data.loading.training_data import Items

BATCH, WARM_UP = 32, 10  # examples; steps that are not counted, in which workers start and queues fill
GOAL = 0.02
Ways = dict[str, Callable[[], Iterator[Any]]]


class Images(Dataset):
    """3 x 64 x 64 bytes, each of which takes a while."""

    def __init__(self, count: int, milliseconds: float):
        self.count, self.seconds = count, milliseconds / 1000

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.seconds)
        return torch.full((3, 64, 64), number % 256, dtype=torch.uint8), number


def ours(data: Any, loader: Loader) -> Iterator[Any]:
    batches = Batches(data.lengths, 0, BATCH)
    requests = (Request(ids, shard_batch(ids, 1, 0, 1), epoch) for epoch in range(1000) for ids in batches.of(epoch))
    yield from loader.load(data, requests)


def torchs(data: Dataset, workers: int, **options: Any) -> Iterator[Any]:
    while True:
        yield from DataLoader(data, BATCH, shuffle=True, num_workers=workers, **options)


def mosaics(folder: Path, images: Images, workers: int) -> Iterator[Any]:
    from streaming import MDSWriter, StreamingDataset

    class Streamed(StreamingDataset):
        def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
            found = super().__getitem__(number)
            time.sleep(images.seconds)
            return found["image"], found["number"]

    if not folder.exists():
        with MDSWriter(out=str(folder), columns={"image": "ndarray:uint8:3,64,64", "number": "int"}) as writer:
            for number in range(len(images)):
                writer.write({"image": np.full((3, 64, 64), number % 256, np.uint8), "number": number})
    while True:
        yield from DataLoader(Streamed(local=str(folder), shuffle=True, batch_size=BATCH), BATCH, num_workers=workers)


def process_waits(batches: Iterator[Any], steps: int, step: float) -> float:
    """The share of the time that is spent waiting for the next batch."""
    waited, began = 0.0, 0.0
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            waited, began = 0.0, time.perf_counter()
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        time.sleep(step)
    return waited / (time.perf_counter() - began)


def device_waits(batches: Iterator[Any], steps: int, step: float) -> float:
    """The share of the time in which all launched steps are done."""
    waited, began, done = 0.0, 0.0, time.perf_counter()  # done: when the device ends the last launched step
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            waited, began = 0.0, done
        next(batches)
        launched, before = time.perf_counter(), done
        waited += max(0.0, launched - before)
        done = max(launched, before) + step
        time.sleep(max(0.0, before - launched))
    return waited / (done - began)


def cpu_milliseconds(batches: Iterator[Any], count: int = 300) -> float:
    """Of this process, for a batch."""
    for _ in range(WARM_UP):
        next(batches)
    began = time.process_time()
    for _ in range(count):
        next(batches)
    return 1000 * (time.process_time() - began) / count


MEASURES = {"the process waits": process_waits, "the device waits": device_waits}


def in_turns(ways: Ways, rounds: int, steps: int, step: float) -> dict[str, dict[str, float]]:
    """The share of waiting of each way, by each measure."""
    shares: dict[str, dict[str, list[float]]] = {measure: {name: [] for name in ways} for measure in MEASURES}
    for _ in range(rounds):
        for (measure, waits), (name, start) in itertools.product(MEASURES.items(), ways.items()):
            batches = start()
            shares[measure][name].append(waits(batches, steps, step))
            batches.close()  # type: ignore[attr-defined]  # they are generators
    return {measure: {name: round(statistics.median(each), 4) for name, each in found.items()} for measure, found in shares.items()}


def image_ways(milliseconds: float, workers: int, folder: Path) -> Ways:
    images = Images(64 * BATCH, milliseconds)
    items = Items(images, "Images", np.arange(len(images)), ["inputs", "target"], seed=0)
    ways: Ways = {
        "ours": lambda: ours(items, Loader()),
        f"ours, {workers} workers": lambda: ours(items, Loader(workers)),
        "DataLoader": lambda: torchs(images, 0),
        f"DataLoader, {workers} workers": lambda: torchs(images, workers),
    }
    try:
        import streaming  # noqa: F401
    except ImportError as error:
        print(f"without mosaicml's streaming: {error}")
    else:
        ways[f"streaming, {workers} workers"] = lambda: mosaics(folder / f"mds-{milliseconds:g}", images, workers)
    return ways


def text_ways(folder: Path, texts: int) -> Ways:
    examples = write_texts(folder / "texts.arrow", texts, vocabulary=30_000)
    rows = [torch.tensor(row) for row in examples.column("input_ids")]

    def padded(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        tokens = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        return {"input_ids": tokens, "attention_mask": (tokens != 0).long()}

    return {
        "ours": lambda: ours(examples, Loader()),
        "ours, 1 worker": lambda: ours(examples, Loader(1)),
        "DataLoader": lambda: torchs(rows, 0, collate_fn=padded),
        "DataLoader, 1 worker": lambda: torchs(rows, 1, collate_fn=padded),
    }


def main() -> None:
    parser = command_line("loading", __doc__)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[1, 5], help="that an image takes (default: %(default)s)")
    parser.add_argument("--step", type=float, default=60, help="milliseconds of a step on images (default: %(default)s)")
    parser.add_argument("--text-step", type=float, default=20, help="milliseconds of a step on texts (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=20_000, help="texts that are loaded (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="measured steps of each way in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="loading-") as folder:
        for milliseconds in args.milliseconds:
            ways = image_ways(milliseconds, args.workers, Path(folder))
            found[f"images of {milliseconds:g} ms"] = in_turns(ways, args.rounds, args.steps, args.step / 1000)
        texts = text_ways(Path(folder), args.texts)
        found["texts"] = in_turns(texts, args.rounds, args.steps, args.text_step / 1000)
        cpu = {name: round(cpu_milliseconds(texts[name]()), 2) for name in ("ours", "DataLoader")}
    settings = {name: value for name, value in vars(args).items() if name != "output"}
    write_figures(args.output, settings | {"goal": GOAL, "waiting": found, "CPU ms of a batch of texts": cpu})
    shares = {
        f"{what}: {measure}": min(share for name, share in measured[measure].items() if name.startswith("ours"))
        for (what, measured), measure in itertools.product(found.items(), MEASURES)
    }
    judge({f"{what} {share:.1%}, goal at most {GOAL:.0%}": share <= GOAL for what, share in shares.items()})


if __name__ == "__main__":
    main()
