"""What the planner says of language models with 1, 8 and 70 billion parameters on GPUs of 80 GB: the table of docs/how_large.md.

Nothing is trained and no GPU is used: these are predictions. `planning.py` compares the planner with real trainings, on CPUs.
"""

import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from harness import command_line, write_figures
from planning import write_tokenizer

from snaketrain.checking.planned import NotPlannable
from snaketrain.config.schema import Settings
from snaketrain.extras.planning.estimates import plan_run
from snaketrain.extras.planning.page import figures

GPU_GIB = 80
COMMON = {"vocab_size": 128256, "max_position_embeddings": 8192, "num_key_value_heads": 8}
SIZES = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
RECOMPUTE = {"recompute_activations": True}
NAMES = {"tensor": "tensor 8 x fsdp", "pipeline": "tensor 8 x pipeline 8", "auto": "single"}
# the model, GPUs, the strategy, further settings of `train`; each process computes one row of 4,096 tokens at a time
CASES: list[tuple[str, int, object, dict[str, Any]]] = [
    ("1B", 1, "auto", {}),
    ("1B", 1, "auto", RECOMPUTE),
    ("1B", 8, "ddp", {}),
    ("1B", 8, "fsdp", {}),
    ("8B", 8, "ddp", RECOMPUTE),
    ("8B", 8, "fsdp", {}),
    ("8B", 8, "fsdp", RECOMPUTE),
    ("8B", 1024, "fsdp", {}),
    ("8B", 1024, "fsdp", RECOMPUTE),
    ("70B", 8, "fsdp", RECOMPUTE),
    ("70B", 64, "fsdp", RECOMPUTE),
    ("70B", 64, "tensor", RECOMPUTE),
    ("70B", 64, "pipeline", RECOMPUTE | {"accumulate": 32, "batch_size": 32}),
    ("70B", 1024, "fsdp", RECOMPUTE),
    ("70B", 1024, "tensor", {}),
    ("70B", 1024, "tensor", RECOMPUTE),
]


def settings(size: str, gpus: int, strategy: object, train: dict[str, Any], tokenizer: Path) -> Settings:
    shares = gpus
    if strategy == "tensor":
        strategy, shares = {"use": "tensor_parallel", "arguments": {"tensor": 8, "shard": True}}, gpus // 8
    if strategy == "pipeline":
        strategy = {"use": "mesh", "arguments": {"tensor": 8, "pipeline": 8}}
    of_node = min(gpus, 8)
    return Settings.model_validate({
        "data": {"train": {"path": "x.csv"}, "label": None, "max_length": 4096, "tokenizer": {"path": str(tokenizer)}},
        "model": {"use": "transformers.LlamaForCausalLM", "arguments": COMMON | SIZES[size]},
        "train": {"task": "causal_lm", "block_length": 4096, "batch_size": shares, "steps": 100, "strategy": strategy} | train,
        "compute": {"nodes": str(gpus // of_node), "processes": of_node, "gpus": of_node, "memory_gb_of_gpu": GPU_GIB},
    })  # fmt: skip


def main() -> None:
    args = command_line("how_large", __doc__).parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="how-large-") as folder:
        tokenizer = Path(folder) / "tokenizer"
        write_tokenizer(tokenizer)
        for size, gpus, strategy, train in CASES:
            began = time.process_time()
            row: dict[str, Any] = {"model": size, "gpus": gpus, "strategy": NAMES.get(str(strategy), strategy), "recompute": bool(train)}
            try:
                row |= figures(plan_run(settings(size, gpus, strategy, train, tokenizer), Path(folder)))
            except NotPlannable as problem:
                row["problem"] = str(problem)
            row["seconds"] = round(time.process_time() - began, 1)
            rows.append(row)
    write_figures(args.output, {"memory of a GPU, GiB": GPU_GIB, "rows": rows})


if __name__ == "__main__":
    main()
