"""How well `make plan` predicts the memory of a training: its figures beside those of real processes, in many configurations on the CPU.

In each configuration, real processes (torchrun, gloo) build the model with the trainer's own code and take three steps on the batch that
the plan is made for. Measured is how far the resident memory of a process is above what it had before it built the model, at its peak
during the steps; of all ranks the most; minus the same for a model of next to no size under the same strategy, which is what gloo and
torch's libraries take. Freed memory is returned to the system at once.

`--gpu`: larger models on one GPU instead, where measured is what torch's allocator has handed out at its peak. On a machine without one,
the predictions are renewed, and what was measured is kept.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import RETURNS_MEMORY, about, command_line, judge, memory, run, torchrun, write

GOAL = 0.10  # of the measured peak
STEPS = 3
WORDS = 8000
ENVIRONMENT = RETURNS_MEMORY | {"TRANSFORMERS_VERBOSITY": "error"}

LLAMA = {"use": "transformers.LlamaForCausalLM", "arguments": {
    "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 10, "num_attention_heads": 6, "num_key_value_heads": 2}}  # fmt: skip
GPT2 = {"use": "transformers.GPT2LMHeadModel", "arguments": {"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 256}}
BERT = {"use": "transformers.BertForSequenceClassification", "arguments": {
    "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 6}}  # fmt: skip
T5 = {"use": "transformers.T5ForConditionalGeneration", "arguments": {
    "d_model": 320, "d_ff": 1280, "num_layers": 4, "num_heads": 5, "d_kv": 64}}  # fmt: skip
MIXTRAL = {"use": "transformers.MixtralForCausalLM", "arguments": {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 4, "num_experts_per_tok": 2}}  # fmt: skip
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY = {
    LLAMA["use"]: SMALL | {"num_hidden_layers": 4},  # one for each stage of a pipeline
    MIXTRAL["use"]: SMALL | {"num_hidden_layers": 2, "num_local_experts": 2},
    GPT2["use"]: {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
    BERT["use"]: {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    T5["use"]: {"d_model": 16, "d_ff": 16, "num_layers": 2, "num_heads": 2, "d_kv": 8},
}
SHARDED = {"use": "tensor_parallel", "arguments": {"tensor": 2, "shard": True}}


def mesh(**arguments: Any) -> dict[str, Any]:
    return {"use": "mesh", "arguments": arguments}


def lm(model: dict[str, Any], processes: int, strategy: object = "auto", **train: Any) -> dict[str, Any]:
    train = {"task": "causal_lm", "block_length": 256, "batch_size": 4 * processes, "strategy": strategy} | train
    return settings(model, processes, {"label": None, "max_length": 256}, train)


def classes(processes: int, strategy: object = "auto", **train: Any) -> dict[str, Any]:
    return settings(BERT, processes, {"max_length": 128}, {"batch_size": 8 * processes, "strategy": strategy} | train)


def summaries(processes: int, strategy: object = "auto", **train: Any) -> dict[str, Any]:
    data = {"label": None, "target": "summary", "max_length": 128, "max_target_length": 64}
    return settings(T5, processes, data, {"task": "seq2seq", "batch_size": 8 * processes, "strategy": strategy} | train)


def on_gpu(configuration: dict[str, Any]) -> dict[str, Any]:
    return configuration | {"compute": {"processes": 1, "gpus": 1, "device": "cuda"}}


def settings(model: dict[str, Any], processes: int, data: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    compute = {"processes": processes, "device": "cpu", "threads": processes}
    steps = {"steps": STEPS, "warmup": 0, "learning_rate": 1e-4}
    return {"data": {"train": {"path": "raw.csv"}} | data, "model": model, "train": steps | train, "compute": compute}


CONFIGURATIONS = {
    "Llama, single": lm(LLAMA, 1),
    "Llama, single, accumulate 4": lm(LLAMA, 1, accumulate=4),
    "Llama, single, recomputed activations": lm(LLAMA, 1, recompute_activations=True),
    "Llama, single, SGD": lm(LLAMA, 1, optimizer={"use": "torch.optim.SGD", "arguments": {"momentum": 0.9}}),
    "Llama, single, frozen embeddings": lm(LLAMA, 1, freeze=["model.embed_tokens.*"]),
    "Llama, single, bf16": lm(LLAMA, 1, precision="bf16"),
    "Llama, ddp 2": lm(LLAMA, 2, "ddp"),
    "Llama, zero1 2": lm(LLAMA, 2, "zero1"),
    "Llama, fsdp 2": lm(LLAMA, 2, "fsdp"),
    "Llama, fsdp 2, accumulate 2": lm(LLAMA, 2, "fsdp", accumulate=2),
    "Llama, fsdp 2, recomputed activations": lm(LLAMA, 2, "fsdp", recompute_activations=True),
    "Llama, fsdp 4": lm(LLAMA, 4, "fsdp"),
    "Llama, hsdp 2 x 2": lm(LLAMA, 4, {"use": "hsdp", "arguments": {"shard": 2}}),
    "Llama, tensor 2": lm(LLAMA, 2, "tensor_parallel"),
    "Llama, tensor 2 x fsdp 2": lm(LLAMA, 4, SHARDED),
    "Llama, pipeline 2, accumulate 4": lm(LLAMA, 2, mesh(pipeline=2), accumulate=4),
    "Llama, pipeline 2 (zbv), accumulate 4": lm(LLAMA, 2, mesh(pipeline=2, schedule="zbv"), accumulate=4),
    "Llama, pipeline 2 x fsdp 2, accumulate 2": lm(LLAMA, 4, mesh(pipeline=2), accumulate=2),
    "Mixtral, single": lm(MIXTRAL, 1),
    "Mixtral, expert 2": lm(MIXTRAL, 2, mesh(expert=2)),
    "GPT-2, single": lm(GPT2, 1),
    "GPT-2, fsdp 2": lm(GPT2, 2, "fsdp"),
    "BERT, single": classes(1),
    "BERT, ddp 2": classes(2, "ddp"),
    "T5, fsdp 2": summaries(2, "fsdp"),
}

LARGE = {"use": LLAMA["use"], "arguments": {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 8}}  # fmt: skip
BLOCKS = {"block_length": 2048, "batch_size": 4}
ON_GPU = {
    "Llama 0.8B, single": on_gpu(lm(LARGE, 1, **BLOCKS)),
    "Llama 0.8B, single, fp32": on_gpu(lm(LARGE, 1, precision="fp32", **BLOCKS)),
    "Llama 0.8B, single, fp16": on_gpu(lm(LARGE, 1, precision="fp16", **BLOCKS)),
    "Llama 0.8B, single, accumulate 4": on_gpu(lm(LARGE, 1, accumulate=4, **BLOCKS)),
    "Llama 0.8B, single, recomputed activations": on_gpu(lm(LARGE, 1, recompute_activations=True, **BLOCKS)),
    "Llama 0.8B, fsdp": on_gpu(lm(LARGE, 1, "fsdp", **BLOCKS)),
    "Llama 0.8B, fsdp, offloaded": on_gpu(lm(LARGE, 1, {"use": "fsdp", "arguments": {"cpu_offload": True}}, **BLOCKS)),
}


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    special = ["[PAD]", "[UNK]"]
    folder.mkdir()
    words = {word: number for number, word in enumerate([*special, *(f"w{n}" for n in range(WORDS - len(special)))])}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))


def tiny(configuration: dict[str, Any]) -> dict[str, Any]:
    """The same with next to no model and the shortest texts."""
    use, short = configuration["model"]["use"], {"max_length": 8} | ({"max_target_length": 4} if "target" in configuration["data"] else {})
    block = {"block_length": 8} if "block_length" in configuration["train"] else {}
    return configuration | {
        "data": configuration["data"] | short,
        "model": {"use": use, "arguments": TINY[use] | {"vocab_size": WORDS}},
        "train": configuration["train"] | block,
    }


# --- real processes


def measure(given: dict[str, Any], scratch: Path) -> None:
    """On each rank; rank 0 prints the most of all, in bytes."""
    import torch

    from snaketrain.checking.planned import planned_data
    from snaketrain.config.schema import Settings
    from snaketrain.extras.planning.tracing import largest_shares
    from snaketrain.training.building import build, make_task, make_train_state, start_strategy
    from snaketrain.training.step import take_step

    settings = Settings.model_validate(given)
    strategy = start_strategy(settings.train, settings.compute.device)
    cuda = strategy.device.type == "cuda"
    folder = scratch / str(strategy.rank)
    folder.mkdir(parents=True)
    data = planned_data(settings, scratch, folder)
    shares = largest_shares(settings, data, strategy.data_parallel_size)
    task = make_task(settings.train, data.facts)
    square = torch.randn(64, 64, device=strategy.device)
    (square @ square).sum()  # the libraries start
    before = torch.cuda.memory_allocated() if cuda else memory("VmRSS")
    modules = build(task, settings.train, settings.model, None, data.facts, builds=strategy.builds)
    state = make_train_state(task, settings.train, modules, strategy)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    for _ in range(STEPS):
        take_step(state, shares.training, 1000.0, 1e-4)
    found = (torch.cuda.max_memory_allocated() if cuda else memory("VmHWM")) - before
    most = max(strategy.all_gather_object(found))
    if strategy.rank == 0:
        print(json.dumps(most), flush=True)
    strategy.finish()


def measured(given: dict[str, Any]) -> int:
    processes = given["compute"]["processes"]
    with tempfile.TemporaryDirectory(prefix="planning-") as scratch:
        words = [*torchrun(processes), __file__, "--measure", json.dumps(given), "--scratch", scratch]
        return int(json.loads(run(words, ENVIRONMENT).output.splitlines()[-1]))


# --- both


def compared(names: list[str], tokenizer: Path, kept: dict[str, dict[str, float]]) -> Iterator[tuple[str, dict[str, float]]]:
    from snaketrain.config.schema import Settings
    from snaketrain.extras.planning.estimates import plan_run

    overheads: dict[str, int] = {}
    for name in names:
        given = (CONFIGURATIONS | ON_GPU)[name]
        given = given | {"data": given["data"] | {"tokenizer": {"path": str(tokenizer)}}}
        estimate = plan_run(Settings.model_validate(given), tokenizer.parent)
        steps = {phase: sum(parts.values()) for phase, parts in estimate.footprint.moments.items() if not phase.startswith("evaluation")}
        key = json.dumps([given["model"]["use"], given["train"]["strategy"], given["compute"]["processes"]])
        if given["compute"]["device"] == "cuda":
            overheads[key] = 0  # libraries have memory of their own
        if key not in overheads:
            small = tiny(given)
            in_small = plan_run(Settings.model_validate(small), tokenizer.parent).footprint.peak
            overheads[key] = measured(small) - int(in_small)
        peak = int(kept[name]["measured, MB"] * 1e6) if name in kept else measured(given)
        real, predicted = peak - overheads[key], max(steps.values())
        yield name, {
            "predicted, MB": round(predicted / 1e6, 1), "measured, MB": round(real / 1e6, 1), "libraries, MB": round(overheads[key] / 1e6, 1),
            "ratio": round(predicted / real, 3), "parameters": round(estimate.footprint.parameters),
        }  # fmt: skip


def main() -> None:
    parser = command_line("planning", __doc__)
    parser.add_argument("--gpu", action="store_true", help="the configurations for one GPU, into results/planning_on_a_gpu.json")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these; the figures of others are kept (default: all)")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.scratch)
    os.environ |= ENVIRONMENT
    import torch

    if args.gpu and args.output == parser.get_default("output"):
        args.output = args.output.with_stem("planning_on_a_gpu")
    without_gpu = args.gpu and not torch.cuda.is_available()
    rows: dict[str, dict[str, float]] = json.loads(args.output.read_text())["configurations"] if args.only or without_gpu else {}
    names = args.only or list(rows if without_gpu else ON_GPU if args.gpu else CONFIGURATIONS)
    with tempfile.TemporaryDirectory(prefix="planning-") as folder:
        tokenizer = Path(folder) / "tokenizer"
        write_tokenizer(tokenizer)
        for name, row in compared(names, tokenizer, rows.copy() if without_gpu else {}):
            rows[name] = row
            print(name, row, flush=True)
            worst = keep(rows, args.output)
    judge({f"worst of {len(rows)} configurations: {worst:.1%} off, at most {GOAL:.0%}": worst <= GOAL})


def keep(rows: dict[str, dict[str, float]], output: Path) -> float:
    """After each configuration, so that what was measured is kept. Returns how far the worst prediction is off."""
    in_order = {name: rows[name] for name in CONFIGURATIONS | ON_GPU if name in rows}
    worst = max(abs(row["ratio"] - 1) for row in in_order.values())
    write(output, about() | {"configurations": in_order, "worst": round(worst, 4)})
    return worst


if __name__ == "__main__":
    main()
