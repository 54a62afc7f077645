"""Which models can be trained as language models, and the messages for those that cannot."""

import pyarrow
import pytest
import torch
import transformers

from snaketrain.data.loading.examples import Blocks, Packed, TextExamples
from snaketrain.models.weights import give_memory, unread_weights
from snaketrain.strategies.fsdp import read_slices
from snaketrain.tasks.causal_lm import CausalLm

FACTS = {"vocab_size": 40, "end_token_id": 3}
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
MIXTURE = SIZE | {"num_key_value_heads": 2}
LLAMA = {"use": "transformers.LlamaForCausalLM", "arguments": SIZE}


@pytest.fixture
def examples(tmp_path) -> TextExamples:
    """A text of 30 tokens and one of 4."""
    texts = pyarrow.array([list(range(30)), [5, 6, 7, 8]], pyarrow.list_(pyarrow.int32()))
    table = pyarrow.table({"input_ids": texts, "label": [-100, -100]})
    with pyarrow.ipc.new_file(str(tmp_path / "texts.arrow"), table.schema) as file:
        file.write_table(table)
    return TextExamples(tmp_path / "texts.arrow", pad_token_id=0)


def test_every_embedding_of_a_random_model_learns():
    model = CausalLm().build(LLAMA, None, FACTS)["model"]
    assert model.get_input_embeddings().padding_idx is None
    assert (model.config.vocab_size, model.config.eos_token_id) == (40, 3)


def test_pretrained_weights_are_trained_in_full_precision(tmp_path):
    published = CausalLm().build(LLAMA, None, FACTS)["model"].to(torch.bfloat16)
    published.save_pretrained(tmp_path)
    task = CausalLm()
    model = task.build({"use": "transformers.AutoModelForCausalLM", "arguments": {}}, tmp_path, FACTS)["model"]
    assert type(model) is type(published)
    for name, weights in model.state_dict().items():
        assert weights.dtype == torch.float32 and torch.equal(weights, published.state_dict()[name].float())


def test_the_written_configuration_loads_with_the_trained_weights(tmp_path):
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    task = CausalLm()
    modules = task.build(LLAMA, None, FACTS)
    task.describe(modules, tmp_path)
    save_file(modules["model"].state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    tokens = torch.arange(9)[None]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, modules["model"].eval()(tokens).logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use": "transformers.BertLMHeadModel"}, "BertLMHeadModel attends to the tokens that it has to predict"),
        ({"use": "transformers.LlamaForSequenceClassification"}, "does not predict tokens. Name a class such as"),
        ({"use": "transformers.AutoModelForCausalLM"}, "cannot be initialised randomly"),
        ({"arguments": SIZE | {"vocab_size": 30}}, "data.tokenizer: has 40 tokens, but the model 30"),
        (
            {"use": "transformers.MixtralForCausalLM", "arguments": MIXTURE | {"output_router_logits": True}},
            "output_router_logits: has no effect",
        ),
        (
            {"use": "transformers.MixtralForCausalLM", "arguments": MIXTURE | {"router_aux_loss_coef": 0.1}},
            "router_aux_loss_coef: has no effect",
        ),
    ],
)
def test_models_that_are_refused(changes, message):
    with pytest.raises(SystemExit, match=message):
        CausalLm().build(LLAMA | changes, None, FACTS)


@pytest.mark.parametrize("use", ["LlamaForCausalLM", "GPT2LMHeadModel", "Qwen2ForCausalLM", "GPTNeoXForCausalLM"])
def test_common_models_are_causal_and_can_be_packed(examples, use):
    task = CausalLm()
    known = getattr(transformers, use).config_class()
    arguments = {name: value for name, value in (SIZE | {"num_key_value_heads": 2}).items() if hasattr(known, name)}
    task.build({"use": f"transformers.{use}", "arguments": arguments}, None, FACTS)
    assert task.count(Packed(examples).batch([0, 1])) == 29 + 3


def test_models_that_mix_the_texts_of_a_row_are_not_packed(examples):
    task = CausalLm()
    arguments = {"hidden_size": 32, "num_hidden_layers": 1, "n_head": 2, "pad_token_id": None}
    task.build({"use": "transformers.BloomForCausalLM", "arguments": arguments}, None, FACTS)
    assert task.count(examples.batch([0])) == 29
    with pytest.raises(SystemExit, match="train.packing: transformers.BloomForCausalLM lets texts of one row attend to each other"):
        task.count(Packed(examples).batch([0, 1]))


def test_models_whose_weights_are_read_later_are_probed_at_their_first_batch(tmp_path, examples):
    later, mixing = (
        unread(tmp_path / use, use, arguments)
        for use, arguments in {
            "BertLMHeadModel": SIZE,
            "BloomForCausalLM": {"hidden_size": 32, "num_hidden_layers": 1, "n_head": 2, "vocab_size": 40, "pad_token_id": None},
        }.items()
    )
    with pytest.raises(SystemExit, match="BertLMHeadModel attends to the tokens that it has to predict"):
        later[0].training_step(later[1], examples.batch([0, 1]))
    task, modules = mixing
    assert task.count(Packed(examples).batch([0, 1])) == 29 + 3  # comes before
    with pytest.raises(SystemExit, match="train.packing: transformers.BloomForCausalLM lets texts of one row attend to each other"):
        task.training_step(modules, Packed(examples).batch([0, 1]))


def unread(folder, use, arguments):
    model = getattr(transformers, use)
    model(model.config_class(**arguments)).save_pretrained(folder)
    task = CausalLm()
    modules = task.build({"use": f"transformers.{use}", "arguments": {}, "unread": True}, folder, FACTS)
    give_memory(modules["model"], torch.device("cpu"), torch.device("cpu"))
    read_slices(modules["model"], unread_weights(modules["model"]))
    return task, modules


@pytest.mark.parametrize("layout", [lambda data: data, Packed, lambda data: Blocks(data, 30)])
def test_texts_longer_than_the_model_can_take(examples, layout):
    task = CausalLm()
    task.build(LLAMA | {"arguments": SIZE | {"max_position_embeddings": 20}}, None, FACTS)
    with pytest.raises(SystemExit, match="LlamaForCausalLM has 20 positions, but (29|30) are needed"):
        task.count(layout(examples).batch([0]))
