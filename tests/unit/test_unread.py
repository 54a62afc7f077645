"""Pretrained weights that stay in their files: once read, the model is what `from_pretrained` makes."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

from snaketrain.config.schema import Model, Train
from snaketrain.models import pretrained
from snaketrain.models.pretrained import make_model
from snaketrain.models.weights import (
    NeedsWholeModel,
    give_memory,
    has_memory,
    leave_trained_unread,
    save_weights,
    unread_weights,
    without_memory,
)
from snaketrain.strategies.fsdp import destinations, read_slices
from snaketrain.tasks.text_classification import TextClassification
from snaketrain.training.building import build, by_slices

CPU = torch.device("cpu")
SIZE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20}
LLAMA = SIZE | {"num_key_value_heads": 2}
BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 20}
RESNET = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"}
EXPERTS = LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1}
PUBLISHED = {
    "an encoder without a head": (lambda: BertModel(BertConfig(**SIZE)), "BertForSequenceClassification", {"num_labels": 3}),
    "tied embeddings": (lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=True)), "LlamaForCausalLM", {}),
    "an Auto class": (lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)), "AutoModelForCausalLM", {}),
    "embeddings tied three times, a new head": (
        lambda: BartForSequenceClassification(BartConfig(**BART, num_labels=2)),
        "BartForSequenceClassification",
        {"num_labels": 5, "ignore_mismatched_sizes": True},
    ),
    "transposed matrices": (lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)), "GPT2LMHeadModel", {}),
    "buffers that are saved": (lambda: ResNetForImageClassification(ResNetConfig(**RESNET)), "ResNetForImageClassification", {}),
    "experts one by one": (lambda: MixtralForCausalLM(MixtralConfig(**EXPERTS)), "MixtralForCausalLM", {}),
    "half precision": (lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)).to(torch.bfloat16), "LlamaForCausalLM", {}),
}


def published(folder, name):
    make, use, arguments = PUBLISHED[name]
    torch.manual_seed(1)
    model = make()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.add_(1)  # statistics of a training
    model.save_pretrained(folder, max_shard_size="8KB")  # several files
    return {"use": f"transformers.{use}", "arguments": arguments}


def seeded(section, folder):
    torch.manual_seed(7)
    return make_model(section, folder, {}, {})


def check_equal(found, expected):
    given = [[*model.named_parameters(remove_duplicate=False), *model.named_buffers()] for model in (found, expected)]
    for (name, mine), (other, theirs) in zip(*given, strict=True):
        assert name == other and mine.dtype == theirs.dtype and torch.equal(mine, theirs), name
        assert mine.requires_grad == theirs.requires_grad and mine.device == theirs.device


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_whose_weights_are_read_later_is_the_same(tmp_path, name):
    section = published(tmp_path, name)
    expected = seeded(section, tmp_path)
    drawn = torch.rand(1)
    found = seeded(section | {"unread": True}, tmp_path)
    assert torch.rand(1) == drawn  # random numbers drawn afterwards, such as dropout
    assert all(parameter.is_meta for parameter in found.parameters()) and type(found) is type(expected)
    give_memory(found, CPU, CPU)
    read_slices(found, unread_weights(found))
    check_equal(found, expected)
    assert unread_weights(found) is None and found.training == expected.training


def test_adapters_beside_weights_that_are_read_later_are_the_same(tmp_path):
    section = published(tmp_path, "an encoder without a head")
    section |= {
        "adapters": {"r": 4, "lora_alpha": 8, "use_rslora": False, "lora_dropout": 0.0, "target_modules": ["query"], "modules_to_save": []}
    }
    expected, found = seeded(section, tmp_path), seeded(section | {"unread": True}, tmp_path)
    assert sorted(unread_weights(found).initialized) == sorted(name for name, each in expected.named_parameters() if each.requires_grad)
    give_memory(found, CPU, CPU)
    read_slices(found, unread_weights(found))
    check_equal(found, expected)


def test_weights_in_another_form_need_the_whole_model(tmp_path, monkeypatch):
    section = published(tmp_path, "experts one by one")
    monkeypatch.setattr(pretrained, "stacks", lambda _: False)  # as if transformers converted them in another way
    with pytest.raises(NeedsWholeModel, match="experts.* is stored in another form than the model has it"):
        make_model(section | {"unread": True}, tmp_path, {}, {})


def test_each_rank_reads_its_own_experts():
    experts = torch.zeros(2, 6, 4)
    found = dict(destinations(experts, [["a.gate", "a.up"], ["b.gate", "b.up"]]))
    for number, part in enumerate(found.values()):
        part.fill_(number)
    assert list(found) == ["a.gate", "a.up", "b.gate", "b.up"]
    assert experts[..., 0].tolist() == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3]]


@pytest.mark.parametrize(
    ("arguments", "reason"), [({"device_map": "cpu"}, "model.arguments.device_map is set"), ({"use_safetensors": True}, "use_safetensors")]
)
def test_other_ways_to_load_need_the_whole_model(tmp_path, arguments, reason):
    section = published(tmp_path, "tied embeddings")
    with pytest.raises(NeedsWholeModel, match=reason):
        make_model(section | {"arguments": arguments, "unread": True}, tmp_path, {}, {})


def test_pickled_and_quantized_weights_need_the_whole_model(tmp_path):
    section = published(tmp_path, "an Auto class")
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(NeedsWholeModel, match="they are quantized"):
        make_model(section | {"unread": True}, tmp_path, {}, {})
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    with pytest.raises(NeedsWholeModel, match="they are not in safetensors files"):
        make_model(section | {"unread": True}, tmp_path, {}, {})


def test_a_tied_weight_that_is_stored_twice_needs_the_whole_model(tmp_path):
    """transformers ties the two only if they are equal."""
    section = published(tmp_path / "one", "tied embeddings")
    seeded(section, tmp_path / "one").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(NeedsWholeModel, match="lm_head.weight is tied, and is stored twice"):
        make_model(section | {"unread": True}, tmp_path, {}, {})


def test_a_model_that_needs_its_weights_is_built_as_a_whole(tmp_path, caplog):
    section = published(tmp_path, "an encoder without a head") | {"arguments": {"use_safetensors": True}}
    facts, model = {"label_kind": "class", "label_names": ["a", "b"], "vocab_size": 20, "pad_token_id": 0}, Model(**section)
    caplog.set_level("INFO")
    (whole,) = build(TextClassification(), Train(), model, tmp_path, facts, slices=True).values()
    assert has_memory(whole) and "the pretrained weights are not read by slices: model.arguments.use_safetensors is set" in caplog.text
    (expected,) = build(TextClassification(), Train(), model, tmp_path, facts).values()
    check_equal(whole, expected)


def test_a_task_that_might_change_the_weights_gets_the_whole_model():
    class Changed(TextClassification):
        def build(self, model, folder, data):
            return super().build(model, folder, data)

    class Unchanged(TextClassification):
        pass

    sharding, whole = SimpleNamespace(reads_slices=True), SimpleNamespace(reads_slices=False)
    assert by_slices(TextClassification(), sharding) and by_slices(Unchanged(), sharding)
    assert not by_slices(Changed(), sharding) and not by_slices(TextClassification(), whole)


@pytest.mark.parametrize("most_bytes", [10**6, 10**4])
def test_a_selected_model_whose_weights_are_read_later(tmp_path, most_bytes):
    selected = BartForSequenceClassification(BartConfig(**BART))
    save_weights(selected, tmp_path, "model", most_bytes)
    with without_memory():
        found = BartForSequenceClassification(BartConfig(**BART))
    leave_trained_unread(found, tmp_path, "model")
    give_memory(found, CPU, CPU)
    read_slices(found, unread_weights(found))
    check_equal(found, selected.train())


def test_a_selected_model_of_another_shape_is_refused(tmp_path):
    save_weights(LlamaForCausalLM(LlamaConfig(**LLAMA)), tmp_path, "model")
    with without_memory():
        other = LlamaForCausalLM(LlamaConfig(**LLAMA | {"vocab_size": 21}))
    with pytest.raises(SystemExit, match=r"other tensors than the model has: lm_head.weight, model.embed_tokens.weight. Select"):
        leave_trained_unread(other, tmp_path, "model")
