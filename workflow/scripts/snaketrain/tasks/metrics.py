"""Metrics by class. Most are computed from sums over examples; some, such as AUROC and Spearman's correlation, need the rows of all examples.

Both are the same on any number of processes: sums are added, and rows are gathered, each example once and in order.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from snaketrain.config.references import load
from snaketrain.config.schema import Metric as Setting
from snaketrain.labels import label_kinds
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.metric_names import MODES, Modes, declared_mode, is_short, known_metric

if TYPE_CHECKING:
    from torchmetrics import Metric as Torchmetric

    from snaketrain.data.loading.training_data import Batch
    from snaketrain.tasks.base import Outputs, Task

Sums = dict[str, Tensor]


class Sum:
    """The base class of custom metrics: derive from it and name the class as `{use: my_file.py:MyMetric}`."""

    higher_is_better: bool | None = None  # as in torchmetrics; `select` ranks checkpoints by it

    def sums(self, prediction: Tensor, target: Tensor) -> Sums:
        """Sums over a batch by name: tensors of any shape, which are added over all batches and processes in double precision."""
        raise NotImplementedError(f"{type(self).__name__} must define what it adds up: override `sums`")

    def compute(self, sums: Sums) -> float:
        """The metric from the sums over all examples."""
        raise NotImplementedError(f"{type(self).__name__} must define the metric from its sums: override `compute`")


class OfRows:
    """The base class of custom metrics that are no sums: derived classes get the predictions and targets of all examples at once."""

    higher_is_better: bool | None = None

    def compute(self, *values: Tensor) -> float:
        """The metric from the prediction and the target, on the CPU, with a row for each example."""
        raise NotImplementedError(f"{type(self).__name__} must define the metric from all rows: override `compute`")


Metric: TypeAlias = Sum | OfRows


Rows = dict[str, Tensor]  # a row for each example
Reduce = Callable[[Tensor], Tensor]
Gather = Callable[[Rows], Rows]


class Measuring:
    """What a task measures over the batches of an evaluation: its own sums, and the metrics that the configuration names."""

    def __init__(self, task: "Task"):
        self.task = task
        self.own: Sums = {}
        self.of_metrics: dict[str, Sums] = {}
        self.rows: dict[str, list[Tensor]] = {}

    def add(self, outputs: "Outputs", batch: "Batch", examples: int, filler: bool = False) -> None:
        """Of a `filler`, an example that was evaluated elsewhere, only the shapes count: all processes add the same names."""
        add_up(self.own, self.task.evaluation_step(outputs, batch), filler)
        for name, metric in self.task.measured.items():
            values = self.task.metric_inputs(name, outputs, batch)
            if not isinstance(metric, OfRows):
                add_up(self.of_metrics.setdefault(name, {}), metric.sums(*values), filler)
            elif not filler:
                self.keep(name, values, examples)

    def keep(self, name: str, values: tuple[Tensor, ...], examples: int) -> None:
        for number, value in enumerate(values):
            if len(value) != examples:
                raise SystemExit(
                    f"metrics.{name}: needs a row for each example, but this task gives {len(value)} for {examples} examples. "
                    "Use a metric that adds up, such as one with `thresholds`."
                )
            # numpy has no bfloat16
            self.rows.setdefault(f"{name}.{number}", []).append(value.float().cpu() if value.dtype == torch.bfloat16 else value.cpu())

    def metrics(self, total: Reduce = lambda tensor: tensor, gather: Gather = lambda rows: rows) -> dict[str, float]:
        """`total` adds a sum over all processes; `gather` collects the rows of all processes in the order of the examples."""
        found = self.task.measure({name: total(value) for name, value in self.own.items()})
        of_metrics = {name: {key: total(value) for key, value in sums.items()} for name, sums in self.of_metrics.items()}
        needed = [name for name, metric in self.task.measured.items() if isinstance(metric, OfRows)]
        rows = gather({name: torch.cat(parts) for name, parts in self.rows.items()}) if needed else {}
        for name, metric in self.task.measured.items():
            found[name] = metric.compute(*columns(rows, name)) if isinstance(metric, OfRows) else metric.compute(of_metrics[name])
        return found


def columns(rows: Mapping[str, Tensor], name: str) -> list[Tensor]:
    return [rows[key] for key in sorted(rows) if key.rpartition(".")[0] == name]


def add_up(totals: Sums, values: Mapping[str, Tensor], filler: bool) -> None:
    for name, value in values.items():
        totals[name] = totals.get(name, 0.0) + (torch.zeros_like(value) if filler else value).double()


class Mean(Sum):
    """The mean of a function that returns one value for each example."""

    def __init__(self, where: str, function: Callable[..., Tensor]):
        self.where, self.function = where, function

    def sums(self, *values: Tensor) -> Sums:
        found = self.function(*values)
        if found.shape != values[0].shape[:1]:
            raise SystemExit(
                f"{self.where}: the function returns values of shape {list(found.shape)} for {len(values[0])} examples. It must return one for "
                "each, or use a class derived from snaketrain.tasks.metrics.Sum, or from OfRows if it needs all examples at once."
            )
        return {"total": found.sum(), "count": torch.tensor(len(found))}

    def compute(self, sums: Sums) -> float:
        return float(sums["total"] / sums["count"])


class OfTorchmetrics:
    def __init__(self, where: str, metric: "Torchmetric"):
        self.where, self.metric, self.higher_is_better = where, metric, metric.higher_is_better

    def update(self, values: tuple[Tensor, ...]) -> None:
        """Metrics of two classes take the probability of the second one, where there is a probability of each."""
        prediction, *others = values
        if type(self.metric).__name__.startswith("Binary") and others and prediction.ndim == 2 and others[0].ndim == 1:
            if prediction.shape[1] > 2:
                raise SystemExit(
                    f"{self.where}: {type(self.metric).__name__} is for two classes, and there are {prediction.shape[1]}. Name a metric of "
                    "several classes."
                )
            prediction = prediction[:, -1]
        self.metric.update(prediction, *others)

    def result(self) -> float:
        found: object = self.metric.compute()
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise SystemExit(
                f"{self.where}: {type(self.metric).__name__} returns several values: reduce them to one, such as by `average: macro` in its "
                "arguments."
            )
        return float(found)


class SumsOfTorchmetrics(OfTorchmetrics, Sum):
    """A metric of torchmetrics whose state consists of sums; its own synchronisation is switched off."""

    def sums(self, *values: Tensor) -> Sums:
        self.metric.to(values[0].device).reset()
        if len(values[0]):  # a batch of texts of one token has none to predict
            self.update(values)
        return {state: getattr(self.metric, state) for state in self.metric._defaults}

    def compute(self, sums: Sums) -> float:
        self.metric.reset()
        for state in self.metric._defaults:
            kind = getattr(self.metric, state).dtype
            setattr(self.metric, state, sums[state] if kind.is_floating_point else sums[state].round().to(kind))
        self.metric._update_count = 1  # otherwise it would warn that it was not updated
        return self.result()


class RowsOfTorchmetrics(OfTorchmetrics, OfRows):
    """A metric of torchmetrics that keeps every prediction, or cannot be added up: it is updated once, with all rows."""

    def compute(self, *values: Tensor) -> float:
        self.metric.to("cpu").reset()
        self.update(values)
        return self.result()


def adds_up(metric: "Torchmetric") -> bool:
    """Whether the state consists of sums, so that it is the same however the examples are split."""
    return bool(metric._defaults) and all(
        isinstance(start, Tensor) and getattr(metric._reductions[state], "__name__", "") == "dim_zero_sum"
        for state, start in metric._defaults.items()
    )


def make_metric(where: str, use: str, arguments: JsonObject, classes: int | None = None) -> Metric:
    """`classes`: their number in the data, for metrics that take it and were not given it."""
    found = load(use)
    if inspect.isfunction(found):
        return Mean(where, partial(found, **arguments))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*will save all targets and predictions in the buffer")  # it is updated once
            made = found(**completed(found, arguments, classes))
    except (TypeError, ValueError) as error:
        raise SystemExit(f"{where}: {use} cannot be made with the arguments {arguments}: {error}. Correct them.") from error
    if any(each.__module__.startswith("torchmetrics") for each in type(made).__mro__):
        made.sync_on_compute = made._to_sync = False
        return SumsOfTorchmetrics(where, made) if adds_up(made) else RowsOfTorchmetrics(where, made)
    if not callable(getattr(made, "compute", None)):
        raise SystemExit(
            f"{where}: {use} is neither a torchmetrics class nor derived from snaketrain.tasks.metrics.Sum or OfRows nor a function. "
            "Use one of these."
        )
    return made


def completed(found: Callable[..., object], arguments: JsonObject, classes: int | None) -> JsonObject:
    """With the number of classes where it is missing, and with floats where torchmetrics insists on them: `beta: 2`."""
    takes = inspect.signature(found).parameters
    wanted = [name for name in ("num_classes", "num_labels") if classes and name in takes and name not in arguments]
    floats = {name for name, each in takes.items() if each.annotation is float}
    given = {name: float(value) if name in floats and type(value) is int else value for name, value in arguments.items()}
    return given | dict.fromkeys(wanted, classes)


def metrics_of_settings(given: Mapping[str, Setting], facts: JsonObject, where: str) -> tuple[dict[str, Metric], Modes]:
    """The metrics that a section names, and whether higher or lower is better; `facts` are those of the data."""
    measured: dict[str, Metric] = {}
    modes: Modes = {}
    classes = len(facts.get("label_names") or ()) or None
    for name, setting in given.items():
        place, use, arguments, mode = f"{where}.{name}", setting.use, resolved(setting.arguments), None
        if is_short(use):
            known = known_metric(use, problem_type_of(facts), place)
            use, mode, arguments = known.use_for(classes, arguments, place), known.mode, {**known.arguments, **arguments}
        measured[name] = metric = make_metric(place, use, arguments, classes)
        modes[name] = declared_mode(place, mode or MODES.get(getattr(metric, "higher_is_better", None)), setting.mode)
    return measured, modes


def problem_type_of(facts: JsonObject) -> str:
    kind = label_kinds().get(facts.get("label_kind", ""))
    return kind.head.problem_type if kind else ""


# --- Metrics of predicted numbers, in double precision and two passes: from sums, one pass would lose a digit for each by which the mean
# exceeds the deviation.


class OfNumbers(OfRows):
    higher_is_better = True
    function = ""  # of scipy or scikit-learn, which are imported where they are used, since each training imports this file

    def compute(self, *values: Tensor) -> float:
        predicted, true = (value.double().numpy() for value in values)
        with warnings.catch_warnings():  # of what is undefined, such as the correlation of a constant, which becomes NaN
            warnings.simplefilter("ignore")
            return float(self.score(true, predicted))

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        module, _, name = self.function.rpartition(".")
        found = getattr(importlib.import_module(module), name)(true, predicted)
        return getattr(found, "statistic", found)


class Pearson(OfNumbers):
    function = "scipy.stats.pearsonr"

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        return super().score(true, predicted) if len(true) > 1 else np.nan


class Spearman(OfNumbers):
    function = "scipy.stats.spearmanr"


class Kendall(OfNumbers):
    function = "scipy.stats.kendalltau"


class Concordance(OfNumbers):
    """Lin's coefficient, of the unbiased variances."""

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        if len(true) < 2:
            return np.nan
        (of_true, of_both), (_, of_predicted) = np.cov(true, predicted)
        return float(2 * of_both / (of_true + of_predicted + (true.mean() - predicted.mean()) ** 2))


class R2(OfNumbers):
    function = "sklearn.metrics.r2_score"

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        return super().score(true - true[0], predicted - true[0])  # so that the deviations of a constant are 0, not rounding errors


class ExplainedVariance(R2):
    function = "sklearn.metrics.explained_variance_score"


class Rmse(OfNumbers):
    higher_is_better = False
    function = "sklearn.metrics.root_mean_squared_error"


class Mape(OfNumbers):
    higher_is_better = False
    function = "sklearn.metrics.mean_absolute_percentage_error"


# --- Metrics of generated texts as sums over examples. `exact_match`: the share of texts that equal their reference but for white space.
# `token_f1`: of words, normalised as for SQuAD. `rouge1`, `rouge2`, `rougeL`: the F-measures, without stemming, as the package rouge-score
# computes them. `bleu`: of the whole corpus, from 0 to 100, as sacrebleu computes it.

ROUGE = ("rouge1", "rouge2", "rougeL")
MEANS = ("exact_match", "token_f1", *ROUGE)


def text_sums(generated: Sequence[str], references: Sequence[str]) -> dict[str, Tensor]:
    """Sums over the texts of a batch: of each metric that is a mean, and the counts of n-grams that make BLEU."""
    from sacrebleu.metrics.bleu import BLEU
    from torchmetrics.functional.text import rouge_score, squad

    totals = dict.fromkeys(MEANS, 0.0)
    for text, reference in zip(generated, references, strict=True):  # one by one, so that batches make no difference
        answer: JsonObject = {"answers": {"text": [reference], "answer_start": [0]}, "id": ""}
        rouge = rouge_score(text, reference, rouge_keys=ROUGE)
        totals["exact_match"] += text.split() == reference.split()
        totals["token_f1"] += float(squad({"prediction_text": text, "id": ""}, answer)["f1"]) / 100
        for name in ROUGE:
            totals[name] += float(rouge[f"{name}_fmeasure"])
    bleu = BLEU().corpus_score(generated, [references])
    counts = {"answers": [len(generated)], "bleu_right": bleu.counts, "bleu_all": bleu.totals, "bleu_lengths": [bleu.sys_len, bleu.ref_len]}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in (totals | counts).items()}


def text_metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """The metrics from the sums over all texts."""
    from sacrebleu.metrics.bleu import BLEU

    right, of_all, (length, reference_length) = (sums[f"bleu_{name}"].round().long().tolist() for name in ("right", "all", "lengths"))
    bleu = BLEU.compute_bleu(right, of_all, length, reference_length, smooth_method="exp")
    return {name: float(sums[name] / sums["answers"]) for name in MEANS} | {"bleu": bleu.score}
