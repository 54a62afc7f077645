"""Adapters: what a configuration may not combine with them, weights that cannot be adapted, and saved weights of several files."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from snaketrain.config.runs import read
from snaketrain.config.schema import Model, Select, Train
from snaketrain.models.adapters import add_adapters
from snaketrain.models.weights import load_weights, read_weights, save_weights
from snaketrain.orchestration.strategy_declarations import strategy_errors
from snaketrain.training.building import build
from snaketrain.training.optimizers import check_groups

DATA = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}
ADAPTED = {"use": "transformers.BertForSequenceClassification", "source": {"path": "weights"}, "adapters": {"target_modules": ["query"]}}
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 12}
REFUSED = [
    ({"model": {**ADAPTED, "source": None}}, "model: `adapters` need pretrained weights"),
    ({"model": {**ADAPTED, "initial_weights": {"source": {"path": "weights"}}}}, "model: `adapters` and `initial_weights` exclude each other"),
    ({"train": {"freeze": ["bert.*"]}}, "model.adapters freezes all weights but the adapters"),
    ({"select": {"average": 2}}, "select.average (2) would average adapters"),
    ({"model": {**ADAPTED, "adapters": {"rank": 3}}}, "model.adapters.rank: no such setting"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_adapters_exclude_is_refused(changes, message):
    (problem,) = read({"data": DATA, "model": ADAPTED} | changes).problems
    assert problem.startswith(message)


@pytest.mark.parametrize("strategy", ["zero1", "data_parallel", "hsdp", "tensor_parallel", "fairscale_oss", "fairscale_fsdp"])
def test_other_strategies_are_refused_with_one_line(strategy):
    run = read({"data": DATA, "model": ADAPTED, "train": {"strategy": {"use": strategy}}}).runs["default"].settings
    assert f"model.adapters: was not tested with train.strategy `{strategy}`: use `single`, `ddp` or `fsdp`." in strategy_errors(run)


def test_norms_of_sharded_matrices_are_refused():
    model = ADAPTED | {"adapters": {"use_dora": True}}
    run = read({"data": DATA, "model": model, "train": {"strategy": {"use": "fsdp"}}}).runs["default"].settings
    assert "model.adapters.use_dora: was not tested with train.strategy `fsdp`: use `single` or `ddp`." in strategy_errors(run)


def test_defaults_of_new_settings_make_no_result_stale():
    assert "adapters" not in Model().as_json and "average" not in Select().as_json
    assert Model(**ADAPTED).as_json["adapters"]["target_modules"] == ["query"] and Select(average=2).as_json["average"] == 2


def adapted(module: nn.Module, **adapters: object) -> nn.Module:
    add_adapters(module, Model(**{**ADAPTED, "adapters": adapters}).adapters.model_dump(), [])
    return module


@pytest.mark.parametrize(
    "adapters", [{"target_modules": ["query", "valeu"]}, {"target_modules": ["key", "outer.query"]}, {"modules_to_save": ["pooling"]}]
)
def test_names_that_match_no_module_are_refused(adapters):
    ((setting, names),) = adapters.items()
    with pytest.raises(SystemExit, match=f"model.adapters.{setting}: the model has no module .{names[-1]}."):
        adapted(BertForSequenceClassification(BertConfig(**SIZE)), **({"target_modules": ["query"]} | adapters))


def test_tied_weights_are_neither_adapted_nor_trained():
    def tied() -> nn.Module:
        return LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=True))

    for adapters in ({"target_modules": ["embed_tokens"]}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}):
        with pytest.raises(SystemExit, match="shares its weights with"):
            adapted(tied(), **adapters)
    assert any(".lora_A." in name for name, _ in adapted(tied(), target_modules=["q_proj"]).named_parameters())


def test_a_group_of_frozen_parameters_is_refused():
    modules = {"model": adapted(BertForSequenceClassification(BertConfig(**SIZE)), target_modules=["query"])}
    check_groups(modules, Train(groups=[{"match": "*.lora_B.*", "rate_scale": 16}]).groups)
    with pytest.raises(SystemExit, match=r"train.groups: only frozen parameters match `bert.embeddings.\*`"):
        check_groups(modules, Train(groups=[{"match": "bert.embeddings.*"}]).groups)


def test_a_task_that_leaves_the_adapters_out_is_refused():
    class Own:
        wraps = True

        def build(self, *_: object) -> dict[str, nn.Module]:
            return {"model": nn.Linear(2, 2)}

    with pytest.raises(SystemExit, match="does not build one module with adapters"):
        build(Own(), Train(), Model(**ADAPTED), None, {}, trains=True)


def test_weights_of_several_files_are_read_back(tmp_path):
    torch.manual_seed(0)
    saved, loaded = (LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=True)) for _ in range(2))
    save_weights(saved, tmp_path, "model", most_bytes=2000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3 and (tmp_path / "model.safetensors.index.json").is_file()
    load_weights(loaded, tmp_path, "model")
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in saved.state_dict().items())
    assert "lm_head.weight" not in read_weights(tmp_path, "model") or "model.embed_tokens.weight" not in read_weights(tmp_path, "model")
