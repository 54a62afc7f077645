"""Many small trainings in one start of the processes: each job of a file under its strategy, on made-up examples.

torchrun --standalone --nproc-per-node 2 strategies_runner.py JOBS.json RESULTS.json
"""

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "workflow/scripts")]

import fairscale_on_cpu  # noqa: E402

from snaketrain.config.references import load  # noqa: E402
from snaketrain.config.schema import Model, Train  # noqa: E402
from snaketrain.data.loading.batches import MicroBatch  # noqa: E402
from snaketrain.data.loading.examples import Packed, Splits  # noqa: E402
from snaketrain.strategies.shards import local_tensor  # noqa: E402
from snaketrain.training.building import build, load_callbacks, load_for_evaluation, make_task, make_train_state  # noqa: E402
from snaketrain.training.checkpoints.exporting import export_weights  # noqa: E402
from snaketrain.training.checkpoints.ranking import BY_LOSS, exported_files, is_sharded  # noqa: E402
from snaketrain.training.checkpoints.store import Checkpoints  # noqa: E402
from snaketrain.training.evaluation import evaluate  # noqa: E402
from snaketrain.training.plan import Plan, folder_name  # noqa: E402
from snaketrain.training.state import TrainState  # noqa: E402
from snaketrain.training.step import take_step  # noqa: E402
from snaketrain.training.trainer import Trainer, TrainerOptions  # noqa: E402

VOCABULARY, PAD, END = 24, 0, 2
PAIR_TASK = Path(__file__).with_name("pair_task.py")
FACTS = {"label_kind": "class", "label_names": ["no", "yes"], "vocab_size": VOCABULARY, "pad_token_id": PAD}
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
BART = {"d_model": 32, "bos_token_id": 1, "eos_token_id": END, "decoder_start_token_id": END, "dropout": 0.0, "init_std": 0.1}
for side, number in (("encoder", 2), ("decoder", 1)):
    BART |= {f"{side}_layers": number, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 64}
LLAMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64}
MODELS = {
    "bert": Model(
        use="transformers.BertForSequenceClassification",
        arguments=BERT | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "bart": Model(use="transformers.BartForSequenceClassification", arguments=BART),  # with tied embeddings
    "llama": Model(use="transformers.LlamaForSequenceClassification", arguments=LLAMA),
    "lm": Model(use="transformers.LlamaForCausalLM", arguments=LLAMA | {"num_key_value_heads": 2}),
    "packed": Model(use="transformers.LlamaForCausalLM", arguments=LLAMA | {"num_key_value_heads": 2}),
    "deep": Model(use="transformers.LlamaForSequenceClassification", arguments=LLAMA | {"num_hidden_layers": 5}),
    "half frozen": Model(use="transformers.LlamaForSequenceClassification", arguments=LLAMA | {"num_hidden_layers": 5}),
    "mixture": Model(use="transformers.MixtralForCausalLM", arguments=LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "few": Model(use="transformers.MixtralForCausalLM", arguments=LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "qwen": Model(
        use="transformers.Qwen3MoeForCausalLM",
        arguments=LLAMA | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16},
    ),
    "pair": Model(use="torch.nn.Sequential"),
    "own": Model(use="torch.nn.Sequential"),
    "joint": Model(use="torch.nn.Sequential"),
    "larger": Model(
        use="transformers.LlamaForSequenceClassification",
        arguments=LLAMA | {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 256},
    ),
}
# what each model's trainings also cover: clipping in every case, groups, frozen parameters, recomputed activations, two modules
TRAIN = {
    "bert": {"clip_norm": 0.1, "weight_decay": 0.1, "groups": [{"match": "bert.embeddings.*", "rate_scale": 0.5, "weight_decay": 0.0}]},
    "bart": {"freeze": ["model.encoder.layers.0.*", "*layernorm_embedding*"]},
    "llama": {"recompute_activations": True},
    "lm": {"task": "causal_lm", "clip_norm": 0.5, "recompute_activations": True},
    "packed": {"task": "causal_lm", "clip_norm": 0.5, "packing": True},
    "deep": {"clip_norm": 0.1, "weight_decay": 0.1, "freeze": ["model.embed_tokens.*"]},
    "half frozen": {"freeze": ["model.embed_tokens.*", "model.layers.[012].*"]},
    "mixture": {"task": "causal_lm", "clip_norm": 0.5, "weight_decay": 0.1},
    "few": {"task": "causal_lm", "accumulate": 8},  # of one text each, so that some experts get no token
    "qwen": {"task": "causal_lm", "clip_norm": 0.5, "packing": True, "recompute_activations": True},
    "larger": {},
    "pair": {"task": f"{PAIR_TASK}:Pair"},
    "own": {"task": f"{PAIR_TASK}:OwnPair", "groups": [{"match": "judge.*", "rate_scale": 0.5}]},
    "joint": {"task": f"{PAIR_TASK}:JointPair"},
}


class Examples:
    """Sequences of two to twelve tokens; the label is whether the first one is of the upper half."""

    def __init__(self, count: int, seed: int):
        random = np.random.default_rng(seed)
        self.tokens = [[*random.integers(3, VOCABULARY, random.integers(1, 12)).tolist(), END] for _ in range(count)]
        self.lengths = np.array([len(tokens) for tokens in self.tokens])

    pairs, pad_token_id = False, PAD

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, name: str, ids: Sequence[int]) -> list[np.ndarray]:
        return [np.array(self.tokens[i]) for i in ids]

    def batch(self, ids: tuple[int, ...], epoch: int = 0) -> dict[str, torch.Tensor]:
        longest = max(self.lengths[list(ids)])
        padded = torch.tensor([self.tokens[i] + [PAD] * (longest - len(self.tokens[i])) for i in ids])
        labels = torch.tensor([int(self.tokens[i][0] > VOCABULARY // 2) for i in ids])
        return {"input_ids": padded, "attention_mask": (padded != PAD).long(), "labels": labels}


@dataclass
class Notes:
    """A journal that is looked at afterwards."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def begin(self, *_: Any, **__: Any) -> None: ...

    def write(self, event: str, **facts: Any) -> None:
        if event == "train" and "gradient_norm" in facts["metrics"]:  # not that of one rank
            self.losses.append(facts["metrics"]["loss"])
            self.norms.append(facts["metrics"]["gradient_norm"])
        elif event == "eval":
            self.metrics = facts["metrics"]

    def sync(self) -> None: ...


class Unsaved(Checkpoints):
    """None at all."""

    def restore(self, *_: Any) -> int:
        return 0

    def save(self, *_: Any) -> None: ...


class Observed(Trainer):
    """Which examples this rank has loaded for each step."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.loaded, share = list[list[Any]](), self.planned.share

        def noted(ids: np.ndarray) -> list[MicroBatch]:
            found = share(ids)
            self.loaded.append([microbatch.ids for microbatch in found])
            return found

        self.planned.share = noted


@dataclass
class Job:
    """A training of twelve steps in two epochs, each with one smaller batch, and its parts."""

    strategy: str
    model: str
    arguments: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    checkpoints: str | None = None
    device: str = "cpu"
    format: str = "auto"
    compile_backend: str = "inductor"

    def start(self) -> Observed:
        plan = {"batch_size": 16, "steps": 12, "learning_rate": 5e-3, "warmup": 2, "evaluate_every": 6, "bad_steps_allowed": 0}
        train = Train(**(plan | TRAIN[self.model] | self.train))
        strategy = load(self.strategy, "strategies")(**self.arguments, device=self.device, precision=train.precision)
        strategy.start()
        splits = (Examples(90, seed=0), Examples(21, seed=1))
        data, task, notes = Splits(*(map(Packed, splits) if train.packing else splits), FACTS), make_task(train), Notes()
        built = build(task, train, MODELS[self.model], None, FACTS, builds=strategy.builds)
        with patch.object(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend=self.compile_backend)):
            state, folder = make_train_state(task, train, built, strategy), Path(self.checkpoints or "")
        options = TrainerOptions(keep_best=3, checkpoint_format=self.format, log_every=1, callbacks=load_callbacks(train))
        trainer = Observed(state, data, train, Plan.of(train, data.train.lengths), folder, (notes, notes), options)
        if not self.checkpoints:
            trainer.checkpoints = Unsaved(folder, BY_LOSS, 1)
        return trainer


def trained(job: Job) -> dict[str, Any]:
    """Losses and gradient norms by step, the examples of each step, and the metrics at the end."""
    trainer = job.start()
    strategy, notes = trainer.state.strategy, trainer.journal
    trainer.fit()
    seen = [
        sorted({i for microbatches in shares for ids in microbatches for i in ids})
        for shares in zip(*strategy.all_gather_object(trainer.loaded), strict=True)
    ]
    start = trainer.state.step - len(trainer.loaded)
    found = {"start": start, "losses": notes.losses, "norms": notes.norms, "metrics": notes.metrics, "ids": seen}
    found |= {"compiled": frames()} if trainer.train.compile else {}
    return found | ({"placed": placed(job, trainer)} if job.checkpoints else {})


def frames() -> tuple[int, int]:
    """How many variants of functions torch.compile has compiled, of all that it met."""
    from torch._dynamo.utils import counters

    return counters["frames"]["ok"], counters["frames"]["total"]


def placed(job: Job, trainer: Trainer) -> dict[str, float]:
    """The metrics of the saved weights in a new module, as evaluate_model finds them."""
    task, strategy = trainer.state.task, trainer.state.strategy
    strategy.wait()  # for what the first rank writes
    checkpoint = trainer.checkpoints.folder / folder_name(trainer.state.step)
    if strategy.rank == 0:
        if is_sharded(checkpoint):
            export_weights(checkpoint, checkpoint, most_bytes=20_000)  # several files
        for name, path in exported_files(checkpoint).items():
            path.replace(checkpoint / name)  # averaged ones in place of those that were trained
    strategy.wait()
    modules = build(task, trainer.train, MODELS[job.model], None, FACTS)
    state = load_for_evaluation(task, modules, strategy, checkpoint)
    return evaluate(state, trainer.data.dev, 8)


def overflowed(job: Job) -> dict[str, Any]:
    """All weights, and the loss scale of all processes, after the last process's part of a gradient was infinite."""
    trainer = job.start()
    state, strategy = trainer.state, trainer.state.strategy
    *_, module = state.modules.values()
    forward_backward = strategy.forward_backward

    def spoiled(*given: Any) -> Any:
        losses = forward_backward(*given)
        if strategy.rank == strategy.world_size - 1:
            local_tensor(next(p.grad for p in module.parameters() if p.grad is not None)).fill_(float("inf"))
        return losses

    strategy.forward_backward = spoiled
    before = {key: tensor.clone() for key, tensor in weights(state).items()}
    take_step(state, microbatches(trainer), 16.0, 1e-3)
    return {
        "unchanged": all(torch.equal(before[key], tensor) for key, tensor in weights(state).items()),
        "scales": strategy.all_gather_object(strategy.scaler.get_scale()),
    }


def microbatches(trainer: Trainer) -> list[tuple[MicroBatch, dict[str, torch.Tensor]]]:
    """Of the first 16 examples, those of this rank."""
    strategy, number = trainer.state.strategy, trainer.train.accumulate
    ids = range(strategy.data_parallel_rank, 16, strategy.data_parallel_size)
    pieces = [MicroBatch(tuple(ids[first::number])) for first in range(number)]
    return [(piece, trainer.data.train.batch(piece.ids)) for piece in pieces]


def weights(state: TrainState) -> dict[tuple[str, str], torch.Tensor]:
    return {(name, key): tensor for name, module in state.modules.items() for key, tensor in state.strategy.weights(module).items()}


def measured(job: Job) -> list[dict[str, int]]:
    """The bytes that each process holds when gradients exist, and the bytes of the optimizer state after a step."""
    trainer = job.start()
    state, strategy = trainer.state, trainer.state.strategy
    ((name, module),) = state.modules.items()
    update, held = strategy.update, {}

    def measuring(*given: Any, **named: Any) -> torch.Tensor:
        parameters = list(module.parameters())
        gathered = [p._full_param_padded for p in parameters if hasattr(p, "_full_param_padded")]  # fairscale's, freed or not
        held["parameters"] = storage_bytes([*parameters, *gathered])
        held["gradients"] = storage_bytes([p.grad for p in parameters if p.grad is not None])
        return update(*given, **named)

    strategy.update = measuring
    take_step(state, microbatches(trainer), 16.0, 1e-3)
    optimizer = getattr(state.optimizers[name], "optim", state.optimizers[name])
    values = [value for entries in optimizer.state.values() for value in entries.values() if isinstance(value, torch.Tensor)]
    held["optimizer"] = storage_bytes(values)
    all_gather_object: list[Any] = [held]
    if strategy.world_size > 1:
        all_gather_object = [None] * strategy.world_size
        dist.all_gather_object(all_gather_object, held)
    return all_gather_object


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    storages = [local_tensor(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}.values())


KINDS = {"trained": trained, "overflowed": overflowed, "measured": measured}


def main(jobs: Path, results: Path) -> None:
    asked = json.loads(jobs.read_text())
    on_gpus = any(job.get("device") == "cuda" for *_, job in asked)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    torch.set_num_threads(1)
    if not on_gpus:
        fairscale_on_cpu.install()
    found = {}
    for name, kind, job in asked:
        if dist.get_rank() == 0 or load(job["strategy"], "strategies").multi_process:
            found[name] = KINDS[kind](Job(**job))
        dist.barrier()
    if dist.get_rank() == 0:
        results.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
