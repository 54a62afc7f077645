"""The shape of a mesh of ranks, and models that one of its dimensions cannot divide."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from snaketrain.checking.trying import fake_world
from snaketrain.config.sizes import InvalidShape, MeshShape, mesh_shape
from snaketrain.strategies import make_strategy

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
