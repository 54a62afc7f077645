"""How a model is cut into the stages of a pipeline, and what is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.llama.modeling_llama import LlamaModel

from snaketrain.config.schema import Settings
from snaketrain.orchestration.strategy_declarations import strategy_errors
from snaketrain.strategies.losses import Objective
from snaketrain.strategies.pipeline import answer, cut, owners, record, share_layers

SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8}
IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def llama(**settings: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL | settings))


def through(stages: list) -> Tensor:
    """The stages, run one after the other on the same ids."""
    passed = torch.empty(0)
    for stage in stages:
        stage.compute, stage.length = (lambda model, _: model(IDS, use_cache=False).logits), IDS.numel()
        passed = stage(passed, torch.zeros(1, dtype=torch.long))
    return passed


@pytest.mark.parametrize("count", [1, 2, 3])
def test_stages_compute_what_the_model_does_under_its_names(count):
    model, whole = llama(), llama()
    stages = cut(model, count, list(range(count)), torch.float32)
    assert model.state_dict().keys() == whole.state_dict().keys()
    assert torch.equal(through(stages), whole(IDS).logits)


def test_a_mixture_of_experts_is_cut():
    settings = SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "num_key_value_heads": 2}
    model, whole = (Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings)) for _ in range(2))
    model.load_state_dict(whole.state_dict())
    assert torch.allclose(through(cut(model, 2, [0, 1], torch.float32)), whole(IDS).logits, atol=1e-6)


def test_what_other_stages_hold_is_removed():
    names = []
    for number in range(3):
        model = llama()
        cut(model, 3, [number], torch.float32)
        names.append(list(model.state_dict()))
    assert sorted(name for part in names for name in part) == sorted(llama().state_dict())
    assert "model.embed_tokens.weight" in names[0] and all(name.startswith("model.layers.1.") for name in names[1])
    assert {"model.norm.weight", "lm_head.weight"} < set(names[2])


def test_layers_are_shared_out():
    assert share_layers(4, 2) == [range(2), range(2, 4)]
    assert [len(part) for part in share_layers(7, 3)] == [2, 3, 2]  # the first also has the embedding, the last the head
    assert owners("interleaved", 2) == [0, 1, 0, 1] and owners("zbv", 2) == [0, 1, 1, 0]


class Scaled(LlamaModel):
    """Does something between the embedding and the layers."""

    def forward(self, input_ids: Tensor, **more: object) -> object:
        return super().forward(inputs_embeds=2 * self.embed_tokens(input_ids), **more)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: llama(tie_word_embeddings=True), "are tied"),
        (lambda: BertForSequenceClassification(BertConfig(**SMALL)), "has no plan for a pipeline"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), "has no plan for a pipeline"),
        (lambda: Scaled(LlamaConfig(**SMALL)), "something happens between embedding, layers and norm"),
        (lambda: llama(num_hidden_layers=1), "2 stages are more than the 1 layers of the model"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(make, message):
    with pytest.raises(SystemExit, match=message):
        cut(make(), 2, [0], torch.float32)


def objective(loss: Callable[..., Tensor]) -> Objective:
    return Objective(loss, {"model": llama()}, ["model"])


def test_a_call_is_recorded_and_answered():
    def loss(modules: dict[str, nn.Module], batch: dict[str, Tensor]) -> Tensor:
        return modules["model"](batch["ids"], use_cache=modules["model"].config.use_cache).sum()

    call = record(objective(loss), {"ids": IDS})
    assert call.tokens == 6 and call.named == {"use_cache": True} and call.arguments[0] is IDS
    assert answer(objective(loss), {"ids": IDS}, torch.ones(3)) == 3


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda modules, batch: torch.zeros(()), "without calling its model"),
        (lambda modules, batch: modules["model"].lm_head(torch.zeros(8)).sum(), "uses `lm_head` of its model"),
    ],
)
def test_tasks_that_do_not_call_their_model_are_refused(loss, message):
    with pytest.raises(SystemExit, match=message):
        record(objective(loss), {"ids": IDS})


def test_a_task_that_calls_its_model_twice_is_refused():
    with pytest.raises(SystemExit, match="more than once"):
        answer(objective(lambda modules, batch: modules["model"](IDS) + modules["model"](IDS)), {}, torch.ones(3))


@pytest.mark.parametrize(
    ("pipeline", "schedule", "accumulate", "doubles", "message"),
    [
        (2, "1f1b", 1, False, "train.accumulate (1) is less than the stages of a pipeline"),
        (2, "1f1b", 2, False, None),
        (2, "1f1b", 5, False, None),
        (2, "interleaved", 5, False, "train.accumulate (5) cannot be divided into 2 equal rounds"),
        (2, "interleaved", 3, False, None),
        (2, "interleaved", 6, False, None),
        (2, "zbv", 5, False, None),
        (4, "interleaved", 7, True, "compute.reduce_batch_on_oom: doubles train.accumulate (7)"),  # 14 cannot be divided into 3 rounds
        (4, "interleaved", 8, True, None),
        (4, "1f1b", 7, True, None),
    ],
)
def test_microbatches_that_a_schedule_cannot_run_are_refused_before_any_job(pipeline, schedule, accumulate, doubles, message):
    strategy = {"use": "mesh", "arguments": {"pipeline": pipeline, "schedule": schedule}}
    data, compute = {"train": {"path": "a"}, "tokenizer": {"path": "b"}}, {"processes": 4, "reduce_batch_on_oom": doubles}
    run = {"data": data, "compute": compute, "train": {"strategy": strategy, "accumulate": accumulate}}
    found = list(strategy_errors(Settings.model_validate(run)))
    assert [error.startswith(message or "") for error in found] == [True] * bool(message)
