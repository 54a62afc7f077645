"""What a process keeps for the backward pass at several points of a mesh, and whether the loss is that of one process.

One step of a Llama with a large vocabulary, on 1, 2 and 4 processes (gloo, CPU, fp32). The bytes that autograd saves, without parameters,
as a share of those of one process: in the blocks, and from the last block to the loss, which is mostly the logits.

Goals: each of n processes keeps at most 1.1 / n of the blocks' activations under sequence parallelism or ulysses, and of the logits under
loss_parallel; losses and norms of gradients are within 1e-5 of those of one process.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import command_line, judge, run, torchrun, write_figures

SEQUENCE, CUT, ULYSSES = {"tensor": 2, "sequence_parallel": True}, {"loss_parallel": True}, {"context_attention": "ulysses"}
POINTS: dict[int, dict[str, dict[str, Any]]] = {  # by the number of processes
    1: {"one process": {}},
    2: {
        "tensor 2": {"tensor": 2},
        "tensor 2, sequence_parallel, loss_parallel": SEQUENCE | CUT,
        "context 2, gather, loss_parallel": {"context": 2} | CUT,
        "context 2, ulysses, loss_parallel": {"context": 2} | ULYSSES | CUT,
    },
    4: {
        "context 4, ulysses, loss_parallel": {"context": 4} | ULYSSES | CUT,
        "tensor 2, context 2, sequence_parallel, ulysses, loss_parallel": {"context": 2} | SEQUENCE | ULYSSES | CUT,
    },
}
ROWS, LENGTH, VOCABULARY = 2, 256, 8192
SLACK, TOLERANCE = 1.1, 1e-5


def measure(arguments: dict[str, Any]) -> dict[str, float]:
    """On one rank."""
    import torch
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from transformers import LlamaConfig, LlamaForCausalLM

    from snaketrain.data.loading.batches import MicroBatch
    from snaketrain.models.blocks import blocks
    from snaketrain.strategies import make_strategy
    from snaketrain.strategies.shards import local_tensor
    from snaketrain.tasks.causal_lm import CausalLm
    from snaketrain.training.state import TrainState

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, intermediate_size=512)
    config.vocab_size = VOCABULARY
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    task = CausalLm()
    task.use, task.longest, task.one_row, task.keeps_texts_apart = "Llama", None, False, True
    strategy = make_strategy("mesh" if "RANK" in os.environ else "single", arguments, device="cpu", precision="fp32")
    strategy.start()
    module, optimizer = strategy.prepare(LlamaForCausalLM(config), lambda parameters, **_: torch.optim.SGD(parameters.values(), lr=0.0))
    state = TrainState(task, strategy, {"model": module}, {"model": optimizer}, clip_norm=1.0)

    kept: dict[str, dict[int, int]] = {"blocks": {}, "logits": {}}
    part = ["blocks"]
    blocks(module)[0].register_forward_pre_hook(lambda *_: part.__setitem__(0, "blocks"))
    blocks(module)[-1].register_forward_hook(lambda *_: part.__setitem__(0, "logits"))

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        local = local_tensor(tensor)
        storage = (local.trigger_wait() if isinstance(local, AsyncCollectiveTensor) else local).untyped_storage()
        if storage.data_ptr() not in {local_tensor(each).untyped_storage().data_ptr() for each in module.parameters()}:
            kept[part[0]][storage.data_ptr()] = storage.nbytes()
        return tensor

    share = [(MicroBatch(tuple(range(ROWS))), {"input_ids": tokens})]
    (objective,) = state.objectives()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = strategy.forward_backward(objective, share, ROWS * LENGTH)
    norm = strategy.update([(module, optimizer)], 1.0)
    strategy.finish()
    return {"loss": losses[""].item(), "norm": norm.item()} | {name: float(sum(sizes.values())) for name, sizes in kept.items()}


def work(processes: int, output: Path) -> None:
    import torch.distributed as dist

    found = {name: measure(arguments) for name, arguments in POINTS[processes].items()}
    if int(os.environ.get("RANK", 0)) == 0:
        output.write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


def launch(processes: int, output: Path) -> dict[str, dict[str, float]]:
    command = [*(torchrun(processes) if processes > 1 else [sys.executable]), __file__, "--work", processes, "--output", output]
    run(command, {"OMP_NUM_THREADS": "1"})
    found: dict[str, dict[str, float]] = json.loads(output.read_text())
    return found


def figures(arguments: dict[str, Any], processes: int, found: dict[str, float], alone: dict[str, float]) -> dict[str, Any]:
    shares = {part: round(found[part] / alone[part], 3) for part in ("blocks", "logits")}
    difference = max(abs(found[key] / alone[key] - 1) for key in ("loss", "norm"))
    balanced = arguments.get("sequence_parallel") or arguments.get("context_attention") == "ulysses"
    goals = {"blocks": SLACK / processes if balanced else None, "logits": SLACK / processes if arguments.get("loss_parallel") else None}
    met = difference < TOLERANCE and all(goal is None or shares[part] <= goal for part, goal in goals.items())
    return {"processes": processes, **shares, "difference": difference, "goals": goals, "met": met}


def main() -> None:
    parser = command_line("mesh", __doc__)
    parser.add_argument("--work", type=int, choices=POINTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.output)
        return
    with tempfile.TemporaryDirectory(prefix="mesh-") as folder:
        found = {processes: launch(processes, Path(folder) / f"{processes}.json") for processes in POINTS}
    alone = found[1]["one process"]
    points = {
        name: figures(arguments, processes, found[processes][name], alone)
        for processes in (2, 4)
        for name, arguments in POINTS[processes].items()
    }
    write_figures(args.output, {"rows": ROWS, "length": LENGTH, "vocabulary": VOCABULARY, "points": points})
    judge({name: each["met"] for name, each in points.items()})


if __name__ == "__main__":
    main()
