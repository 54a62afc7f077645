"""What a training process pays for the size of its data: memory, the time to a late step, and the speed of its batches.

Writes prepared data of short examples in sizes that grow tenfold, in the format and the record batches of `prepare_data`, and opens each
in a process of its own, as rank 0 of 2. A file has 10^7 examples at most: more are files of the same content, as parts of `data.shards` are,
which the page cache holds once. `scaling_preparation.py` measures how such data is prepared.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
from harness import command_line, judge, run, write_figures
from psutil import Process

from snaketrain.data.split_files import BATCH_ROWS

BATCH_SIZE, STEPS, TOKENS = 256, 400, 2048
IN_A_FILE = 10**7
SCHEMA = pyarrow.schema([("id", pyarrow.int64()), ("input_ids", pyarrow.list_(pyarrow.int32())), ("label", pyarrow.int64())])
MOST_GROWTH_MB, MOST_SECONDS = 50, 1.0  # of the largest data over the smallest; to its last step


def write(path: Path, examples: int) -> None:
    draw = np.random.default_rng(0)
    with pyarrow.ipc.new_file(str(path), SCHEMA) as file:
        for start in range(0, examples, BATCH_ROWS):
            rows = min(BATCH_ROWS, examples - start)
            ends = np.cumsum([0, *draw.integers(4, 13, rows)]).astype(np.int32)
            tokens = pyarrow.ListArray.from_arrays(pyarrow.array(ends), pyarrow.array(draw.integers(0, 30_000, ends[-1]).astype(np.int32)))
            columns = [pyarrow.array(np.arange(start, start + rows)), tokens, pyarrow.array(np.zeros(rows, np.int64))]
            file.write_batch(pyarrow.record_batch(columns, schema=SCHEMA))


def megabytes() -> float:
    """Of this process alone: pages of mapped files belong to the page cache."""
    memory = Process().memory_info()
    return (memory.rss - memory.shared) / 2**20


def measure(path: Path, files: int) -> dict[str, float]:
    from snaketrain.data.loading.batches import Batches, shard_batch
    from snaketrain.data.loading.examples import TextExamples

    before, began = megabytes(), time.process_time()
    examples = TextExamples([path] * files, 0)
    batches = Batches(examples.lengths, 42, BATCH_SIZE)
    batches.batch(1, batches.count(1) - 1)  # in the second epoch
    late = time.process_time() - began
    began = time.process_time()
    for step in range(STEPS):
        (share,) = shard_batch(batches.batch(0, step), 1, rank=0, world_size=2)
        examples.batch(share.ids, epoch=0)
    seconds = time.process_time() - began

    began = time.process_time()
    Batches(examples.lengths, 42, BATCH_SIZE, TOKENS).count(0)
    counted = time.process_time() - began
    return {
        "examples": len(examples),
        "MB": round(megabytes() - before, 1),
        "CPU seconds to the last step": round(late, 3),
        "examples per CPU second": round(STEPS * BATCH_SIZE / 2 / seconds),
        "CPU seconds to count an epoch's batches of tokens": round(counted, 3),
    }


def main() -> None:
    parser = command_line("scaling_data", __doc__)
    parser.add_argument("--examples", type=int, nargs="+", default=[10**6, 10**7, 10**8], help="sizes, growing (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the data is for a while; a temporary folder by default")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return print(json.dumps(measure(args.measure, args.files)))
    rows = []
    for examples in args.examples:
        with tempfile.TemporaryDirectory(prefix="scaling-data-", dir=args.folder) as folder:
            write(path := Path(folder) / "train.arrow", min(examples, IN_A_FILE))
            command = [sys.executable, __file__, "--measure", path, "--files", max(1, examples // IN_A_FILE)]
            rows.append(json.loads(run(command).output))
    growth, late = rows[-1]["MB"] - rows[0]["MB"], rows[-1]["CPU seconds to the last step"]
    write_figures(args.output, {"sizes": rows, "growth, MB": round(growth, 1)})
    judge({
        f"memory grows by at most {MOST_GROWTH_MB} MB: {growth:.0f} MB": growth <= MOST_GROWTH_MB,
        f"the last step is reached within {MOST_SECONDS:g} s: {late:.2f} s": late <= MOST_SECONDS,
    })  # fmt: skip


if __name__ == "__main__":
    main()
