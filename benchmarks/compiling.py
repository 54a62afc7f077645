"""Compares trainings whose blocks are compiled, under every strategy that `train.compile` is allowed with, with `single` without it.

Six steps in fp32 of a small BERT or a model with the layers that the strategy needs, on 1, 2 and 4 processes of one CPU: the largest
relative difference of a loss, and of a norm of the gradients, and how many variants of functions torch.compile compiled of those that it
met. tests/slow/test_compiling.py asserts 1e-5 and 1e-4 for a part of them.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from harness import command_line, write_figures

# isort: split
from distributed.test_strategies import job, run

ULYSSES = {"context": 2, "context_attention": "ulysses"}
# the model "lm" recomputes activations, "packed" has several texts in a row
CASES: dict[int, list[tuple[str, str, dict[str, Any]]]] = {
    1: [("single", "bert", {}), ("single", "lm", {}), ("single", "packed", {})],
    2: [
        *((name, "bert", {}) for name in ("ddp", "zero1", "fairscale_oss", "fairscale_fsdp", "fsdp")),
        ("fsdp", "lm", {}),
        ("fsdp", "packed", {}),
        ("mesh", "llama", ULYSSES),
        ("mesh", "packed", ULYSSES),
        ("mesh", "deep", {"pipeline": 2}),
        ("mesh", "deep", {"pipeline": 2, "schedule": "interleaved"}),
        ("mesh", "mixture", {"expert": 2}),
    ],
    # `shard` takes the ranks that the other dimension leaves
    4: [
        ("hsdp", "bert", {"shard": 2}),
        ("fsdp", "lm", {}),
        ("mesh", "llama", ULYSSES),
        ("mesh", "deep", {"pipeline": 2}),
        ("mesh", "mixture", {"expert": 2}),
    ],
}


def main() -> None:
    args = command_line("compiling", __doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="compiling-") as folder:
        models = sorted({model for cases in CASES.values() for _, model, _ in cases})
        alone = run(Path(folder), 1, {model: ("trained", job("single", model)) for model in models})
        found = [compared(Path(folder), processes, *case, alone[case[1]]) for processes, cases in CASES.items() for case in cases]
    write_figures(args.output, {"trainings": found})


def compared(folder: Path, processes: int, name: str, model: str, arguments: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    microbatches = 2 * arguments.get("pipeline", 1) if arguments.get("schedule") else arguments.get("pipeline", 1)
    began = time.monotonic()
    compiled = job(name, model, None, arguments, compile=True, accumulate=microbatches)
    done = run(folder, processes, {"compiled": ("trained", compiled)}, forked=False)["compiled"]
    variants, met = done["compiled"]
    found = {
        "training": " ".join([name, *(key if value is True else f"{key} {value}" for key, value in arguments.items())]),
        "processes": processes, "model": model, "loss": difference(done, expected, "losses"), "norm": difference(done, expected, "norms"),
        "compiled": [variants, met],
    }  # fmt: skip
    print(
        f"{found['training']:44} @{processes} {model:8} loss {found['loss']:.1e}  norm {found['norm']:.1e}  "
        f"{variants} of {met} variants of functions compiled  ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    return found


def difference(done: dict[str, Any], expected: dict[str, Any], kind: str) -> float:
    return max(abs(value / right - 1) for value, right in zip(done[kind], expected[kind], strict=True))


if __name__ == "__main__":
    main()
