"""Compares every strategy with `single`, on 1, 2 and 4 processes of one CPU: differences in the losses, and memory per process.

1. Losses: twenty steps in fp32 without dropout, with and without accumulation, of a small BERT, BART and Llama (`mesh`: of Llama, with a
   `pipeline` of one with five layers); the largest relative difference. tests/distributed/test_strategies.py asserts 1e-5 for a part of them.
2. Bytes of parameters, gradients and AdamW's state in a process between backward and update (the maximum over processes), as
   a share of those of `single`, beside the theoretical share.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from harness import command_line, write_figures

# isort: split
from distributed.test_strategies import EVERYWHERE, MODELS, job, run

TWENTY_STEPS = {"steps": 20, "learning_rate": 3e-3, "warmup": 4}
KINDS = ("parameters", "gradients", "optimizer")
COLUMNS = (*MODELS, "deep")
# points of a mesh: with four processes, `shard` takes those that the other dimensions leave
POINTS: list[dict] = [
    {"context": 2},
    {"context": 2, "context_attention": "ulysses"},
    {"tensor": 2, "sequence_parallel": True},
    {"pipeline": 2},
    {"pipeline": 2, "schedule": "interleaved"},
    {"pipeline": 2, "schedule": "zbv"},
]


def strategies(processes: int) -> list[tuple[str, dict]]:
    if processes == 1:
        return [("single", {}), ("data_parallel", {}), *((name, {}) for name in EVERYWHERE)]
    found = [(name, {}) for name in EVERYWHERE] + [("hsdp", {"shard": 2})] + [("mesh", point) for point in POINTS]
    return found + [("tensor_parallel", {"tensor": 2}), ("tensor_parallel", {"tensor": 2, "shard": True})] * (processes == 4)


def label(name: str, arguments: dict) -> str:
    return " ".join([name, *(key if value is True else f"{key} {value}" for key, value in arguments.items())])


def theory(name: str, arguments: dict, processes: int) -> tuple[float, float, float]:
    """The share of parameters, gradients and optimizer state; of tensor_parallel, of those matrices that the plan cuts."""
    part = 1 / processes
    if name == "mesh":
        return part, part, part
    if name == "tensor_parallel":
        part = 1 / arguments.get("tensor", processes) if not arguments.get("shard") else part
        return part, part, part
    if name == "hsdp":
        return (1 / arguments["shard"],) * 3
    return {"zero1": (1, 1, part), "fairscale_oss": (1, part, part), "fsdp": (part,) * 3, "fairscale_fsdp": (part,) * 3}.get(
        name, (1, 1, 1)
    )


def main() -> None:
    parser = command_line("strategies", __doc__)
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[1, 2, 4], help="numbers of processes to train on (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these strategies; the figures of others are kept (default: all)")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.output.read_text()) if args.only else {"losses": {}, "memory": {}}
    with tempfile.TemporaryDirectory(prefix="strategies-") as folder:
        alone = run(Path(folder), 1, jobs([("single", {})]))
        for processes in args.processes:
            chosen = [each for each in strategies(processes) if not args.only or each[0] in args.only]
            if not chosen:
                continue
            done = run(Path(folder), processes, jobs(chosen))
            for name, arguments in chosen:
                about = f"{label(name, arguments)} @{processes}"
                found["losses"][about] = {model: worst(done, alone, name, arguments, model) for model in models_of(name, arguments)}
                found["memory"][about] = held(done, alone, name, arguments, processes)
    write_figures(args.output, found | about())


def models_of(name: str, arguments: dict) -> tuple[str, ...]:
    if name == "single":
        return COLUMNS
    return MODELS if name != "mesh" else ("deep",) if "pipeline" in arguments else ("llama",)


def pieces_of(arguments: dict) -> tuple[int, ...]:
    """Numbers of microbatches: a pipeline needs one for each of its processes."""
    few = arguments.get("pipeline", 1)
    return few, 2 * few


def jobs(chosen: list[tuple[str, dict]]) -> dict[str, tuple[str, dict]]:
    found = {}
    for name, arguments in chosen:
        about, pieces = label(name, arguments), pieces_of(arguments)
        for model in models_of(name, arguments):
            for number in pieces:
                found[f"{about} {model} {number}"] = "trained", job(name, model, None, arguments, accumulate=number, **TWENTY_STEPS)
        found[f"{about} memory"] = "measured", job(name, "larger", None, arguments, accumulate=pieces[0])
    return found


def worst(done: dict, alone: dict, name: str, arguments: dict, model: str) -> float:
    """The largest relative difference of a loss from that of `single` on one process, with and without accumulation."""
    expected = alone[f"single {model} 1"]["losses"]
    runs = [done[f"{label(name, arguments)} {model} {number}"]["losses"] for number in pieces_of(arguments)]
    return max(abs(loss / right - 1) for losses in runs for loss, right in zip(losses, expected, strict=True))


def held(done: dict, alone: dict, name: str, arguments: dict, processes: int) -> dict[str, Any]:
    whole = alone["single memory"][0]
    fullest = {kind: max(each[kind] for each in done[f"{label(name, arguments)} memory"]) for kind in KINDS}
    shares = {kind: round(fullest[kind] / whole[kind], 3) for kind in KINDS}
    return {"bytes": fullest, "share": shares, "theory": dict(zip(KINDS, theory(name, arguments, processes), strict=True))}


if __name__ == "__main__":
    main()
