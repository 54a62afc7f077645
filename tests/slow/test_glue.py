"""The example of GLUE's nine tasks, on made-up data of the same form: all are trained without code, and judged by their own metrics."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pipeline.test_examples import EXAMPLES, SMALL_BERT
from pipeline.workspace import KIND, NEUTRAL, UNKIND, snakemake, write_tokenizer
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

pytestmark = pytest.mark.slow

PAIRS = {
    "mrpc": ("sentence1", "sentence2"), "qqp": ("question1", "question2"), "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"), "wnli": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis"), "stsb": ("sentence1", "sentence2"),
}  # fmt: skip
REACHED = {"cola": 0.7, "sst2": 0.85, "mrpc": 0.85, "stsb": 0.8, "qqp": 0.85, "mnli": 0.75, "qnli": 0.85, "rte": 0.85, "wnli": 0.85}
SMALL = {"epochs": 10, "batch_size": 16, "learning_rate": 3e-3, "warmup": 0.1}


def words(draw: random.Random, kind: int) -> str:
    """Five words, of which this many are kind."""
    return " ".join(draw.sample(draw.choices(KIND, k=kind) + draw.choices([*NEUTRAL, *UNKIND], k=5 - kind), 5))


def row(task: str, draw: random.Random, index: int) -> dict[str, object]:
    """Single sentences have kind words or not; for pairs the number of kind words in each decides."""
    first, second = draw.sample(range(5), 2)
    if task not in PAIRS:
        kind = index % 2
        return {"sentence": words(draw, kind), "label": kind, "idx": index}
    if task == "mnli" and index % 3 == 1:
        second = first
    label = {"stsb": 2.5 + (second - first) / 2, "mnli": 1 if first == second else 2 * (first < second)}.get(task, int(second > first))
    return dict(zip(PAIRS[task], (words(draw, first), words(draw, second)), strict=True)) | {"label": label, "idx": index}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder, draw = tmp_path_factory.mktemp("glue"), random.Random(0)
    config = yaml.safe_load((EXAMPLES / "glue.yaml").read_text())
    for task in config["datasets"]:
        (folder / "data/glue" / task).mkdir(parents=True)
        for split, count in (("train", 900), ("validation_matched" if task == "mnli" else "validation", 150)):
            rows = pd.DataFrame([row(task, draw, index) for index in range(count)])
            rows.to_parquet(folder / f"data/glue/{task}/{split}-00000-of-00001.parquet")
        config["datasets"][task]["dev_fraction"] = 0.15
    write_tokenizer(folder / "models/bert-base-cased")
    config["model"] |= {"source": None, "arguments": SMALL_BERT}
    config |= {"train": config["train"] | SMALL, "compute": {"threads": 1}}
    (folder / "glue.yaml").write_text(yaml.safe_dump(config))
    snakemake(folder, "--configfile", str(folder / "glue.yaml"))
    return folder


def by_class(score: Callable[..., float]) -> Callable[[list[str], list[str]], float]:
    return lambda labels, predicted: score(labels, predicted)


def of_numbers(labels: list[str], predicted: list[str]) -> float:
    return float(spearmanr([*map(float, labels)], [*map(float, predicted)]).statistic)


METRICS = {
    "accuracy": by_class(accuracy_score), "matthews_correlation": by_class(matthews_corrcoef), "spearman": of_numbers,
    "f1": lambda labels, predicted: f1_score(labels, predicted, pos_label="1"),
}  # fmt: skip


@pytest.mark.parametrize("task", REACHED)
def test_a_task_of_glue_learns_and_is_judged_by_its_metric(finished, task):
    metric = yaml.safe_load((finished / "glue.yaml").read_text())["runs"][task]["select.metric"]
    folder = finished / "results/runs" / task
    results = json.loads((folder / "evaluation/test_results.json").read_text())
    with open(folder / "evaluation/test_predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert json.loads((folder / "selection/selection.json").read_text())["metric"] == metric
    assert results["metrics"][metric] == pytest.approx(METRICS[metric](*([row[name] for row in rows] for name in ("label", "predicted"))))
    assert results["metrics"][metric] >= REACHED[task]
    assert task != "stsb" or {"pearson", "spearman"} <= results["metrics"].keys()
