"""Models of pretrained weights under each strategy that reads them by slices, compared with whole ones: slices_runner.py FOLDER RESULTS.json"""

import json
import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[2] / "workflow/scripts")]

from snaketrain.config.schema import Model, Train  # noqa: E402
from snaketrain.models.weights import (  # noqa: E402
    leave_trained_unread,
    save_weights,
    unread_weights,
)
from snaketrain.training.building import build, by_slices, load_for_evaluation, make_task, make_train_state, start_strategy  # noqa: E402

FACTS = {"label_kind": "class", "label_names": ["a", "b", "c"], "vocab_size": 24, "pad_token_id": 0}
MODELS = {
    "encoder": (Model(use="transformers.AutoModelForSequenceClassification"), Train()),
    "mixture": (Model(use="transformers.MixtralForCausalLM"), Train(task="causal_lm")),
    "untied": (Model(use="transformers.LlamaForCausalLM"), Train(task="causal_lm")),
    "tied": (Model(use="transformers.LlamaForCausalLM"), Train(task="causal_lm")),
}
PLAN = {"*.self.[qkv]*": "colwise", "*.attention.output.dense": "rowwise", "*.intermediate.*": "colwise", "*.?.output.dense": "rowwise"}
STRATEGIES = {
    "fsdp": ("fsdp", {}),
    "fsdp, built once, offloaded": ("fsdp", {"build_once": True, "cpu_offload": True}),
    "hsdp": ("hsdp", {"shard": 2}),
    "tensor_parallel": ("tensor_parallel", {"tensor": 2}),
    "tensor_parallel, sharded": ("tensor_parallel", {"tensor": 2, "shard": True}),
}
MESHES = {
    "mesh": ("mesh", {"tensor": 2, "sequence_parallel": True}),
    "mesh, context": ("mesh", {"context": 2, "loss_parallel": True}),
}
PIPELINES = {"pipeline": ("mesh", {"pipeline": 4}), "pipeline, sharded": ("mesh", {"pipeline": 2, "schedule": "zbv"})}
EXPERTS = {"experts": ("mesh", {"expert": 4}), "experts, sharded": ("mesh", {"expert": 2})}
CASES = {"encoder": STRATEGIES, "tied": STRATEGIES | MESHES, "untied": PIPELINES, "mixture": EXPERTS}


PACKED = {"input_ids": torch.arange(1, 9)[None], "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])}


def compared(name: str, folder: Path, use: str, arguments: dict) -> dict[str, bool]:
    model, train = MODELS[name]
    if use == "tensor_parallel" and name == "encoder":
        arguments = arguments | {"plan": PLAN}
    train = train.model_copy(update={"strategy": train.strategy.model_copy(update={"use": use, "arguments": arguments})})
    strategy, task = start_strategy(train, "cpu"), make_task(train)
    whole_task = make_task(train)
    (whole,) = build(whole_task, train, model, folder / name, FACTS).values()
    (module,) = build(task, train, model, folder / name, FACTS, builds=strategy.builds, slices=by_slices(task, strategy)).values()
    unread = unread_weights(module) is not None and all(parameter.is_meta for parameter in module.parameters())
    state = make_train_state(task, train, {"model": module}, strategy)
    found = {"unread": unread, "trained": same(strategy, state.modules["model"], whole)}
    if name == "tied":  # the first batch probes what the model attends to
        losses = [float(each.training_step(modules, PACKED)) for each, modules in ((task, state.modules), (whole_task, {"model": whole}))]
        found["probed"] = abs(losses[0] - losses[1]) < 1e-4 * losses[1] and not task.unprobed and task.keeps_texts_apart
    selected = folder / "selected"
    if strategy.rank == 0:
        selected.mkdir(exist_ok=True)
        save_weights(whole, selected, "model", 10_000)
    strategy.wait()
    (module,) = build(task, train, model, folder / name, FACTS, builds=False, slices=True).values()
    leave_trained_unread(module, selected, "model")
    placed = load_for_evaluation(task, {"model": module}, strategy, selected)
    found["evaluated"] = same(strategy, placed.modules["model"], whole)
    strategy.wait()
    return found


def same(strategy, module: torch.nn.Module, whole: torch.nn.Module) -> bool:
    weights = strategy.weights(module)
    if strategy.rank > 0:
        return True
    state = whole.state_dict()
    buffers = dict(module.named_buffers())
    return (
        weights.keys() == state.keys()
        and all(torch.equal(weights[key], state[key]) for key in state)
        and all(torch.equal(buffers[key], buffer) for key, buffer in whole.named_buffers())
    )


def main(folder: Path, results: Path) -> None:
    torch.set_num_threads(1)
    found = {f"{name}, {title}": compared(name, folder, *chosen) for name in CASES for title, chosen in CASES[name].items()}
    if torch.distributed.get_rank() == 0:
        results.write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
