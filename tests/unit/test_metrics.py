"""Metrics that the configuration names: custom ones, those that no other library has, and the checks before any job."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Metric
from snaketrain.labels import label_kind
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.runtime.stages import by_name
from snaketrain.tasks.base import Task
from snaketrain.tasks.metrics import Measuring
from snaketrain.tasks.text_classification import TextClassification
from snaketrain.training.building import add_metrics

RANDOM = np.random.default_rng(0)
LABELS = np.r_[RANDOM.integers(0, 6, 84), range(6)]
LOGITS = (RANDOM.normal(size=(90, 6)) + 1.5 * np.eye(6)[LABELS]).astype(np.float32)
NUMBERS = RANDOM.normal(3, 1, 90).astype(np.float32)
PREDICTED = (NUMBERS + RANDOM.normal(0, 1, 90)).astype(np.float32)[:, None]
CUTS = [[], [1, 40, 41]]


def measured(kind: str, logits: np.ndarray, labels: np.ndarray, cuts: list[int], metrics: dict[str, dict]) -> dict[str, float]:
    """Only the metrics of the configuration."""
    task = TextClassification()
    task.head = label_kind(kind).head
    facts = {"label_kind": kind, "label_names": [] if kind == "number" else [f"c{n}" for n in range(logits.shape[1])]}
    add_metrics(task, {name: Metric(**metric) for name, metric in metrics.items()}, facts, "text_classification", "train.metrics")
    measuring = Measuring(task)
    for part, true in zip(np.split(logits, cuts), np.split(labels, cuts), strict=True):
        measuring.add(torch.tensor(part), {"labels": torch.tensor(true)}, len(true))
    found = measuring.metrics()
    return {name: found[name] for name in metrics}


def calibration_error(shares: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    sure, right = shares.max(1), shares.argmax(1) == labels
    bin_of = np.ceil(sure * bins)
    return sum((bin_of == n).mean() * abs(right[bin_of == n].mean() - sure[bin_of == n].mean()) for n in np.unique(bin_of))


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_metrics_that_no_library_has(cuts):
    """test_metric_references.py compares the others."""
    expected = calibration_error(torch.tensor(LOGITS).softmax(1).numpy(), LABELS)
    found = measured("class", LOGITS, LABELS, cuts, {"it": {"use": "calibration_error"}})
    assert found["it"] == pytest.approx(expected, abs=1e-5)
    x, y = PREDICTED[:, 0].astype(float), NUMBERS.astype(float)
    expected = 2 * np.cov(x, y)[0, 1] / (x.var(ddof=1) + y.var(ddof=1) + (x.mean() - y.mean()) ** 2)
    assert measured("number", PREDICTED, NUMBERS, cuts, {"it": {"use": "concordance"}})["it"] == pytest.approx(expected, abs=1e-4)


MINE = """
from snaketrain.tasks.metrics import OfRows, Sum

def sureness(prediction, target):
    return prediction.max(1).values

class Cost(Sum):
    higher_is_better = False
    def __init__(self, num_classes, missed=1.0):
        self.missed, self.classes = missed, num_classes
    def sums(self, prediction, target):
        wrong = prediction.argmax(1) != target
        return {"cost": wrong.sum() * self.missed, "count": wrong.numel() + wrong.sum() * 0}
    def compute(self, sums):
        return float(sums["cost"] / sums["count"]) * self.classes

class FirstRow(OfRows):
    def compute(self, prediction, target):
        return float(prediction[0, 0])
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_custom_metrics_and_classes_of_torchmetrics_know_the_number_of_classes(cuts, mine):
    shares, wrong = torch.tensor(LOGITS).softmax(1), (LOGITS.argmax(1) != LABELS).mean()
    metrics = {"sure": {"use": "mine.py:sureness"}, "cost": {"use": "mine.py:Cost", "arguments": {"missed": 3}}}
    metrics |= {"first": {"use": "mine.py:FirstRow"}, "jaccard": {"use": "torchmetrics.classification.MulticlassJaccardIndex"}}
    found = measured("class", LOGITS, LABELS, cuts, metrics)
    expected = {"sure": shares.max(1).values.mean().item(), "cost": 18 * wrong, "first": shares[0, 0].item()}
    expected["jaccard"] = sk.jaccard_score(LABELS, LOGITS.argmax(1), average="macro")
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"f1": {"use": "f1"}}, "train.metrics.f1: is the metric of the second of two classes, and there are 6"),
        ({"x": {"use": "torchmetrics.classification.BinaryAUROC"}}, "train.metrics.x: BinaryAUROC is for two classes, and there are 6"),
        (
            {"x": {"use": "top_k_accuracy", "arguments": {"top_k": 9}}},
            "train.metrics.x: snaketrain.*cannot be made with the arguments.*top_k is 9, but there are 6 classes",
        ),
        ({"accuracy": {"use": "cohen_kappa"}}, "train.metrics.accuracy: the task logs a metric of this name by itself"),
    ],
)
def test_metrics_that_do_not_suit_the_data_are_refused(metrics, words):
    with pytest.raises(SystemExit, match=words):
        measured("class", LOGITS, LABELS, [], metrics)


class Own(Task):
    metrics = {"loss": "min"}  # noqa: RUF012


def test_a_task_that_does_not_say_what_metrics_compare_is_refused():
    with pytest.raises(SystemExit, match="train.metrics: mine.py:Own does not say what metrics compare. Override `metric_inputs` in it"):
        add_metrics(Own(), {"f1": Metric(use="torchmetrics.MeanMetric")}, {}, "mine.py:Own", "train.metrics")


DATA = {"train": {"path": "a.csv"}, "tokenizer": {"path": "tokenizer"}}


def problems(**sections) -> list[str]:
    """Those about metrics, of a configuration without files."""
    try:
        examine({"data": DATA} | sections)
    except ConfigurationError as error:
        return [problem.partition(" (run")[0] for problem in error.problems if "metric" in problem.partition(":")[0] or "select" in problem]
    return []


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"train": {"metrics": ["matthews_corelation"]}}, "train.metrics.matthews_corelation.use: there is no metric `matthews_corelation` here. Did you mean 'matthews_correlation'?"),
        ({"train": {"metrics": ["spearman"]}}, "train.metrics.spearman.use: there is no metric `spearman` here"),
        ({"evaluate": {"metrics": {"f": {"use": "f_beta"}}}}, "evaluate.metrics.f.arguments.beta: is missing"),
        ({"train": {"metrics": {"f": {"use": "f_beta", "arguments": {"beta": 2, "averag": "macro"}}}}}, "train.metrics.f.arguments.averag: no such argument. Did you mean 'average'?"),
        ({"train": {"metrics": {"m": {"use": "torchmetrics.classification.MulticlassRecal"}}}}, "train.metrics.m.use: `torchmetrics.classification` has no `MulticlassRecal`"),
        ({"train": {"metrics": {"m": {"use": "torchmetrics.classification.MulticlassRecall", "arguments": {"topk": 3}}}}}, "train.metrics.m.arguments.topk: no such argument"),
        ({"train": {"metrics": {"m": {"use": "torchmetrics.AUROC", "arg": {}}}}}, "train.metrics.m.arg: no such setting"),
        ({"train": {"metrics": ["f1", "f1"]}}, "train.metrics: names 'f1' twice"),
        ({"train": {"metrics": ["torchmetrics.AUROC"]}}, "train.metrics: 'torchmetrics.AUROC' needs a name to be logged by"),
        ({"train": {"metrics": {"accuracy": {"use": "cohen_kappa"}}}}, "train.metrics.accuracy: the task logs a metric of this name by itself"),
        ({"train": {"metrics": ["f1"]}, "evaluate": {"metrics": ["f1"]}}, "evaluate.metrics has 'f1', which train.metrics has too"),
        ({"train": {"metrics": ["f1"]}, "select": {"metric": "f1", "mode": "min"}}, "select.mode: is min, but for 'f1' higher is better"),
        ({"select": {"metric": "auroc", "mode": "min"}}, "select.mode: is min, but for 'auroc' higher is better"),
        ({"select": {"metric": "auroc"}, "evaluate": {"metrics": ["auroc"]}}, "evaluate.metrics.auroc: select.metric names it, so that it is logged and evaluated anyway"),
        ({"select": {"metric": "aurocs"}}, "select.metric: the task logs no 'aurocs'"),
    ],
)  # fmt: skip
def test_errors_show_before_any_job(by_effect, sections, words):
    found = problems(**sections)
    assert len(found) == 1 and words in found[0], found


@pytest.mark.parametrize("metric", ["matthews_correlation", "f1", "auroc", "accuracy"])
def test_a_short_name_can_select_the_checkpoint(metric):
    assert problems(select={"metric": metric}) == []


def settings_of(stage: str, **sections) -> dict[str, object]:
    return by_name(Pipeline({"data": DATA} | sections, reads_files=False).stages[stage].settings("default"))


def test_results_without_the_new_metrics_are_not_stale():
    for stage in ("train_model", "evaluate_model"):
        assert not [name for name in settings_of(stage) if "metrics" in name]


def test_the_training_logs_the_metric_that_selects_even_if_it_was_not_asked_to():
    """It reruns only if the metric would not have been logged."""
    plain = settings_of("train_model")
    assert settings_of("train_model", select={"metric": "macro_f1"}) == plain
    chosen = settings_of("train_model", select={"metric": "auroc"})
    assert chosen == plain | {"train.metrics.auroc.use": "auroc", "train.metrics.auroc.arguments": {}, "train.metrics.auroc.mode": None}
    assert settings_of("train_model", train={"metrics": ["auroc"]}) == chosen
    assert settings_of("train_model", train={"metrics": ["auroc"]}, select={"metric": "auroc"}) == chosen


def test_code_of_custom_metrics_is_code_of_the_stages_that_compute_them(mine):
    names = {
        stage: Pipeline(
            {"data": DATA, "train": {"metrics": {"a": "mine.py:Cost"}}} | more, reads_files=False
        ).stages[stage].code("default")
        for stage, more in (("train_model", {}), ("evaluate_model", {}), ("select_checkpoint", {}))
    }  # fmt: skip
    with_code = {stage for stage, code in names.items() if "mine.py" in code}
    assert with_code == {"train_model", "evaluate_model"}
    of_evaluation = {"data": DATA, "evaluate": {"metrics": {"a": "mine.py:Cost"}}}
    pipeline = Pipeline(of_evaluation, reads_files=False)
    assert "mine.py" in pipeline.stages["evaluate_model"].code("default")
    assert "mine.py" not in pipeline.stages["train_model"].code("default")
