"""Losses of encoder-decoder models against those of transformers, and the messages for models that cannot generate."""

import pytest
import torch
from torch.nn.functional import pad

from snaketrain.data.loading.examples import NO_TARGET
from snaketrain.tasks.seq2seq import Seq2seq

FACTS = {"vocab_size": 40, "pad_token_id": 0, "end_token_id": 3}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
BART = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in {"layers": 1, "attention_heads": 2, "ffn_dim": 48}.items()}
BART |= {"d_model": 32, "dropout": 0.0, "max_position_embeddings": 20}
MODELS = {"T5ForConditionalGeneration": T5, "BartForConditionalGeneration": BART}


def build(name: str, **changes):
    torch.manual_seed(0)
    task = Seq2seq()
    return task, task.build({"use": f"transformers.{name}", "arguments": MODELS.get(name, {}) | changes}, None, FACTS)


def rows(lengths: list[int], fill: int) -> torch.Tensor:
    torch.manual_seed(1)
    made = [torch.cat([torch.randint(4, 40, (length - 1,)), torch.tensor([3])]) for length in lengths]
    return torch.stack([pad(row, (0, max(lengths) - len(row)), value=fill) for row in made])


@pytest.fixture
def batch():
    sources = rows([9, 4, 6], fill=0)
    return {
        "input_ids": sources,
        "attention_mask": (sources != 0).long(),
        "target_ids": rows([3, 7, 5], fill=NO_TARGET),
        "labels": torch.zeros(3),
    }


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_that_of_transformers(name, batch):
    task, modules = build(name)
    model = modules["model"].eval()
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = model(**given, labels=batch["target_ids"]).loss.item()
    assert task.count(batch) == 3 + 7 + 5
    assert task.training_step(modules, batch).item() == pytest.approx(15 * expected, rel=1e-5)
    with torch.no_grad():
        outputs = task.outputs(modules, batch)
        assert task.measure(task.evaluation_step(outputs, batch))["loss"] == pytest.approx(expected, rel=1e-5)
        columns = task.predict(outputs, batch)
    assert columns["tokens"].tolist() == [3, 7, 5]
    assert (columns["loss"] * columns["tokens"]).sum().item() == pytest.approx(15 * expected, rel=1e-5)


def test_texts_longer_than_the_model_can_take(batch):
    task, _ = build("BartForConditionalGeneration", max_position_embeddings=8)
    with pytest.raises(SystemExit, match="has 8 positions, but 9 are needed: cut texts by data.max_length"):
        task.count(batch)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("LlamaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}, "has no decoder that writes a target"),
        ("T5ForConditionalGeneration", {"vocab_size": 30}, "data.tokenizer: has 40 tokens, but the model 30"),
    ],
)
def test_models_that_are_refused(name, changes, message):
    with pytest.raises(SystemExit, match=message):
        build(name, **changes)


def test_data_without_targets_is_refused():
    task, _ = build("T5ForConditionalGeneration")
    with pytest.raises(SystemExit, match="data.target: is missing"):
        task.count({"input_ids": torch.zeros(1, 2)})
