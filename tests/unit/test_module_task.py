"""Any module from the configuration: predictions by name, losses that add up over batches, metrics equal to torchmetrics'."""

from pathlib import Path

import pytest
import torch
import torchmetrics
from scipy.stats import pearsonr, spearmanr
from torch.nn import functional

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Metric
from snaketrain.orchestration.preflight import examine
from snaketrain.tasks.losses import arguments_of, call
from snaketrain.tasks.metrics import Measuring
from snaketrain.tasks.module import Module
from snaketrain.training.building import add_metrics

MINE = """
import torch  # noqa: E402
from torch import nn  # noqa: E402
from snaketrain.tasks.metrics import OfRows, Sum

class Two(nn.Module):
    def __init__(self, by_name=False):
        super().__init__()
        self.by_name = by_name
        self.mean, self.spread = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, features, scale=1.0):
        mean, spread = self.mean(features) * scale, self.spread(features)
        return {"spread": spread, "mean": mean} if self.by_name else (mean, spread)

def mean_square(prediction, target):
    return (prediction - target).square().mean()

def apart(spread, mean):
    return (2 * spread - mean).flatten()

def first_minus_second(a, b):
    return (a - b).flatten()

class Scaled:
    def __init__(self, by):
        self.by = by
    def __call__(self, spread):
        return self.by * spread.mean()

class Learning(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 1)

def closeness(prediction, target, within=1.0):
    return ((prediction - target).abs() < within).flatten().float()

class Ratio(Sum):
    def sums(self, prediction, target):
        return {"prediction": prediction.sum(), "target": target.sum()}
    def compute(self, sums):
        return float(sums["prediction"] / sums["target"])

class Median(OfRows):
    higher_is_better = False
    def compute(self, prediction, target):
        return float((prediction - target).abs().median())

class Data:
    def __len__(self): return 3
    def __getitem__(self, i): return 1
"""

HALVED = """
from torchmetrics import MeanSquaredError

class Error(Sum):
    higher_is_better = False

class Halved(MeanSquaredError):
    def compute(self):
        return super().compute() / 2
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    features = torch.randn(10, 3)
    return {"features": features, "target": features.sum(1), "width": features.std(1), "ids": torch.arange(10)}


def made(use="mine.py:Two", model=None, **arguments):
    torch.manual_seed(1)
    task = Module(**arguments)
    return task, task.build({"use": use, "arguments": model or {}}, None, {})


def two(**arguments):
    losses = {"mean": {"use": "torch.nn.MSELoss"}, "spread": {"use": "torch.nn.L1Loss", "target": "width", "weight": 0.5}}
    return made(**({"predictions": ["mean", "spread"], "losses": losses} | arguments))


def cut(batch, *sizes):
    parts = {name: tensor.split(sizes) for name, tensor in batch.items()}
    return [{name: split[number] for name, split in parts.items()} for number in range(len(sizes))]


@torch.no_grad()
def evaluated(task, modules, batches):
    measuring = Measuring(task)
    for part in batches:
        measuring.add(task.outputs(modules, part), part, task.count(part))
    return measuring.metrics()


def test_each_named_prediction_has_its_loss_and_weight(batch):
    task, modules = two()
    mean, spread = (value.squeeze(1) for value in modules["model"](batch["features"]))
    found = task.training_step(modules, batch)
    assert found["mean"].item() == pytest.approx((mean - batch["target"]).square().sum().item(), rel=1e-6)
    assert found["spread"].item() == pytest.approx(0.5 * (spread - batch["width"]).abs().sum().item(), rel=1e-6)
    assert task.metrics == {"loss": "min", "loss_mean": "min", "loss_spread": "min"}
    measured = evaluated(task, modules, [batch])
    assert measured["loss"] == pytest.approx(sum(loss.item() for loss in found.values()) / 10)
    assert measured["loss_mean"] + measured["loss_spread"] == pytest.approx(measured["loss"])


def test_losses_add_up_however_the_batch_is_cut(batch):
    task, modules = two(regularisers=[{"use": "mine.py:apart"}, {"use": "mine.py:Scaled", "arguments": {"by": 3}, "weight": 2}])
    whole = task.training_step(modules, batch)
    parts = [task.training_step(modules, part) for part in cut(batch, 1, 7, 2)]
    assert whole.keys() == {"mean", "spread", "apart", "Scaled"}
    for name, loss in whole.items():
        assert loss.item() == pytest.approx(sum(part[name].item() for part in parts), rel=1e-5)


def test_outputs_by_key_are_found_by_their_names(batch):
    (in_order, modules), (by_name, others) = two(), two(model={"by_name": True})
    assert in_order.training_step(modules, batch) == by_name.training_step(others, batch)


def test_regularisers_are_called_by_keyword_if_the_names_match_and_else_by_position(batch):
    regularisers = [{"use": "mine.py:apart"}, {"use": "mine.py:first_minus_second", "name": "turned", "predictions": ["spread", "mean"]}]
    task, modules = two(regularisers=[*regularisers, {"use": "mine.py:first_minus_second"}])
    mean, spread = modules["model"](batch["features"])
    found = task.training_step(modules, batch)
    assert found["apart"].item() == pytest.approx((2 * spread - mean).sum().item(), rel=1e-5)
    assert found["turned"].item() == pytest.approx((spread - mean).sum().item(), rel=1e-5)
    assert found["first_minus_second"].item() == pytest.approx((mean - spread).sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("function", "values", "every", "expected"),
    [
        (lambda a, b: (a, b), {"b": 2, "a": 1}, False, (1, 2)),
        (lambda x, y: (x, y), {"b": 2, "a": 1}, False, (2, 1)),
        (lambda a: a, {"b": 2, "a": 1}, False, 1),
        (lambda a, y=0: (a, y), {"a": 1, "b": 2}, True, (1, 2)),
        (lambda a, y=0: (a, y), {"a": 1, "b": 2}, False, (1, 0)),
        (lambda **named: named, {"a": 1, "b": 2}, False, {"a": 1, "b": 2}),
        (lambda *all: all, {"a": 1, "b": 2}, False, (1, 2)),
        (lambda a, **named: (a, named), {"a": 1, "b": 2}, True, (1, {"b": 2})),
    ],
)
def test_by_keyword_or_by_position(function, values, every, expected):
    assert call(function, values, arguments_of(function), every) == expected


def test_all_fields_but_the_targets_are_inputs_unless_some_are_named(batch):
    task, modules = two()
    assert task.predictions(modules, batch | {"scale": torch.tensor(0.0)})["mean"].abs().max() == 0
    task, modules = two(inputs=["features"])
    assert task.predictions(modules, batch | {"scale": torch.tensor(0.0)})["mean"].abs().max() > 0
    task, modules = made(
        "torch.nn.Linear", {"in_features": 3, "out_features": 1}, losses={"output": "torch.nn.MSELoss"}, inputs=["features"]
    )
    assert task.training_step(modules, batch)[""] > 0


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("torch.nn.MSELoss", 10.0),
        ("torch.nn.functional.mse_loss", 10.0),
        ("mine.py:mean_square", 10.0),
        ({"use": "torch.nn.SmoothL1Loss", "arguments": {"beta": 0.5}}, 7.5),
    ],
)
@pytest.mark.parametrize("rows", [(), (1,), (4, 5)])
def test_an_example_counts_as_the_mean_over_its_elements(loss, expected, rows):
    task = Module(losses={"output": loss})
    found = task.parts({"output": torch.ones(10, *rows)}, {"target": torch.zeros(10, *rows)})
    assert found[""].item() == pytest.approx(expected)
    if rows == (1,):  # and is not compared with all others
        target = torch.arange(10.0)
        found = task.parts({"output": target[:, None]}, {"target": target})
        assert found[""].item() == 0


def test_weights_of_classes_and_pixels():
    weights, logits = [0.2, 1.0, 3.0], torch.randn(4, 3, 5, 5)
    target = torch.randint(3, (4, 5, 5))
    task = Module(losses={"output": {"use": "torch.nn.CrossEntropyLoss", "arguments": {"weight": weights, "label_smoothing": 0.1}}})
    expected = functional.cross_entropy(logits, target, torch.tensor(weights), reduction="none", label_smoothing=0.1).mean((1, 2)).sum()
    assert task.parts({"output": logits}, {"target": target})[""].item() == pytest.approx(expected.item(), rel=1e-6)


METRICS = {
    "accuracy": ("torchmetrics.Accuracy", {"task": "multiclass", "num_classes": 3, "average": "macro"}),
    "f1": ("torchmetrics.classification.MulticlassF1Score", {"num_classes": 3}),
    "iou": ("torchmetrics.JaccardIndex", {"task": "multiclass", "num_classes": 3}),
    "area": ("torchmetrics.AUROC", {"task": "multiclass", "num_classes": 3, "thresholds": 50}),
    "exact_area": ("torchmetrics.AUROC", {"task": "multiclass", "num_classes": 3}),
}


@pytest.mark.parametrize("sizes", [(60,), (1, 40, 19)])
def test_metrics_of_torchmetrics_are_those_of_all_examples_at_once(sizes):
    torch.manual_seed(0)
    batch = {"inputs": torch.randn(60, 5), "target": torch.randint(3, (60,))}
    metrics = {name: {"use": use, "arguments": arguments} for name, (use, arguments) in METRICS.items()}
    losses = {"output": {"use": "torch.nn.CrossEntropyLoss"}}
    task, modules = made("torch.nn.Linear", {"in_features": 5, "out_features": 3}, losses=losses, metrics=metrics)
    found = evaluated(task, modules, cut(batch, *sizes))
    logits = modules["model"](batch["inputs"])
    assert found["loss"] == pytest.approx(functional.cross_entropy(logits, batch["target"]).item(), rel=1e-6)
    for name, (use, arguments) in METRICS.items():
        expected = getattr(torchmetrics.classification if "classification" in use else torchmetrics, use.rpartition(".")[2])(**arguments)
        assert found[name] == pytest.approx(expected(logits, batch["target"]).item(), abs=1e-6), name


@pytest.mark.parametrize("sizes", [(10,), (3, 7)])
def test_metrics_of_numbers_and_custom_metrics(batch, sizes):
    metrics = {"r2": {"use": "torchmetrics.R2Score", "prediction": "mean"}, "mae": "torchmetrics.MeanAbsoluteError"}
    metrics |= {"spread_error": {"use": "torchmetrics.MeanSquaredError", "prediction": "spread", "target": "width"}}
    metrics |= {"close": {"use": "mine.py:closeness", "arguments": {"within": 0.5}, "mode": "max"}, "ratio": "mine.py:Ratio"}
    metrics |= {"level": {"use": "torchmetrics.MeanMetric", "target": None}}
    task, modules = two(metrics=metrics)
    of_metrics = {"r2": "max", "mae": "min", "spread_error": "min", "close": "max", "ratio": None, "level": None}
    assert {name: task.metrics[name] for name in of_metrics} == of_metrics
    found = evaluated(task, modules, cut(batch, *sizes))
    mean, spread = (value.squeeze(1) for value in modules["model"](batch["features"]))
    off = mean - batch["target"]
    assert found["r2"] == pytest.approx(
        1 - (off.square().sum() / (batch["target"] - batch["target"].mean()).square().sum()).item(), rel=1e-5
    )
    assert found["mae"] == pytest.approx(off.abs().mean().item(), rel=1e-5)
    assert found["spread_error"] == pytest.approx((spread - batch["width"]).square().mean().item(), rel=1e-5)
    assert found["close"] == pytest.approx((off.abs() < 0.5).float().mean().item())
    assert found["ratio"] == pytest.approx((mean.sum() / batch["target"].sum()).item(), rel=1e-5)
    assert found["level"] == pytest.approx(mean.mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (
            "mine.py:Two",
            "metrics.it: mine.py:Two is neither a torchmetrics class nor derived from snaketrain.tasks.metrics.Sum or OfRows nor",
        ),
        ({"use": "torchmetrics.classification.MulticlassAccuracy"}, "metrics.it: torchmetrics.*cannot be made.*num_classes"),
    ],
)
def test_an_object_that_is_not_a_metric_is_refused(metric, words):
    with pytest.raises(SystemExit, match=words):
        Module(losses={"output": "torch.nn.MSELoss"}, metrics={"it": metric})


@pytest.mark.parametrize("sizes", [(10,), (3, 7)])
def test_metrics_that_are_not_sums_get_all_rows_at_once(batch, sizes):
    metrics = {"pearson": {"use": "torchmetrics.PearsonCorrCoef", "prediction": "mean"}, "order": "torchmetrics.SpearmanCorrCoef"}
    metrics |= {"most": {"use": "torchmetrics.MaxMetric", "target": None}, "median": "mine.py:Median"}
    task, modules = two(metrics=metrics)
    assert task.metrics["order"] == "max" and task.metrics["median"] == "min"
    found = evaluated(task, modules, cut(batch, *sizes))
    mean = modules["model"](batch["features"])[0].squeeze(1).detach()
    assert found["pearson"] == pytest.approx(pearsonr(mean, batch["target"])[0], abs=1e-6)
    assert found["order"] == pytest.approx(spearmanr(mean, batch["target"])[0], abs=1e-6)
    assert found["most"] == mean.max() and found["median"] == pytest.approx((mean - batch["target"]).abs().median().item())


def test_metrics_of_the_training_compare_the_first_prediction_with_the_target_of_its_loss(batch):
    task, modules = two(losses={"mean": {"use": "torch.nn.MSELoss", "target": "width"}})
    add_metrics(task, {"mae": Metric(use="torchmetrics.MeanAbsoluteError")}, {}, "module", "train.metrics")
    mean = modules["model"](batch["features"])[0].squeeze(1)
    assert evaluated(task, modules, [batch])["mae"] == pytest.approx((mean - batch["width"]).abs().mean().item())
    assert task.metrics == {"loss": "min", "mae": "min"}


def test_a_metric_of_several_values_is_refused(batch):
    arguments = {"num_classes": 3, "average": "none"}
    metrics = {"it": {"use": "torchmetrics.classification.MulticlassAccuracy", "arguments": arguments}}
    task, modules = made(
        "torch.nn.Linear", {"in_features": 3, "out_features": 3}, losses={"output": "torch.nn.CrossEntropyLoss"}, metrics=metrics
    )
    with pytest.raises(SystemExit, match="metrics.it: MulticlassAccuracy returns several values: reduce them to one"):
        evaluated(task, modules, [{"inputs": batch["features"], "target": torch.arange(10) % 3}])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"predictions": ["mean"], "losses": {"mean": "torch.nn.MSELoss"}},
            r"predictions: the model returns 2 values, but 1 are named \(mean\)",
        ),
        ({"inputs": ["feature"]}, "arguments.inputs: the data has no field 'feature'. It has: features, target, width. Name one"),
        ({"losses": {"mean": {"use": "torch.nn.MSELoss", "target": "y"}}}, "losses.mean.target: the data has no field 'y'"),
        (
            {"losses": {"mean": {"use": "torch.nn.MSELoss", "arguments": {"reduction": "sum"}}}},
            "losses.mean.arguments.reduction: remove it",
        ),
        ({"losses": {"mean": "mine.py:Learning"}}, "losses.mean.use: mine.py:Learning has parameters of its own"),
    ],
)
def test_mismatches_are_errors(batch, arguments, words):
    with pytest.raises(SystemExit, match=words):
        task, modules = two(**arguments)
        task.training_step(modules, batch)


def test_a_missing_key_and_a_class_that_is_not_a_module_are_errors(batch):
    with pytest.raises(SystemExit, match="returns no 'median', but spread, mean. Name some of these"):
        task, modules = made(model={"by_name": True}, predictions=["median"], losses={"median": "torch.nn.MSELoss"})
        task.training_step(modules, batch)
    with pytest.raises(SystemExit, match="model.use: mine.py:Ratio creates a Ratio, not a torch.nn.Module"):
        made("mine.py:Ratio", losses={"output": "torch.nn.MSELoss"})


LOSSES = {"output": {"use": "torch.nn.MSELoss"}}
CONFIGURATION = {"data": {"train": {"use": "mine.py:Data"}}, "model": {"use": "mine.py:Two"}}
WRONG = [
    ({}, "train.task.arguments.losses: is missing, and has no default. See config/README.md"),
    ({"losses": {}}, "train.task.arguments.losses: expects names with values below them, at least 1 item"),
    ({"losses": {"output": {"use": "a.b", "targt": "y"}}}, "train.task.arguments.losses.output.targt: no such argument. Did you mean 'target'?"),
    ({"losses": LOSSES, "metric": {}}, "train.task.arguments.metric: no such argument. Did you mean 'metrics'?"),
    ({"losses": {"y": "torch.nn.MSELoss"}}, "train.task.arguments: losses.y: there is no prediction 'y'. `predictions` has: output."),
    ({"losses": LOSSES, "metrics": {"m": {"use": "mine.py:Ratio", "prediction": "outptu"}}}, "Did you mean 'output'? `predictions` has: output"),
    ({"losses": LOSSES, "regularisers": [{"use": "mine.py:apart"}, {"use": "mine.py:apart"}]}, "two parts of the loss are named 'apart'"),
    ({"losses": LOSSES, "metrics": {"loss": "mine.py:Ratio"}}, "metrics: 'loss' is the name of a loss: call the metric something else"),
    ({"losses": LOSSES, "metrics": {"ratio": "mine.py:Rato"}}, "train.task.arguments.metrics.ratio.use: `mine.py:Rato`: mine.py has no `Rato`. Did you mean `Ratio`?"),
    ({"losses": {"output": "torch.nm.MSELoss"}}, "train.task.arguments.losses.output.use: `torch.nm.MSELoss`: there is no module `torch.nm`"),
    ({"losses": LOSSES, "metrics": {"ratio": "mine.py:Ratio"}}, "select.metric: the task logs no 'accuracy'", "It logs: loss, ratio. Name one"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"), [(arguments, words) for arguments, *words in WRONG], ids=[words[0][:60] for _, *words in WRONG]
)
def test_errors_show_before_any_job(arguments, words):
    with pytest.raises(ConfigurationError) as error:
        examine(CONFIGURATION | {"train": {"task": {"use": "module", "arguments": arguments}}})
    reported = [problem for problem in error.value.problems if words[0] in problem]
    assert len(reported) == 1 and all(word in reported[0] for word in words), error.value.problems


def test_a_metric_of_the_arguments_can_select_the_checkpoint():
    train = {"task": {"use": "module", "arguments": {"losses": LOSSES, "metrics": {"ratio": "mine.py:Ratio"}}}}
    examine(CONFIGURATION | {"train": train, "select": {"metric": "ratio", "mode": "min"}})


def chosen_by(metric: dict | str, **select) -> list[str]:
    """What is wrong with a selection by this metric."""
    task = {"use": "module", "arguments": {"losses": LOSSES, "metrics": {"m": metric}}}
    try:
        examine(CONFIGURATION | {"train": {"task": task}, "select": {"metric": "m"} | select})
    except ConfigurationError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("torchmetrics.R2Score", "max"),
        ("torchmetrics.MeanSquaredError", "min"),
        ("torchmetrics.regression.MeanAbsoluteError", "min"),
        ({"use": "torchmetrics.Accuracy", "arguments": {"task": "multiclass", "num_classes": 3}}, "max"),
        ({"use": "torchmetrics.HammingDistance", "arguments": {"task": "binary"}}, "min"),
        ({"use": "torchmetrics.classification.MulticlassJaccardIndex", "arguments": {"num_classes": 3}}, "max"),
        ("mine.py:Error", "min"),
        ("mine.py:Halved", "min"),
        ({"use": "mine.py:closeness", "mode": "max"}, "max"),
        ({"use": "mine.py:Ratio", "mode": "min"}, "min"),
    ],
)
def test_the_mode_of_a_metric_is_known_before_and_in_the_training(metric, mode):
    """Read from files before any job starts, and from the metric itself in the training: both agree."""
    Path("mine.py").write_text(MINE + HALVED)
    assert Module(losses=LOSSES, metrics={"m": metric}).metrics == {"loss": "min", "m": mode}
    assert chosen_by(metric) == []
    other = {"max": "min", "min": "max"}[mode]
    assert [problem.partition(" (run")[0] for problem in chosen_by(metric, mode=other)] == [
        f"select.mode: is {other}, but for 'm' {'higher' if mode == 'max' else 'lower'} is better. Remove it: the metric decides."
    ]
    if isinstance(metric, str):
        reported = f"train.task.arguments.metrics.m.mode: is {other}, but its class says"
        assert chosen_by({"use": metric, "mode": other})[0].startswith(reported)
        with pytest.raises(SystemExit, match=reported):
            Module(losses=LOSSES, metrics={"m": {"use": metric, "mode": other}})


@pytest.mark.parametrize("metric", ["mine.py:closeness", "mine.py:Ratio", "torchmetrics.SumMetric"])
def test_a_metric_without_a_direction_needs_a_mode(metric):
    assert Module(losses=LOSSES, metrics={"m": metric}).metrics["m"] is None
    (problem,) = chosen_by(metric)
    assert problem.startswith("select.mode: is missing, and 'm' does not declare whether higher or lower is better. Set it to max or min.")
    assert chosen_by(metric, mode="min") == []


def test_classes_are_predicted_with_their_labels():
    task = Module(losses={"output": "torch.nn.CrossEntropyLoss"})
    modules = task.build({"use": "torch.nn.Linear", "arguments": {"in_features": 4, "out_features": 2}}, None, {"label_names": ["a", "b"]})
    batch = {"inputs": torch.randn(6, 4), "target": torch.arange(6) % 2}
    rows = task.predict(task.outputs(modules, batch), batch)
    assert rows["label"].tolist() == batch["target"].tolist() and torch.allclose(rows["probabilities"].sum(1), torch.ones(6))
    task.label_names = []
    assert task.predict(task.outputs(modules, batch), batch).keys() == {"output", "target"}


def test_large_predictions_are_left_out_of_the_table():
    task = Module(predictions=["small", "large"], losses={"small": "torch.nn.MSELoss"}, inputs=["inputs"])
    task.build({"use": "torch.nn.Identity", "arguments": {}}, None, {})
    modules = {"model": lambda inputs: (inputs[:, 0], inputs)}
    for width, reported in ((101, {"small"}), (100, {"small", "large"})):
        batch = {"inputs": torch.randn(3, width)}
        assert task.predict(task.outputs(modules, batch), batch).keys() == reported


def rows_of(task: Module, modules: dict, batch: dict) -> dict:
    """As they come back from the file of scores."""
    with torch.no_grad():
        return {name: torch.from_numpy(value.numpy()) for name, value in task.predict(task.outputs(modules, batch), batch).items()}


def test_targets_are_beside_predictions(batch):
    task, modules = two()
    rows = rows_of(task, modules, batch)
    assert list(rows) == ["mean", "target", "spread", "width"] and torch.equal(rows["width"], batch["width"])
    task = Module(predictions=["target"], losses={"target": "torch.nn.MSELoss"})
    assert torch.equal(task.predict({"target": batch["width"]}, batch)["target_target"], batch["target"])


def test_a_constant_answer_is_the_mean_of_the_targets(batch):
    metrics = {"r2": {"use": "torchmetrics.R2Score", "prediction": "mean"}, "close": "mine.py:closeness"}
    task, modules = two(metrics=metrics)
    (name, found), *others = task.baselines(rows_of(task, modules, batch)).items()
    assert name == "constant" and not others and found.keys() == {"answer", *task.metrics}
    off, spread = ((batch[field] - batch[field].mean()) for field in ("target", "width"))
    assert found["loss_mean"] == pytest.approx(off.square().mean().item(), rel=1e-5)
    assert found["loss_spread"] == pytest.approx(0.5 * spread.abs().mean().item(), rel=1e-5)
    assert found["r2"] == pytest.approx(0, abs=1e-6) and found["close"] == pytest.approx((off.abs() < 1).float().mean().item())
    assert found["answer"].startswith(f"mean: always {batch['target'].mean().item():.4g}, the mean of the targets; spread: always 0.")


def test_a_constant_answer_for_classes_is_their_frequencies():
    metrics = {"share": {"use": "torchmetrics.Accuracy", "arguments": {"task": "multiclass", "num_classes": 3}}}
    batch = {"inputs": torch.randn(10, 4), "target": torch.tensor([2, 2, 2, 2, 2, 0, 0, 0, 1, 1])}
    shares = torch.tensor([0.3, 0.2, 0.5])
    for names in ([], ["a", "b", "c"]):
        task = Module(losses={"output": "torch.nn.CrossEntropyLoss"}, metrics=metrics)
        modules = task.build({"use": "torch.nn.Linear", "arguments": {"in_features": 4, "out_features": 3}}, None, {"label_names": names})
        rows = rows_of(task, modules, batch)
        assert ("probabilities" in rows) == bool(names)
        found = task.baselines(rows)["constant"]
        assert found["loss"] == pytest.approx(-(shares * shares.log()).sum().item(), rel=1e-5) and found["share"] == 0.5
        assert found["answer"].startswith("always class 2")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("torch.nn.BCEWithLogitsLoss", 0.6365),
        ("torch.nn.BCELoss", 0.6365),
        ("mine.py:mean_square", 0.2222),
        ("torch.nn.PoissonNLLLoss", None),
    ],
)
def test_a_constant_answer_is_one_in_the_terms_of_the_loss(use, expected):
    """For logits, the mean is converted into one; if the meaning of a prediction is unknown, there is no constant answer."""
    target = torch.tensor([0.0, 0.0, 1.0] * 4)
    task = Module(losses={"output": use})
    found = task.baselines({"output": torch.rand(12, 1), "target": target})
    assert found["constant"]["loss"] == pytest.approx(expected, abs=1e-4) if expected else found == {}


def test_without_all_targets_there_is_no_constant_answer(batch):
    task, modules = two()
    rows = rows_of(task, modules, batch)
    assert all(task.baselines({name: value for name, value in rows.items() if name != missing}) == {} for missing in rows)
