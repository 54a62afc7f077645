"""How long a checkpoint holds up the training: written in the background, beside waiting until it is written. Paired, in one run.

A model with random weights and AdamW's state on the CPU; the real `Checkpoints`, with digests and fsync.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "workflow/scripts"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from snaketrain.strategies.single import Single  # noqa: E402
from snaketrain.training.checkpoints.best_metric import BY_LOSS  # noqa: E402
from snaketrain.training.checkpoints.store import Checkpoints  # noqa: E402

WIDTH = 1024


def learner(millions: int) -> SimpleNamespace:
    """Equal layers, as in a transformer; their optimizer has seen a step."""
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, round(millions * 1e6 / WIDTH**2)))))
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return SimpleNamespace(strategy=Single("cpu", "fp32"), modules={"model": module}, optimizers={"model": optimizer})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=100, help="of parameters (%(default)s)")
    parser.add_argument("--times", type=int, default=5, help="each (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the checkpoints go for a while; a temporary folder by default")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "benchmarks/results/saving.json", help="%(default)s")
    args = parser.parse_args()
    learns, stalls, wholes = learner(args.millions), [], []
    with tempfile.TemporaryDirectory(prefix="saving-", dir=args.folder) as folder:
        checkpoints = Checkpoints(Path(folder), BY_LOSS, keep_best=1)
        for number in range(args.times + 1):
            started = time.perf_counter()
            checkpoints.save(learns, number, {"loss": 1.0}, {})
            stalled = time.perf_counter()
            checkpoints.finish()
            if number:  # the first one meets an empty cache
                stalls.append(stalled - started)
                wholes.append(time.perf_counter() - started)
                print(f"save {number}: in the background {stalls[-1]:.2f} s, waited for {wholes[-1]:.2f} s", flush=True)
        size = sum(file.stat().st_size for file in Path(folder).glob(f"step-{args.times:08d}/*"))
    found = {
        "parameters": sum(parameter.numel() for parameter in learns.modules["model"].parameters()),
        "megabytes": round(size / 1e6),
        "seconds in the background, median": round(statistics.median(stalls), 3),
        "seconds waited for, median": round(statistics.median(wholes), 3),
        "ratio": round(statistics.median(stall / whole for stall, whole in zip(stalls, wholes, strict=True)), 3),
    }
    print(json.dumps(found, indent=2))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
