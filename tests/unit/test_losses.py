"""Class weights, label smoothing and the focal loss, against formulas by hand, and checked before any job."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import cross_entropy

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema.tasks import TextClassificationSettings
from snaketrain.labels import label_kind
from snaketrain.orchestration.preflight import examine
from snaketrain.tasks import text_classification
from snaketrain.tasks.module import Module
from snaketrain.tasks.text_classification import TextClassification

torch.manual_seed(0)
NAMES, COUNTS = ["a", "b", "c"], [6, 3, 1]
LABELS, LOGITS = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS)), torch.randn(10, 3)
SEVERAL = (torch.rand(10, 3) < 0.4).float()


def losses(kind: str, labels: torch.Tensor, **settings) -> torch.Tensor:
    head = label_kind(kind).head
    counts = SEVERAL.sum(0).int().tolist() if kind == "classes" else COUNTS
    return head.training_losses(TextClassificationSettings(**settings), NAMES, lambda: (counts, 10))(LOGITS, labels)


def test_balanced_weights_are_those_of_scikit_learn():
    weights = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=LABELS.numpy()), dtype=torch.float32)
    found = losses("class", LABELS, class_weights="balanced")
    assert torch.allclose(found, cross_entropy(LOGITS, LABELS, reduction="none") * weights[LABELS])
    assert weights[LABELS].mean() == pytest.approx(1), "so that the learning rate means the same"


def test_weights_by_name_leave_out_what_weighs_one():
    found = losses("class", LABELS, class_weights={"c": 4, "a": 0.5})
    assert torch.allclose(found, cross_entropy(LOGITS, LABELS, reduction="none") * torch.tensor([0.5, 1, 4])[LABELS])


def test_smoothing_moves_probability_from_the_right_answer_to_all():
    smoothed = 0.7 * torch.nn.functional.one_hot(LABELS, 3) + 0.3 / 3
    assert torch.allclose(losses("class", LABELS, label_smoothing=0.3), -(smoothed * LOGITS.log_softmax(1)).sum(1), atol=1e-6)


def test_the_focal_loss_weighs_confident_examples_less():
    right = LOGITS.softmax(1)[torch.arange(10), LABELS]
    assert torch.allclose(losses("class", LABELS, focal_gamma=2), -((1 - right) ** 2) * right.log(), atol=1e-6)
    task = Module(losses={"output": {"use": "snaketrain.tasks.losses.FocalLoss", "arguments": {"gamma": 2, "weight": [1.0, 2.0, 3.0]}}})
    found = task.parts({"output": LOGITS}, {"target": LABELS})[""]
    assert found.item() == pytest.approx((-((1 - right) ** 2) * right.log() * (LABELS + 1)).sum().item(), rel=1e-5)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_certain_example_has_a_finite_gradient(gamma):
    logits = torch.tensor([[100.0, -100.0, 0.0]], requires_grad=True)
    settings = TextClassificationSettings(focal_gamma=gamma)
    label_kind("class").head.training_losses(settings, NAMES, lambda: (COUNTS, 10))(logits, torch.tensor([0])).sum().backward()
    assert logits.grad.isfinite().all()


def test_several_classes_weigh_having_one():
    yes, no = -LOGITS.sigmoid().log(), -(-LOGITS).sigmoid().log()
    counts = SEVERAL.sum(0)
    balanced = SEVERAL * yes * (10 - counts) / counts + (1 - SEVERAL) * no
    assert torch.allclose(losses("classes", SEVERAL, class_weights="balanced"), balanced.mean(1), atol=1e-5)
    smoothed = 0.8 * SEVERAL + 0.1
    assert torch.allclose(losses("classes", SEVERAL, label_smoothing=0.2), (smoothed * yes + (1 - smoothed) * no).mean(1), atol=1e-6)
    right = torch.where(SEVERAL > 0, LOGITS.sigmoid(), 1 - LOGITS.sigmoid())
    assert torch.allclose(losses("classes", SEVERAL, focal_gamma=2), ((1 - right) ** 2 * -right.log()).mean(1), atol=1e-5)
    task = Module(losses={"output": {"use": "snaketrain.tasks.losses.FocalLoss"}})
    found = task.parts({"output": LOGITS}, {"target": SEVERAL})[""]
    assert found.item() == pytest.approx(((1 - right) ** 2 * -right.log()).mean(1).sum().item(), rel=1e-5)


def test_a_class_that_does_not_exist_is_an_error():
    with pytest.raises(SystemExit, match=r"train.task.arguments.class_weights: there is no class 'd'.*Classes: a, b, c\."):
        losses("class", LABELS, class_weights={"d": 2})


DATA = {"train": {"path": "a.csv"}, "tokenizer": {"path": "tokenizer"}}


def trained(kind: str, logits: torch.Tensor, labels: torch.Tensor, loss: dict) -> float:
    task, model = TextClassification(loss=loss), torch.nn.Identity()
    data = {"label_kind": kind, "label_names": NAMES, "vocab_size": 5, "pad_token_id": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_classification, "make_model", lambda *_: model)
        patch.setattr(TextClassification, "logits", lambda *_: logits)
        return task.training_step(task.build({}, None, data), {"labels": labels}).item()


def test_a_loss_that_is_named_takes_the_place_of_the_usual_one():
    """As a sum over examples, whatever it returns."""
    smoothed = {"use": "torch.nn.CrossEntropyLoss", "arguments": {"label_smoothing": 0.3}}
    assert trained("class", LOGITS, LABELS, smoothed) == pytest.approx(losses("class", LABELS, label_smoothing=0.3).sum().item())
    margins = torch.nn.functional.multi_margin_loss(LOGITS, LABELS, reduction="sum").item()
    assert trained("class", LOGITS, LABELS, {"use": "torch.nn.MultiMarginLoss"}) == pytest.approx(margins)
    soft = torch.nn.functional.multilabel_soft_margin_loss(LOGITS, SEVERAL, reduction="sum").item()
    assert trained("classes", LOGITS, SEVERAL, {"use": "torch.nn.functional.multilabel_soft_margin_loss"}) == pytest.approx(soft)
    distances = (LOGITS[:, 0] - torch.arange(10)).abs().sum().item()
    assert trained("number", LOGITS[:, :1], torch.arange(10.0), {"use": "torch.nn.L1Loss"}) == pytest.approx(distances)


TASK = "train.task.arguments"


@pytest.mark.parametrize(
    ("arguments", "data", "words"),
    [
        ({"class_weight": "balanced"}, {}, f"{TASK}.class_weight: no such argument. Did you mean 'class_weights'?"),
        ({"class_weights": "balance"}, {}, f"{TASK}.class_weights"),
        ({"class_weights": {"a": -1}}, {}, f"{TASK}.class_weights"),
        ({"label_smoothing": 1.5}, {}, f"{TASK}.label_smoothing: expects a number less than 1, not 1.5."),
        ({"label_smoothing": 0.1, "focal_gamma": 2}, {}, f"{TASK}: label_smoothing and focal_gamma: the focal loss is of the right answer"),
        (
            {"loss": {"use": "torch.nn.CrossEntropyLoss"}, "class_weights": "balanced"},
            {},
            f"{TASK}: loss: takes the place of class_weights",
        ),
        ({"focal_gamma": 2}, {"label_kind": "number"}, f"{TASK}: focal_gamma: is for classes, but data.label_kind is number. Remove it."),
    ],
)
def test_errors_show_before_any_job(arguments, data, words):
    with pytest.raises(ConfigurationError) as error:
        examine(
            {"data": DATA | data, "train": {"task": {"use": "text_classification", "arguments": arguments}}, "select": {"metric": "loss"}}
        )
    assert any(problem.startswith(words) for problem in error.value.problems), error.value.problems
