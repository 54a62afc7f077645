"""Adapters: what a configuration may not combine with them, weights that cannot be adapted, and saved weights of several files."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from snaketrain.config.runs import read
from snaketrain.config.schema import Model, Select, Train
from snaketrain.models.adapters import add_adapters
from snaketrain.models.quantized import QuantizedLinear, quantizable, round_layers
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
    ({"model": {**ADAPTED, "adapters": {"quantize": "int4"}}}, 'model.adapters.quantize: "int4" is not one of'),
    ({"model": {**ADAPTED, "adapters": {"quantize": "nf4", "use_dora": True}}}, "model.adapters: `use_dora` needs"),
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


@pytest.mark.parametrize(("setting", "value"), [("use_dora", True), ("quantize", "nf4")])
def test_what_was_not_tried_with_sharded_matrices_is_refused(setting, value):
    model = ADAPTED | {"adapters": {setting: value}}
    run = read({"data": DATA, "model": model, "train": {"strategy": {"use": "fsdp"}}}).runs["default"].settings
    assert f"model.adapters.{setting}: was not tested with train.strategy `fsdp`: use `single` or `ddp`." in strategy_errors(run)


@pytest.mark.parametrize("shape", [(3, 64), (7, 13)])
def test_a_layer_in_4_bits_computes_as_one_with_the_rounded_weights(shape):
    plain = nn.Linear(*shape[::-1])
    layer = QuantizedLinear(plain)
    assert layer.weight.dtype == torch.uint8 and layer.weight.numel() == -(-shape[0] * shape[1] // 64) * 32
    round_layers(inside := nn.Sequential(plain), ["0"])
    again = QuantizedLinear(plain)
    assert torch.equal(again.weight, layer.weight) and torch.equal(again.scales, layer.scales)  # what is rounded is rounded to itself
    inputs = torch.randn(2, 5, shape[1], requires_grad=True)
    for kind in (torch.float32, torch.bfloat16):
        gradients = []
        for module in (inside, layer):
            with torch.autocast("cpu", kind, enabled=kind != torch.float32):
                found = module(inputs)
            assert found.dtype == kind
            gradients += [found, *torch.autograd.grad(found.square().sum(), inputs)]
        for one, other in zip(gradients[:2], gradients[2:], strict=True):
            assert torch.allclose(
                one.float(), other.float(), rtol=1e-5 if kind == torch.float32 else 0.05, atol=0.05 * (kind != torch.float32) + 1e-6
            )


def test_what_is_trained_or_tied_and_output_layers_stay_in_full():
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2, vocab_size=12))
    found = quantizable(model, [model.model.layers[0].mlp])
    assert found == [f"model.layers.0.self_attn.{part}_proj" for part in "qkvo"]
    with torch.device("meta"):
        layer = QuantizedLinear(nn.Linear(30, 20))  # as the planner counts it
    assert layer.weight.is_meta and layer(torch.empty(2, 30, device="meta")).shape == (2, 20)
    with pytest.raises(SystemExit, match=r"model\.adapters\.quantize: the model has no linear layers"):
        quantizable(nn.Sequential(nn.Conv1d(2, 2, 1)), [])


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
