"""The model card: a Hugging Face card whose figures are those of the evaluation, and which no name can break."""

import json
import math
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from snaketrain.runtime import model_card
from snaketrain.runtime.manifests import Manifest, read_manifest, write_checked, write_json, write_manifest, write_text
from snaketrain.runtime.model_card import plain, write_card

MODEL = {"use": "transformers.AutoModelForSequenceClassification", "source": {"hub": "owner/base", "sha256": {"a.b": "c"}}}
TRAIN = {"learning_rate": 0.001, "steps": None, "seed": 0, "clip_norm": 1.0, "freeze": []}
DATA = {"data": {"name": "phrases", "train": {"path": "raw/*.csv", "hub_type": "model"}, "dev": None, "text": "text"}}
ODD = "<b>|*x*: [a](b)\n---"
FACTS = {
    "name": "phrases", "label_names": ["bad", ODD], "max_length": 16, "odd": {"duplicate": 3},
    "splits": {"train": {"examples": 80, "label_counts": [50, 30], "truncated": 2}, "test": {"examples": 20, "label_counts": [8, 12]}},
}  # fmt: skip


@pytest.fixture
def run(tmp_path) -> Path:
    """A run whose checkpoint was selected, and its data."""
    folder = tmp_path / "run"
    write(folder / "training", "train_model", {"model": MODEL, "train": TRAIN}, {}, {"run": ODD})
    write(tmp_path / "data", "prepare_data", DATA, {}, FACTS)
    write_json(folder / "selection/model/config.json", {"architectures": ["BertForSequenceClassification"]})
    write_json(folder / "selection/model/tokenizer.json", {})
    write_json(folder / "selection/selection.json", {"why": "step 6 has the highest accuracy", "winner": {"metrics": {"accuracy": 0.75}}})
    write(folder / "selection", "select_checkpoint", {}, {}, {"step": 6})
    return folder


def write(folder: Path, stage: str, settings: dict, inputs: dict[str, str], facts: dict, files: dict | None = None) -> None:
    write_manifest(folder / "manifest.json", Manifest(stage, "1", settings, inputs, files or {}, facts))


def evaluate(run: Path, selection: str) -> None:
    classes = {"bad": {"f1": 0.5, "examples": 8}, ODD: {"f1": 0.25, "examples": 12}}
    results = {
        "split": "test",
        "metrics": {"accuracy": 0.7975, "loss": 0.5},
        "interval": [0.7, 0.9],
        "confidence": 0.95,
        "classes": classes,
    }
    results |= {"baselines": {"majority": {"answer": f"always {ODD}", "accuracy": 0.6}}, "calibration_error": 0.125}
    write_json(run / "evaluation/test_results.json", results)
    files = {"test_results.json": "0", "test_plots.png": "0"}
    write(run / "evaluation", "evaluate_model", {}, {"selection": selection}, {}, files)


def card(run: Path) -> ModelCard:
    manifests = [run / "training/manifest.json", run.parent / "data/manifest.json", run / "selection/manifest.json"]
    write_card(*map(read_manifest, manifests))
    return ModelCard.load(run / "selection/model/README.md")


def test_the_hub_reads_it(run):
    evaluate(run, read_manifest(run / "selection/manifest.json").content)
    found = card(run).data
    assert (found.library_name, found.pipeline_tag, found.base_model) == ("transformers", "text-classification", "owner/base")
    assert found.model_name == ODD and found.metrics == ["accuracy", "loss"]
    accuracy, loss = found.eval_results
    assert (accuracy.metric_type, accuracy.metric_value, accuracy.dataset_name, accuracy.dataset_split) == (
        "accuracy",
        0.7975,
        "phrases",
        "test",
    )
    assert accuracy.task_type == "text-classification" and loss.metric_value == 0.5


@pytest.mark.parametrize(("differences", "outcome"), [([], "equal, bit for bit"), (["loss"], "DIFFERENT in steps 1 to 6")])
def test_it_says_what_replays_have_found(run, differences, outcome):
    intervals = [{"first": 0, "last": 6, "differences": differences}, {"first": 8, "last": 9, "differences": []}]
    found = {
        "identity": read_manifest(run / "training/manifest.json").identity,
        "time": 0.0,
        "intervals": intervals,
        "damage": ["journal"] * len(differences),
    }
    write_checked(run / "training/verified.json", found)
    assert f"losses of 7 steps, replayed by `snaketrain verify` on 1970-01-01, were {outcome}." in card(run).text
    assert ("Damaged: journal." in card(run).text) == bool(differences)
    write_checked(run / "training/verified.json", found | {"identity": "of an earlier one"})
    assert "replayed" not in card(run).text


def test_undefined_metrics_are_not_among_the_figures_for_the_hub(run):
    """Which is JSON there."""
    evaluate(run, read_manifest(run / "selection/manifest.json").content)
    path = run / "evaluation/test_results.json"
    results = json.loads(path.read_text())
    write_json(path, results | {"metrics": {"accuracy": 0.75, "matthews_correlation": math.nan}})
    found = card(run)
    assert found.data.metrics == ["accuracy"] and [each.metric_type for each in found.data.eval_results] == ["accuracy"]
    assert "matthews" in found.text


def test_it_has_figures_with_interval_and_baseline_limits_and_settings(run):
    evaluate(run, read_manifest(run / "selection/manifest.json").content)
    text = card(run).text
    assert (
        f"| test | accuracy | 0.7975 | 0.7000 to 0.9000 | 0.6000 (always {plain(ODD)}) |" in text
        and "| test | loss | 0.5000 |  |  |" in text
    )
    assert f"| train | 80 | bad 50, {plain(ODD)} 30 |" in text and "fine-tuned from owner/base" in text
    assert f"weakest class on the test set is {plain(ODD)}: F1 0.2500, and it occurs 12 times" in text and "error).\n" in text
    assert "at most 16 tokens; 2 of the training examples were cut" in text and "duplicate 3" in text
    assert "| train.learning\\_rate | 0.001 |" in text and "| train.seed | 0 |" in text
    assert "The interval is the 95% one over the examples (Wilson). The baseline is a constant answer." in text
    assert (
        "sha256" not in text and "hub_type" not in text and "train.steps" not in text and "clip" not in text and "train.freeze" not in text
    )
    assert "AutoModelForSequenceClassification.from_pretrained(" in text


def test_its_settings_have_the_arguments_of_the_loss_the_optimizer_and_the_schedule(run):
    train = TRAIN | {"task": {"arguments": {"class_weights": {"a spam": 5}}}, "callbacks": [{"use": "my.py:Ema"}]}
    train |= {"optimizer": {"arguments": {"eps": 1e-08}}, "schedule": {"arguments": {"drop": "0.5"}}}
    write(run / "training", "train_model", {"model": MODEL, "train": train}, {}, {"run": "own"})
    text = card(run).text
    assert '| train.task.arguments.class\\_weights | {"a spam": 5} |' in text and "train.optimizer.arguments.eps | 1e-08" in text
    assert "train.schedule.arguments.drop" in text and "my.py:Ema" in text


@pytest.mark.parametrize(
    ("architecture", "auto"),
    [
        ("LlamaForCausalLM", "AutoModelForCausalLM"),
        ("GPT2LMHeadModel", "AutoModelForCausalLM"),
        ("T5ForConditionalGeneration", "AutoModelForSeq2SeqLM"),
        ("BertForMaskedLM", "AutoModelForMaskedLM"),
        ("BertForTokenClassification", "AutoModelForTokenClassification"),
        ("BertForQuestionAnswering", "AutoModelForQuestionAnswering"),
        ("BertForMultipleChoice", "AutoModelForMultipleChoice"),
        ("SegformerForSemanticSegmentation", "SegformerForSemanticSegmentation"),
        ("BertModel", "AutoModel"),
    ],
)
def test_it_loads_the_model_with_its_head(run, architecture, auto):
    write_json(run / "selection/model/config.json", {"architectures": [architecture]})
    assert f"from transformers import {auto}, AutoTokenizer" in card(run).text


def test_it_has_the_evaluation_sets_and_whichever_job_ends_last_writes_all(run, monkeypatch):
    selection = read_manifest(run / "selection/manifest.json").content
    evaluate_on(run, "tweets", selection)

    def write_slowly(path, text):
        if "emails" not in text:  # this job ends before the other one writes its card
            evaluate_on(run, "emails", selection)
        write_text(path, text)

    monkeypatch.setattr(model_card, "write_text", write_slowly)
    evaluate(run, selection)
    evaluate_on(run, "old", "another selection")
    found = card(run)
    assert "| test | accuracy | 0.7975 |" in found.text and "| tweets | accuracy | 0.6000 |" in found.text
    assert "| emails | accuracy | 0.6000 |" in found.text and "| tweets | 40 | bad 9 |" in found.text and "old" not in found.text
    names = [(each.dataset_name, each.dataset_split) for each in found.data.eval_results]
    assert names == [("phrases", "test"), ("phrases", "test"), ("emails", None), ("tweets", None)]


def test_without_a_baseline_it_says_nothing_of_one(run):
    evaluate(run, read_manifest(run / "selection/manifest.json").content)
    path = run / "evaluation/test_results.json"
    write_json(path, json.loads(path.read_text()) | {"baselines": {}})
    assert "constant answer" not in card(run).text


def test_an_average_of_checkpoints_has_no_metrics_before_its_evaluation(run):
    chosen = json.loads((run / "selection/selection.json").read_text())
    write_json(run / "selection/selection.json", chosen | {"averaged": [6, 4]})
    assert "of the training's own evaluation of the best checkpoint alone, not of the average." in card(run).text


def evaluate_on(run: Path, name: str, selection: str) -> None:
    folder = run / "sets" / name
    write_json(folder / f"{name}_results.json", {"split": name, "metrics": {"accuracy": 0.6}, "baselines": {}})
    facts = {"set": name, "splits": {name: {"examples": 40, "label_counts": [9]}}}
    write(folder, "evaluate_set", {}, {"selection": selection}, facts, {f"{name}_results.json": "0"})


def test_before_an_evaluation_and_after_one_of_other_weights_it_has_the_metrics_of_the_training(run):
    before = card(run)
    assert (
        "| development | accuracy | 0.7500 |  |  |" in before.text
        and "Not evaluated yet" in before.text
        and before.data.eval_results is None
    )
    evaluate(run, "another selection")
    assert card(run).content == before.content


def test_no_name_is_markup(run):
    text = card(run).text
    assert "<b>" not in text and plain(ODD) == "&lt;b&gt;\\|\\*x\\*: \\[a\\](b) ---"
    assert yaml.safe_load(card(run).content.split("---\n")[1])["tags"] == ["snaketrain"]


def test_another_module_is_loaded_by_its_weights(run):
    (run / "selection/model/config.json").unlink()
    found = card(run)
    assert "load_file(" in found.text and "transformers" not in json.dumps(found.data.to_dict())
