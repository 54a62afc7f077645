"""Models on the meta device, whose parameters other ranks send, and allocating them."""

import pytest
import torch
from torch import nn
from transformers import BartConfig, BartForSequenceClassification, LlamaConfig, LlamaForCausalLM

from snaketrain.models.pretrained import make_model
from snaketrain.models.weights import give_memory, has_memory, without_memory

CPU = torch.device("cpu")
LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 20,
    "tie_word_embeddings": True,
}
BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 20}
MODELS = {"llama": LlamaForCausalLM(LlamaConfig(**LLAMA)), "bart": BartForSequenceClassification(BartConfig(**BART))}


@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_meta_device_is_otherwise_equal_to_the_real_one(tmp_path, name, pretrained):
    real = MODELS[name]
    real.save_pretrained(tmp_path)
    section = {"use": f"transformers.{type(real).__name__}", "arguments": {} if pretrained else {"llama": LLAMA, "bart": BART}[name]}
    with without_memory():
        model = make_model(section, tmp_path if pretrained else None, {}, {})
    shapes = {key: parameter.shape for key, parameter in real.named_parameters()}  # tied ones once
    assert not has_memory(model) and all(parameter.is_meta for parameter in model.parameters())
    assert {key: parameter.shape for key, parameter in model.named_parameters()} == shapes
    give_memory(model, CPU, CPU)
    assert has_memory(model) and {key: parameter.shape for key, parameter in model.named_parameters()} == shapes
    assert all(torch.equal(mine, other) for mine, other in zip(model.buffers(), real.buffers(), strict=True))


def test_frozen_and_tied_parameters_stay_so():
    with without_memory():
        model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        model[1].weight = model[0].weight
        model[0].bias.requires_grad_(False)
    give_memory(model, CPU, CPU)
    assert model[0].weight is model[1].weight
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False, True]


def test_models_built_afterwards_are_ordinary():
    with pytest.raises(ZeroDivisionError), without_memory():
        1 / 0  # noqa: B018
    assert has_memory(nn.Linear(2, 2))


@pytest.mark.parametrize("pretrained", [False, True])
def test_an_unknown_configuration_field_is_refused(tmp_path, pretrained):
    MODELS["llama"].save_pretrained(tmp_path)
    section = {"use": "transformers.LlamaForCausalLM", "arguments": (LLAMA if not pretrained else {}) | {"hiden_size": 8}}
    with pytest.raises(SystemExit, match=r"model.arguments.hiden_size: LlamaConfig has no such field. Did you mean 'hidden_size'\?"):
        make_model(section, tmp_path if pretrained else None, {}, {})
