"""The shape of a mesh of ranks, the experts that it spreads, and what one of its dimensions cannot divide."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

from snaketrain.checking.trying import fake_world
from snaketrain.config.sizes import InvalidShape, MeshShape, mesh_shape, option_errors
from snaketrain.strategies import make_strategy
from snaketrain.strategies.splitting import ExpertDimension, experts_of

LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 24,
}


@pytest.mark.parametrize(
    ("given", "processes", "shape"),
    [
        ({}, 8, {"shard": 8}),
        ({"tensor": 2}, 8, {"shard": 4, "tensor": 2}),
        ({"replicate": -1, "shard": 4}, 8, {"replicate": 2, "shard": 4}),
        ({"replicate": -1}, 8, {"replicate": 8}),
        ({"context": -1, "tensor": 4}, 8, {"context": 2, "tensor": 4}),
        ({"tensor": 8, "shard": None}, 8, {"tensor": 8}),
        ({"tensor": -1}, 1, {}),
        ({"pipeline": 2, "expert": 2, "shard": 2}, 8, {"pipeline": 2, "expert": 2, "shard": 2}),
    ],
)
def test_one_dimension_takes_the_processes_that_the_others_leave(given, processes, shape):
    assert mesh_shape(given, processes) == MeshShape(**shape)


@pytest.mark.parametrize(
    ("given", "processes", "message"),
    [
        (
            {"tensor": 2, "context": 3},
            8,
            r"tensor \(2\) times train.strategy.arguments.context \(3\) does not divide compute.processes \(8\)",
        ),
        ({"replicate": 2, "shard": 2}, 8, r"replicate \(2\) times train.strategy.arguments.shard \(2\) leaves processes over"),
        ({"shard": 1}, 2, r"shard \(1\) leaves processes over"),
        ({"tensor": -2}, 2, "tensor is -2: give a number of processes, or -1"),
        ({"tensor": True}, 2, "tensor is True: give a number"),
    ],
)
def test_degrees_that_do_not_fit_are_named(given, processes, message):
    with pytest.raises(InvalidShape, match=message):
        mesh_shape(given, processes)


def test_ranks_of_one_model_work_on_the_same_examples():
    shape = MeshShape(pipeline=2, shard=2, tensor=2)
    assert [shape.data_parallel_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_parts_of_a_sequence_have_different_dropout():
    shape = MeshShape(shard=2, context=2, tensor=2)
    assert [shape.random_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [MeshShape(pipeline=2, tensor=2).random_rank(rank) for rank in range(4)] == [0, 0, 0, 0]


@pytest.fixture
def two_ranks() -> Iterator[None]:
    with fake_world(2):
        yield


def llama(**fields: object) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**LLAMA | fields))


def bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(d_model=32, encoder_layers=2, decoder_layers=2, vocab_size=24))


def gemma() -> nn.Module:
    """Its attention caps scores, which PyTorch's function does not."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(**LLAMA, head_dim=8))


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(
    ("arguments", "make", "message"),
    [
        ({"context": 2}, gemma, "the attention of Gemma2ForCausalLM cannot be computed by PyTorch's scaled_dot_product_attention"),
        ({"context": 2}, lambda: nn.Sequential(nn.Linear(2, 2)), r"arguments.context: needs a transformers model of one list of blocks, which Sequ"),
        ({"context": 2}, bart, r"arguments.context: needs a transformers model of one list of blocks, which BartFor"),
        ({"context": 2, "context_attention": "ulysses"}, lambda: llama(num_attention_heads=1, num_key_value_heads=1), "does not divide the 1 heads"),
        ({"tensor": 2, "loss_parallel": True}, lambda: llama(tie_word_embeddings=True), "loss_parallel: the plan does not split `lm_head`"),
        ({"context": 2, "loss_parallel": True}, lambda: llama().model, "loss_parallel: LlamaModel does not predict tokens"),
        (
            {"tensor": 2, "sequence_parallel": True, "plan": {"*.self_attn.q_proj": "colwise", "*.o_proj": "rowwise"}},
            llama,
            r"sequence_parallel: the plan does not say how `model.layers.0.self_attn.k_proj` is split",
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_divided_is_refused(arguments, make, message):
    strategy = make_strategy("mesh", arguments, device="cpu", precision="fp32")
    strategy.start()
    with pytest.raises(SystemExit, match=message):
        strategy.place(make())


@pytest.mark.usefixtures("two_ranks")
def test_sequences_are_cut_also_where_a_model_keeps_keys_and_values_by_default():
    """Otherwise each rank would compute the whole sequence; a task that asks for that is refused."""
    strategy = make_strategy("mesh", {"context": 2}, device="cpu", precision="fp32")
    strategy.start()
    model, (sequence,) = strategy.place(llama()), strategy.dimensions
    model(torch.ones(1, 4, dtype=torch.long))
    assert sequence.whole is not None and sequence.whole.length == 4
    with pytest.raises(SystemExit, match=r"arguments.context: train.task keeps keys and values while it trains"):
        model(torch.ones(1, 4, dtype=torch.long), use_cache=True)


def test_experts_are_found_by_the_plan_of_transformers():
    mixtral = MixtralForCausalLM(MixtralConfig(**LLAMA, num_local_experts=2))
    qwen = Qwen2MoeForCausalLM(Qwen2MoeConfig(**LLAMA, num_experts=2, moe_intermediate_size=8, shared_expert_intermediate_size=8))
    for model in (mixtral, qwen):
        assert list(experts_of(model)) == ["layers.0.mlp.experts", "layers.1.mlp.experts"]


def test_models_without_experts_are_refused():
    with pytest.raises(SystemExit, match="LlamaForCausalLM has no plan for experts"):
        experts_of(llama())


def test_ranks_must_divide_the_experts():
    model = MixtralForCausalLM(MixtralConfig(**LLAMA, num_local_experts=4))
    with pytest.raises(SystemExit, match="3 does not divide the 4 experts of `layers.0.mlp.experts`"):
        ExpertDimension(SimpleNamespace(size=lambda: 3)).apply(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expert": 2, "tensor": 2}, "train.strategy.arguments.tensor: does not work with train.strategy.arguments.expert"),
        ({"pipeline": 2, "context": 2}, "train.strategy.arguments.context: does not work with train.strategy.arguments.pipeline"),
        ({"pipeline": 2, "build_once": True}, "train.strategy.arguments.build_once: does not work with"),
        ({"schedule": "zbv"}, "train.strategy.arguments.schedule: has no effect without train.strategy.arguments.pipeline"),
        ({"tensor": None, "sequence_parallel": True}, "train.strategy.arguments.sequence_parallel: has no effect without"),
        ({"pipeline": 2, "schedule": "gpipe"}, "train.strategy.arguments.schedule: is 'gpipe', which is not one of 1f1b, interleaved, zbv"),
    ],
)
def test_dimensions_that_do_not_go_together_are_refused_before_any_job(arguments, message):
    (problem,) = option_errors(arguments)
    assert problem.startswith(message)


@pytest.mark.parametrize(
    "arguments",
    [
        {"pipeline": 2, "expert": 2, "shard": 2, "schedule": "zbv", "build_once": False},
        {"pipeline": None, "context": 2, "expert": None, "tensor": 2},  # a degree of null is that of a dimension which is left out
    ],
)
def test_dimensions_that_go_together_are_accepted(arguments):
    assert not list(option_errors(arguments))
