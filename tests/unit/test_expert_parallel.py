"""Which models' experts can be spread over ranks, and what is refused."""

from types import SimpleNamespace

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

from snaketrain.config.sizes import option_errors
from snaketrain.strategies.splitting import ExpertDimension, experts_of

SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


def test_experts_are_found_by_the_plan_of_transformers():
    mixtral = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=2, num_key_value_heads=2))
    qwen = Qwen2MoeForCausalLM(Qwen2MoeConfig(**SMALL, num_experts=2, moe_intermediate_size=8, shared_expert_intermediate_size=8))
    for model in (mixtral, qwen):
        assert list(experts_of(model)) == ["layers.0.mlp.experts", "layers.1.mlp.experts"]


def test_models_without_experts_are_refused():
    with pytest.raises(SystemExit, match="LlamaForCausalLM has no plan for experts"):
        experts_of(LlamaForCausalLM(LlamaConfig(**SMALL)))


def test_ranks_must_divide_the_experts():
    model = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4, num_key_value_heads=2))
    with pytest.raises(SystemExit, match="3 does not divide the 4 experts of `layers.0.mlp.experts`"):
        ExpertDimension(SimpleNamespace(size=lambda: 3)).apply(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expert": 2, "tensor": 2}, "train.strategy.arguments.tensor: does not work with train.strategy.arguments.expert"),
        ({"pipeline": 2, "context": 2}, "train.strategy.arguments.context: does not work with train.strategy.arguments.pipeline"),
        ({"pipeline": 2, "build_once": True}, "train.strategy.arguments.build_once: does not work with"),
        ({"schedule": "zbv"}, "train.strategy.arguments.schedule: has no effect without train.strategy.arguments.pipeline"),
        ({"pipeline": 2, "schedule": "gpipe"}, "train.strategy.arguments.schedule: is 'gpipe', which is not one of 1f1b, interleaved, zbv"),
    ],
)
def test_dimensions_that_do_not_go_together_are_refused_before_any_job(arguments, message):
    (problem,) = option_errors(arguments)
    assert problem.startswith(message)


def test_dimensions_that_go_together_are_accepted():
    assert not list(option_errors({"pipeline": 2, "expert": 2, "shard": 2, "schedule": "zbv", "build_once": False}))


def test_a_degree_of_null_is_that_of_a_dimension_which_is_left_out():
    assert not list(option_errors({"pipeline": None, "context": 2, "expert": None, "tensor": 2}))
    (problem,) = option_errors({"tensor": None, "sequence_parallel": True})
    assert problem.startswith("train.strategy.arguments.sequence_parallel: has no effect without")
