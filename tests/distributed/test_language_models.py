"""Language models: in every layout the same losses on one process and several, and the same model from padded or packed texts."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
from distributed.running import losses, run_stage, train
from grammar import END, write_texts, write_word_tokenizer

from snaketrain.config.schema import Data, Model, Source
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import read_manifest
from snaketrain.runtime.stages import settings_words

LLAMA = Model(
    use="transformers.LlamaForCausalLM",
    arguments={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
)
TEXTS = 120
LAYOUTS = {
    "padded, by tokens": {"batch_tokens": 150},
    "packed": {"packing": True, "batch_size": 12},
    "packed, by tokens": {"packing": True, "batch_tokens": 150},
    "blocks": {"block_length": 20, "batch_size": 7},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Prepared by the stages themselves."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder / "texts.txt", TEXTS)
    write_word_tokenizer(folder / "tokenizer")
    data = Data(train={"path": "texts.txt"}, tokenizer={"path": "tokenizer"}, label=None, max_length=None, end_token=END)
    run(folder, "fetch_data", "raw", [], {"data": data.as_json})
    run(folder, "fetch_source", "model", [], {"source": data.tokenizer.as_json})
    run(folder, "prepare_data", "data", ["--raw", "raw/manifest.json", "--tokenizer", "model/manifest.json"], {"data": data.as_json})
    return folder / "data/manifest.json"


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory) -> Path:
    """The manifest of a fetched language model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(4)
    size = LLAMA.arguments | {"vocab_size": read_manifest(data).facts["vocab_size"], "tie_word_embeddings": True, "initializer_range": 0.2}
    LlamaForCausalLM(LlamaConfig(**size)).to(torch.bfloat16).save_pretrained(folder / "base")
    run(folder, "fetch_source", "model", [], {"source": Source(path="base").as_json})
    return folder / "model/manifest.json"


def run(folder: Path, stage: str, output: str, arguments: list[str], settings: dict, processes: int = 1) -> None:
    with contextlib.chdir(folder):
        run_stage(
            stage, ["--output", f"{output}/manifest.json", *arguments, *settings_words(folder, stage, settings)], folder / "log", processes
        )


def language(data: Path, folder: Path, processes: int = 1, **settings) -> dict[int, float]:
    return train(data, folder, processes, task="causal_lm", **{"model": LLAMA, **settings})


def evaluations(folder: Path) -> list[dict[str, float]]:
    return [line["metrics"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == "eval"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_equal_on_one_process_and_on_two_with_microbatches(data, tmp_path, layout):
    settings = LAYOUTS[layout]
    expected = language(data, tmp_path / "one", **settings)
    found = language(data, tmp_path / "two", 2, accumulate=2, **settings)
    assert len(expected) > 15 and min(expected.values()) < 0.97 * expected[1]
    assert found == pytest.approx(expected, rel=1e-5)
    for one, two in zip(*(evaluations(tmp_path / name) for name in ("one", "two")), strict=True):
        assert two == pytest.approx(one, rel=1e-5)


def test_packed_texts_train_the_same_model_as_padded_ones(data, tmp_path):
    """All texts in one batch, so that both see the same ones at each step."""
    together = {"batch_size": TEXTS, "steps": 20, "learning_rate": 1e-2, "evaluate_every": 10}
    padded, packed = (language(data, tmp_path / str(packing), packing=packing, **together) for packing in (False, True))
    assert packed == pytest.approx(padded, rel=1e-5)
    assert padded[20] < 0.9 * padded[1]
    for one, other in zip(*(evaluations(tmp_path / str(packing)) for packing in (False, True)), strict=True):
        assert other == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize(("strategy", "arguments"), [("fsdp", {"build_once": True}), ("mesh", {"pipeline": 2})])
def test_a_sharded_model_has_the_losses_of_a_whole_one(data, tmp_path, strategy, arguments):
    """When it is trained and when it is evaluated."""
    packed = {
        "packing": True,
        "batch_size": 12,
        "model": LLAMA.model_copy(update={"arguments": LLAMA.arguments | {"num_hidden_layers": 2}}),
    }
    expected = language(data, tmp_path / "one", **packed)
    strategy = {"use": strategy, "arguments": arguments}
    found = language(data, tmp_path / "training", 2, strategy=strategy, accumulate=2, **packed)
    assert found == pytest.approx(expected, rel=1e-5)
    trained = ["--training", "training/manifest.json", "--data", str(data)]
    run(tmp_path, "select_checkpoint", "selection", trained, {"select": {"metric": "perplexity"}})
    selection = json.loads((tmp_path / "selection/selection.json").read_text())
    assert selection["mode"] == "min" and selection["winner"]["value"] == min(
        metrics["perplexity"] for metrics in evaluations(tmp_path / "training")
    )
    options = [*trained, "--selection", "selection/manifest.json", "--run-name", "test", "--device", "cpu"]
    run(tmp_path, "evaluate_model", "evaluation", options, {"evaluate": {"batch_size": 7}}, processes=2)
    found = json.loads((tmp_path / "evaluation/dev_results.json").read_text())["metrics"]
    assert found == pytest.approx(selection["winner"]["metrics"], rel=1e-5)


def test_training_and_evaluation_never_hold_a_whole_model(data, pretrained, tmp_path):
    model = Model(use="transformers.AutoModelForCausalLM", source={"path": "base"})
    settings = {"model": model, "pretrained": pretrained, "task": "causal_lm", "packing": True, "batch_size": 12}
    expected = train(data, tmp_path / "one", **settings)
    found = train(data, tmp_path / "training", 2, strategy="fsdp", **settings)
    assert found == pytest.approx(expected, rel=1e-5) and min(found.values()) < 0.97 * found[1]
    assert "tensors are read by slices" in (tmp_path / "training/logs/rank-0.log").read_text()
    given = ["--training", "training/manifest.json", "--data", str(data), "--model", str(pretrained)]
    run(tmp_path, "select_checkpoint", "selection", given[:4], {"select": {"metric": "loss"}})
    options = [*given, "--selection", "selection/manifest.json", "--run-name", "test", "--device", "cpu"]
    run(tmp_path, "evaluate_model", "evaluation", options, {"evaluate": {"batch_size": 7}}, processes=2)
    metrics = json.loads((tmp_path / "evaluation/dev_results.json").read_text())["metrics"]
    assert metrics["loss"] == pytest.approx(min(each["loss"] for each in evaluations(tmp_path / "one")), rel=1e-5)


def test_speed_counts_predicted_tokens(data, tmp_path):
    language(data, tmp_path, block_length=20, batch_size=5, steps=2)
    first = next(line["metrics"] for line in read_events(tmp_path / "journal.jsonl")[0] if line["event"] == "train")
    assert first["tokens_per_second"] == pytest.approx(20 * first["examples_per_second"])
    assert losses(tmp_path)
