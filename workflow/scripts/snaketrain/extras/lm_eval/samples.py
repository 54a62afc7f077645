"""What the harness found, in the form of our results: metrics with standard errors, and a row for each example."""

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from snaketrain.evaluation.results import Rows, Table
from snaketrain.runtime.strict_json import JsonObject

Sample: TypeAlias = JsonObject  # of one example and one filter
# of running texts, whose metrics are a log-likelihood and a size: the columns of the quotient and of the size, and its unit in nats
OF_TEXTS = {
    "word_perplexity": ("loss_per_word", "words", 1.0),
    "byte_perplexity": ("loss_per_byte", "bytes", 1.0),
    "bits_per_byte": ("bits_per_byte", "bytes", math.log(2)),
}


def by_filter(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples of each filter, in the order of the examples: a filter is a way of reading an answer."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample["filter"], []).append(sample)
    return {name: sorted(each, key=lambda sample: sample["doc_id"]) for name, each in found.items()}


def named(metric: str, name: str, several: bool) -> str:
    """`exact_match`, or of several filters `exact_match_strict_match`."""
    return f"{metric}_{name.replace('-', '_')}" if several else metric


def figures(found: JsonObject, several: bool) -> tuple[dict[str, float], dict[str, float]]:
    """The metrics, and their standard errors, from keys such as `acc,none` and `acc_stderr,none`."""
    metrics: dict[str, float] = {}
    errors: dict[str, float] = {}
    for key, value in found.items():
        metric, comma, name = key.rpartition(",")
        if comma and is_figure(value):
            whose = metric.removesuffix("_stderr")
            (metrics if whose == metric else errors)[named(whose, name, several)] = float(value)
    return metrics, {f"{name}_stderr": value for name, value in errors.items()}


def is_figure(value: object) -> bool:
    return isinstance(value, bool | int | float | np.number)


def rows_of(task: Any, samples: dict[str, list[Sample]]) -> tuple[Table, Rows]:
    """The texts, and what is known of each example: the right answer, the model's, the loss of the right one, and each metric."""
    first = next(iter(samples.values()))
    choices = [task.doc_to_choice(each["doc"]) for each in first] if task.OUTPUT_TYPE == "multiple_choice" else None
    rows: dict[str, list[Any]] = {}
    if task.OUTPUT_TYPE != "loglikelihood_rolling":
        rows["label"] = [answer(each["target"], choices and choices[row]) for row, each in enumerate(first)]
    for name, found in samples.items():
        if choices:
            likely = [
                [likelihood for likelihood, _ in each["filtered_resps"][: len(among)]] for each, among in zip(found, choices, strict=True)
            ]
            rows["predicted"] = [answer(np.argmax(each), among) for each, among in zip(likely, choices, strict=True)]
        elif task.OUTPUT_TYPE == "generate_until":
            rows[named("predicted", name, len(samples) > 1)] = [answer(each["filtered_resps"][0]) for each in found]
    if None not in (losses := [loss(task, each, choices and choices[row]) for row, each in enumerate(first)]):
        rows["loss"] = losses
    for name, found in samples.items():
        for metric in found[0]["metrics"]:
            values: list[Any] = [each.get(metric) for each in found]
            if metric in OF_TEXTS and task.OUTPUT_TYPE == "loglikelihood_rolling":
                quotient, size, unit = OF_TEXTS[metric]
                rows[quotient] = [-likelihood / max(length, 1) / unit for likelihood, length in values]
                rows[size] = [length for _, length in values]
            elif metric != "perplexity" and all(map(is_figure, values)):  # of that, the harness has the log-likelihood
                rows[named(metric, name, len(samples) > 1)] = values
    columns = {name: np.array(values, dtype=None if is_figure(values[0]) else object) for name, values in rows.items()}
    texts = [None if task.OUTPUT_TYPE == "loglikelihood_rolling" else task.doc_to_text(each["doc"]) for each in first]
    # without the solved examples in front of it, where the question is a text
    return {
        "text": [text if isinstance(text, str) else str(each["arguments"][0][0]) for text, each in zip(texts, first, strict=True)]
    }, columns


def answer(found: Any, choices: list[str] | None = None) -> str:
    """In words, where it is the number of a choice; several right ones one after the other."""
    if isinstance(found, list | tuple):
        return " | ".join(answer(each, choices) for each in found)
    if choices and isinstance(found, int | np.integer) and 0 <= found < len(choices):
        return str(choices[found]).strip()
    return str(found).strip()


def loss(task: Any, sample: Sample, choices: list[str] | None) -> float | None:
    """Of the right answer, or of the whole text; None where there are several right ones, or the answer is generated."""
    found, right = sample["filtered_resps"], sample["target"]
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        return -float(found[0])
    if task.OUTPUT_TYPE == "loglikelihood":
        return -float(found[0][0])
    if choices and right in choices:
        right = choices.index(right)
    return -float(found[right][0]) if choices and isinstance(right, int) and 0 <= right < len(choices) else None
