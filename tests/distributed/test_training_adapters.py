"""LoRA adapters: losses equal those of peft in a plain loop, on one process and on two; only adapters are saved; peft loads the selected ones."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from distributed.running import losses, run_stage, train
from safetensors.torch import load_file
from torch import nn

from snaketrain.config.schema import Model, Source, Train
from snaketrain.data.loading.examples import open_splits
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import read_manifest
from snaketrain.runtime.stages import settings_words
from snaketrain.training.checkpoints.ranking import is_sharded
from snaketrain.training.plan import Plan

RANK, TARGETS = 4, ["query", "value"]
MODEL = Model(
    use="transformers.BertForSequenceClassification",
    source={"path": "base"},
    adapters={"r": RANK, "lora_alpha": 16, "target_modules": TARGETS},
)
TRAIN = {"batch_size": 16, "epochs": 2, "learning_rate": 1e-2, "evaluations_per_epoch": 2, "schedule": "constant", "warmup": 3}


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory) -> Path:
    """The manifest of a fetched encoder: a classifier's head is not among its weights."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(1)
    size = {
        "initializer_range": 0.3,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 16,
    }
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    vocabulary = read_manifest(data).facts["vocab_size"]
    BertModel(BertConfig(vocab_size=vocabulary, **size, **dropout)).save_pretrained(folder / "base")
    with contextlib.chdir(folder):
        source = {"source": Source(path="base").as_json}
        run_stage("fetch_source", ["--output", "model/manifest.json", *settings_words(folder, "fetch_source", source)], folder / "log")
    return folder / "model/manifest.json"


def adapt(data: Path, pretrained: Path, folder: Path, processes: int = 1, model: Model = MODEL, **settings) -> dict[int, float]:
    return train(data, folder, processes, model=model, pretrained=pretrained, **(TRAIN | settings))


@pytest.fixture(scope="module")
def alone(data, pretrained, tmp_path_factory) -> Path:
    """The folder of a training in one process."""
    folder = tmp_path_factory.mktemp("alone") / "training"
    adapt(data, pretrained, folder)
    return folder


def plain_losses(
    data: Path, pretrained: Path, prepared: Callable[[nn.Module], nn.Module] = lambda base: base, **adapters
) -> dict[int, float]:
    """The same training as peft's documentation writes it; `prepared`: the pretrained model."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertForSequenceClassification

    settings = Train(**TRAIN)
    splits = open_splits(read_manifest(data), settings)
    plan, found = Plan.of(settings, splits.train.lengths), {}
    torch.manual_seed(settings.seed)
    base = prepared(BertForSequenceClassification.from_pretrained(pretrained.parent / "files", num_labels=2))
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=RANK, lora_alpha=16, target_modules=TARGETS, **adapters))
    trained = [p for p in model.parameters() if p.requires_grad]
    decays = {True: settings.weight_decay, False: 0.0}
    groups = [{"params": [p for p in trained if (p.ndim > 1) == large], "weight_decay": decay} for large, decay in decays.items()]
    optimizer = torch.optim.AdamW(groups)
    model.train()
    for epoch, batches in plan.batches.after(0, plan.steps):
        for step, ids in batches:
            batch = splits.train.batch(tuple(ids), epoch)
            loss = torch.nn.functional.cross_entropy(model(**{**batch, "labels": None}).logits, batch["labels"])
            found[step] = loss.item()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, settings.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate_at(step)
            optimizer.step()
            optimizer.zero_grad()
    return found


def test_the_losses_are_those_of_peft_in_a_plain_loop(data, pretrained, alone):
    found, expected = losses(alone), plain_losses(data, pretrained)
    assert min(found.values()) < 0.9 * found[1], found
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_checkpoint_holds_the_adapters_and_the_new_head_alone(alone, pretrained):
    weights = load_file(max((alone / "checkpoints").glob("step-*")) / "model.safetensors")
    adapters = {name for name in weights if ".lora_" in name}
    assert set(weights) - adapters == {"classifier.weight", "classifier.bias"}
    assert len(adapters) == 2 * 2 * len(TARGETS)
    optimizer = torch.load(max((alone / "checkpoints").glob("step-*")) / "model.optimizer.pt", weights_only=True)
    assert set(optimizer["state"]) == set(weights)


def test_ddp_trains_adapters_and_averages_them(data, pretrained, alone, tmp_path):
    average = {"use": "snaketrain.training.weight_average.Ema", "arguments": {"decay": 0.8}}
    found = adapt(data, pretrained, tmp_path / "training", 2, strategy="ddp", callbacks=[average])
    assert found == pytest.approx(losses(alone), rel=1e-5)
    last = max((tmp_path / "training/checkpoints").glob("step-*"))
    assert set(load_file(last / "model.averaged.safetensors")) == set(load_file(last / "model.safetensors"))
    check_selection(data, pretrained, tmp_path)


def test_fsdp_with_a_model_that_no_process_builds(data, pretrained, alone, tmp_path):
    """Resumed half way."""
    adapt(data, pretrained, tmp_path / "training", 2, strategy="fsdp", epochs=1)
    found = adapt(data, pretrained, tmp_path / "training", 2, strategy="fsdp")
    assert "tensors are read by slices" in (tmp_path / "training/logs/rank-0.log").read_text()
    resumed = [line["resume_step"] for line in read_events(tmp_path / "training/journal.jsonl")[0] if line["event"] == "attempt"]
    assert resumed == [max(found) // 2]
    assert found == pytest.approx(losses(alone), rel=1e-5)
    assert is_sharded(max((tmp_path / "training/checkpoints").glob("step-*")))
    check_selection(data, pretrained, tmp_path)


def test_dora(data, pretrained, tmp_path):
    """On two processes; the norms are trained, saved, merged, and read by peft."""
    dora = Model(**MODEL.as_json | {"adapters": MODEL.adapters.as_json | {"use_dora": True}})
    found = adapt(data, pretrained, tmp_path / "training", 2, dora, strategy="ddp")
    assert found == pytest.approx(plain_losses(data, pretrained, use_dora=True), rel=1e-5)
    assert found != pytest.approx(plain_losses(data, pretrained), rel=1e-3)
    check_selection(data, pretrained, tmp_path)
    assert sum(name.endswith("lora_magnitude_vector") for name in load_file(tmp_path / "selection/adapter/adapter_model.safetensors")) == 4


def rounded(base: nn.Module) -> nn.Module:
    """With the nearest weights of 4 bits, found by comparing with each of the 16 values."""
    quantile, outermost = scipy.stats.norm.ppf, 0.9677083
    values = np.concatenate([-quantile(np.linspace(outermost, 0.5, 8)), quantile(np.linspace(0.5, outermost, 9))[1:]])
    for name, part in base.named_modules():
        if isinstance(part, nn.Linear) and "classifier" not in name:
            blocks = part.weight.detach().numpy().reshape(-1, 64)
            scales = np.abs(blocks).max(1)[:, None, None]
            nearest = np.abs(blocks[..., None] / scales - values / values.max()).argmin(-1)
            part.weight.data = torch.tensor(((values / values.max())[nearest] * scales[..., 0]).reshape(part.weight.shape)).float()
    return base


def test_beside_weights_of_4_bits(data, pretrained, tmp_path):
    """On two processes; what is merged is what was trained and evaluated."""
    quantized = Model(**MODEL.as_json | {"adapters": MODEL.adapters.as_json | {"quantize": "nf4"}})
    found = adapt(data, pretrained, tmp_path / "training", 2, quantized, strategy="ddp")
    assert found == pytest.approx(plain_losses(data, pretrained, rounded), rel=1e-5)
    assert found != pytest.approx(plain_losses(data, pretrained), rel=1e-3)
    assert "13 linear layers in 4 bits" in (tmp_path / "training/logs/rank-0.log").read_text()
    weights = load_file(max((tmp_path / "training/checkpoints").glob("step-*")) / "model.safetensors")
    assert all(".lora_" in name or name.startswith("classifier.") for name in weights)
    check_selection(data, pretrained, tmp_path, rounded)


def test_a_head_of_the_pretrained_weights_is_kept(data, pretrained, tmp_path):
    """As where another run has trained it."""
    from transformers import BertForSequenceClassification

    whole = BertForSequenceClassification.from_pretrained(pretrained.parent / "files", num_labels=2)
    whole.save_pretrained(tmp_path / "base")
    source = {"source": Source(path="base").as_json}
    with contextlib.chdir(tmp_path):
        run_stage("fetch_source", ["--output", "whole/manifest.json", *settings_words(tmp_path, "fetch_source", source)], tmp_path / "log")
    adapt(data, tmp_path / "whole/manifest.json", tmp_path / "training", epochs=0.5)
    check_selection(data, tmp_path / "whole/manifest.json", tmp_path)
    merged = load_file(tmp_path / "selection/model/model.safetensors")
    assert torch.equal(merged["classifier.weight"], whole.classifier.weight)


READING = """
from pathlib import Path

from snaketrain.tasks.text_classification import TextClassification


class Reading(TextClassification):
    def build(self, model, folder, data):
        assert (Path(data["tokenizer_folder"]) / "tokenizer.json").is_file()
        return super().build(model, folder, data)
"""


def test_adapters_of_a_task_that_reads_the_tokenizer_are_merged(data, pretrained, tmp_path):
    (tmp_path / "reading.py").write_text(READING)
    adapt(data, pretrained, tmp_path / "training", task=f"{tmp_path}/reading.py:Reading", epochs=1)
    check_selection(data, pretrained, tmp_path)


def check_selection(data: Path, pretrained: Path, folder: Path, prepared: Callable[[nn.Module], nn.Module] = lambda base: base) -> None:
    """peft and transformers load the folders, and both have the metrics of the checkpoint."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    given = ["--training", folder / "training/manifest.json", "--data", data, "--model", pretrained]
    stage(folder, "select_checkpoint", "selection", given, {"select": {"metric": "accuracy"}})
    options = [*given, "--selection", folder / "selection/manifest.json", "--run-name", "test", "--device", "cpu"]
    stage(folder, "evaluate_model", "evaluation", options, {"evaluate": {"batch_size": 7}})
    selection = json.loads((folder / "selection/selection.json").read_text())
    measured = json.loads((folder / "evaluation/dev_results.json").read_text())["metrics"]
    assert measured == pytest.approx(selection["winner"]["metrics"], rel=1e-4)
    merged = AutoModelForSequenceClassification.from_pretrained(folder / "selection/model").eval()
    base = prepared(AutoModelForSequenceClassification.from_pretrained(pretrained.parent / "files"))
    adapted = PeftModel.from_pretrained(base, folder / "selection/adapter").eval()
    tokens = torch.arange(4, 14)[None]
    with torch.no_grad():
        assert torch.allclose(merged(tokens).logits, adapted(tokens).logits, atol=1e-5)


def stage(folder: Path, name: str, output: str, given: list[object], settings: dict) -> None:
    words = ["--output", folder / output / "manifest.json", *given, *settings_words(folder, name, settings)]
    run_stage(name, words, folder / "log")
