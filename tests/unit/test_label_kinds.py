"""Losses and predictions of every label kind, against scikit-learn, for any split into batches."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_squared_error
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from snaketrain.tasks.metrics import Measuring
from snaketrain.tasks.text_classification import TextClassification

NAMES = ["actor", "music", "never", "plot"]  # one class never occurs and is never predicted
FACTS = {"vocab_size": 30, "pad_token_id": 0}
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


class Echo(nn.Module):
    """A model whose logits are its inputs."""

    def forward(self, input_ids):
        return type("Output", (), {"logits": input_ids})


def task_for(kind: str, names: list[str] = NAMES) -> TextClassification:
    task = TextClassification()
    built = task.build({"use": "transformers.BertForSequenceClassification", "arguments": SMALL}, None, described(kind, names))
    assert isinstance(built["model"], BertForSequenceClassification)
    return task


def described(kind: str, names: list[str] = NAMES) -> dict:
    return FACTS | {"label_names": [] if kind == "number" else names, "label_kind": kind}


def measured(kind: str, logits: np.ndarray, labels: np.ndarray, cuts: list[int]) -> dict[str, float]:
    """Batches of uneven size, added up as the trainer does."""
    task = task_for(kind)
    measuring = Measuring(task)
    for part, true in zip(np.split(logits, cuts), np.split(labels, cuts), strict=True):
        batch = {"input_ids": torch.tensor(part), "labels": torch.tensor(true)}
        measuring.add(task.outputs({"model": Echo()}, batch), batch, len(true))
    return measuring.metrics()


@pytest.mark.parametrize("cuts", [[], [1, 40, 41], [99]], ids=str)
def test_one_class(cuts):
    random = np.random.default_rng(0)
    labels = random.choice([0, 1, 3], 100)
    logits = random.normal(size=(100, 4)).astype(np.float32) - [0, 0, 50, 0]
    logits[np.arange(100), labels] += 1
    found = measured("class", logits.astype(np.float32), labels, cuts)
    predicted, probabilities = logits.argmax(1), torch.tensor(logits).softmax(-1).numpy()
    assert found == pytest.approx(
        {
            "loss": log_loss(labels, probabilities, labels=range(4)),
            "accuracy": accuracy_score(labels, predicted),
            "macro_f1": f1_score(labels, predicted, average="macro", zero_division=0),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("cuts", [[], [1, 40, 41], [99]], ids=str)
def test_losses_of_several_classes_and_of_numbers(cuts):
    """test_metric_references.py compares their metrics."""
    random = np.random.default_rng(1)
    labels = (random.random((100, 4)) < [0.5, 0.2, 0, 0.7]).astype(np.float32)
    logits = (random.normal(size=(100, 4)) + 2 * labels - [1, 1, 50, 1]).astype(np.float32)
    probabilities = 1 / (1 + np.exp(-logits.astype(float)))
    by_hand = -(labels * np.log(probabilities) + (1 - labels) * np.log(1 - probabilities)).mean(1).mean()
    assert measured("classes", logits, labels, cuts)["loss"] == pytest.approx(by_hand, rel=1e-5)
    numbers = (random.normal(size=100) + 1000).astype(np.float32)
    predicted = (numbers + random.normal(size=100)).astype(np.float32)
    squares = mean_squared_error(numbers.astype(float), predicted.astype(float))
    assert measured("number", predicted[:, None], numbers, cuts)["loss"] == pytest.approx(squares, rel=1e-5)


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_metrics_match_the_predicted_rows(kind):
    task = task_for(kind)
    random = np.random.default_rng(3)
    logits = torch.tensor(random.normal(size=(50, 1 if kind == "number" else 4)), dtype=torch.float32)
    labels = {"class": torch.arange(50) % 4, "classes": (logits > 0.3).float(), "number": logits[:, 0] + 1}[kind]
    batch = {"input_ids": logits, "labels": labels}
    outputs = task.outputs({"model": Echo()}, batch)
    rows = task.predict(outputs, batch)
    found = task.measure({name: total.double() for name, total in task.evaluation_step(outputs, batch).items()})
    assert float(rows["loss"].mean()) == pytest.approx(found["loss"], rel=1e-5)
    assert float(task.training_step({"model": Echo()}, batch)) == pytest.approx(50 * found["loss"], rel=1e-5)
    if kind == "number":
        assert float((rows["predicted"] - labels).abs().mean()) == pytest.approx(found["mae"], rel=1e-5)
    elif kind == "classes":
        assert float(((rows["probabilities"] > 0.5) == (labels > 0)).all(-1).double().mean()) == pytest.approx(found["exact_match"])
    else:
        assert float((rows["probabilities"].argmax(-1) == labels).double().mean()) == pytest.approx(found["accuracy"])


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_transformers_loads_the_described_model(kind, tmp_path):
    task = TextClassification()
    model = {"use": "transformers.BertForSequenceClassification", "arguments": SMALL}
    modules = task.build(model, None, described(kind))
    task.describe(modules, tmp_path)
    config = BertConfig.from_pretrained(tmp_path)
    kinds = {"class": "single_label_classification", "classes": "multi_label_classification", "number": "regression"}
    assert (config.problem_type, config.num_labels) == (kinds[kind], 1 if kind == "number" else 4)
    assert kind == "number" or config.id2label == dict(enumerate(NAMES))


def test_classes_of_pretrained_weights_are_in_the_same_order(tmp_path):
    """Otherwise a model that is evaluated as it is would have the figures of swapped classes."""
    given = {"id2label": {0: NAMES[1].upper(), 1: NAMES[0], 2: NAMES[2], 3: NAMES[3]}}
    BertForSequenceClassification(BertConfig(**SMALL, **given)).save_pretrained(tmp_path)
    source = {"use": "transformers.AutoModelForSequenceClassification", "arguments": {}}
    with pytest.raises(SystemExit, match=r"data.labels: the classes are .*, in this order, and those of model.source"):
        TextClassification().build(source, tmp_path, described("class"))
    swapped = described("class") | {"label_names": [*given["id2label"].values()]}
    assert TextClassification().build(source, tmp_path, swapped)["model"].config.num_labels == 4


@pytest.mark.parametrize(("model", "differs"), [("Bert", True), ("DistilBert", False), ("Bart", False)])
def test_pairs_reach_models_with_and_without_token_types(model, differs):
    small = {"Bert": SMALL, "DistilBert": {"dim": 8, "n_layers": 1, "n_heads": 1, "hidden_dim": 8}}
    bart = {"d_model": 8, "eos_token_id": 3} | {
        f"{part}_{key}": 1 for part in ("encoder", "decoder") for key in ("layers", "attention_heads", "ffn_dim")
    }
    task = TextClassification()
    torch.manual_seed(0)
    arguments = {"use": f"transformers.{model}ForSequenceClassification", "arguments": small.get(model, bart)}
    modules = task.build(arguments, None, described("class"))
    modules["model"].eval()
    ids = torch.tensor([[2, 5, 3, 6, 3]])
    types = torch.tensor([[0, 0, 0, 1, 1]])
    logits = [
        task.logits(modules, {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": each}) for each in (types, 0 * types)
    ]
    assert torch.equal(*logits) is not differs


def test_without_classes_there_is_nothing_to_classify():
    with pytest.raises(SystemExit, match="data.label: is null"):
        task_for("class", [])
