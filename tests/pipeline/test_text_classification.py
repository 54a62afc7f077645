"""Pairs of texts, several classes and numbers: trained, compared, and every metric recomputed from the predictions.

Among them metrics that the configuration names: one that selects the checkpoint, some of the evaluation alone, one of the user's own file.
"""

import csv
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from distributed.running import run_stage
from scipy.stats import spearmanr
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)

from pipeline.workspace import KIND, NEUTRAL, UNKIND, configuration, make_workspace, snakemake
from snaketrain.config.schema import Evaluate
from snaketrain.runtime.stages import settings_words
from snaketrain.tracking.mlflow_store import Store

EXAMPLES = 600
TOPICS = {"cast": ["actor"], "content": ["plot", "story"], "praise": KIND, "scorn": UNKIND}
DATASETS = {
    "pairs": {"train": {"path": "pairs.csv"}, "text": ["first", "second"]},
    "topics": {"train": {"path": "topics.jsonl"}, "label": "topics", "label_kind": "classes"},
    "grades": {"train": {"path": "grades.csv"}, "label": "grade", "label_kind": "number"},
}
SMALL_BUT_QUICK = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
RUNS = {
    "pairs": {"data": "pairs", "select.metric": "matthews_correlation", "evaluate.metrics": ["auroc", "f1"]},
    "topics": {
        "data": "topics",
        "select.metric": "micro_f1",
        "evaluate.metrics": ["auroc"],
        "train.task": {"use": "text_classification", "arguments": {"class_weights": "balanced", "label_smoothing": 0.02}},
    },
    "grades": {
        "data": "grades",
        "select.metric": "close",
        "train.metrics": {"spearman": None, "close": {"use": "mine.py:close", "arguments": {"within": 0.5}, "mode": "max"}},
    },
}
ON_END = 'printenv | grep ^SNAKETRAIN_ > "told-$SNAKETRAIN_RUN.txt"; echo no such user >&2; exit 3'
MINE = """
def close(prediction, target, within):
    return ((prediction - target).abs() < within).float()
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return finish(tmp_path_factory.mktemp("kinds"))


def finish(folder: Path, epochs: int = 12) -> Path:
    """A run of each kind of label."""
    usual = configuration()
    common = {"dev_fraction": 0.15, "test_fraction": 0.2, "max_length": 16, "tokenizer": {"path": "tokenizer"}}
    write_raw(folder, random.Random(1))
    (folder / "mine.py").write_text(MINE)
    make_workspace(
        folder,
        data="pairs",
        datasets={name: common | given for name, given in DATASETS.items()},
        model=usual["model"] | {"arguments": usual["model"]["arguments"] | SMALL_BUT_QUICK},
        train=usual["train"] | {"epochs": epochs, "learning_rate": 3e-3, "warmup": 0.1, "evaluations_per_epoch": 1},
        tracking=usual["tracking"] | {"on_end": ON_END},
        runs=RUNS,
    )
    (folder / "said.txt").write_text(snakemake(folder).stderr)
    return folder


def write_raw(folder: Path, draw: random.Random) -> None:
    """The tasks: which text of a pair has more kind words, which topics are named, and the number of kind minus unkind words."""
    pairs, topics, grades = [("first", "second", "label")], [], [("text", "grade")]
    for _ in range(EXAMPLES):
        counts = draw.sample(range(5), 2)
        texts = [sentence(draw, draw.choices(KIND, k=count), 5 - count) for count in counts]
        pairs.append((*texts, "first" if counts[0] > counts[1] else "second"))
        named = [name for name in TOPICS if draw.random() < 0.4]
        others = [word for word in NEUTRAL if not any(word in words for words in TOPICS.values())]
        topics.append({"text": sentence(draw, [draw.choice(TOPICS[name]) for name in named], 4, others), "topics": named})
        kind, unkind = draw.randint(0, 4), draw.randint(0, 4)
        grades.append((sentence(draw, draw.choices(KIND, k=kind) + draw.choices(UNKIND, k=unkind), 3), 5 + (kind - unkind) / 2))
    for name, rows in (("pairs", pairs), ("grades", grades)):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    (folder / "topics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in topics), encoding="utf-8")


def sentence(draw: random.Random, words: list[str], fillers: int, among: list[str] = NEUTRAL) -> str:
    words = words + draw.choices(among, k=fillers)
    draw.shuffle(words)
    return " ".join(words)


def results_of(finished: Path, run: str) -> tuple[dict, list[dict]]:
    folder = finished / "results/runs" / run / "evaluation"
    with open(folder / "test_predictions.csv", newline="", encoding="utf-8") as file:
        return json.loads((folder / "test_results.json").read_text()), list(csv.DictReader(file))


def test_predictions_depend_on_both_texts_of_a_pair(finished):
    results, rows = results_of(finished, "pairs")
    labels, predicted = ([row[key] for row in rows] for key in ("label", "predicted"))
    assert results["metrics"]["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert results["metrics"]["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert results["accuracy"] == results["metrics"]["accuracy"]
    assert results["metrics"]["matthews_correlation"] == pytest.approx(matthews_corrcoef(labels, predicted))
    assert results["metrics"]["f1"] == pytest.approx(f1_score(labels, predicted, pos_label="second"))
    assert results["metrics"]["auroc"] == pytest.approx(roc_auc_score(labels, [float(row["p_second"]) for row in rows]), abs=1e-4)
    assert rows[0]["text"] and rows[0]["text_pair"]
    # reading only the first text is right in 80 % of the cases: always with 0 or 4 kind words, half of the time with 2
    assert results["metrics"]["accuracy"] > 0.88 and results["majority_accuracy"] < 0.65


def test_several_classes_at_once(finished):
    results, rows = results_of(finished, "topics")
    names = list(results["classes"])
    assert names == sorted(TOPICS)
    labels, predicted = (np.array([[name in row[key].split("|") for name in names] for row in rows]) for key in ("label", "predicted"))
    probabilities = np.array([[float(row[f"p_{name}"]) for name in names] for row in rows])
    metrics = results["metrics"]
    assert np.array_equal(predicted, probabilities > 0.5)
    assert metrics["micro_f1"] == pytest.approx(f1_score(labels, predicted, average="micro"))
    assert metrics["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert metrics["exact_match"] == pytest.approx(accuracy_score(labels, predicted))
    assert metrics["auroc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-4)
    clipped = np.clip(probabilities, 1e-6, 1 - 1e-6)  # they are written with six digits; without weights and smoothing
    assert metrics["loss"] == pytest.approx(-np.log(np.where(labels, clipped, 1 - clipped)).mean(), rel=0.01)
    assert metrics["micro_f1"] > 0.93 and metrics["exact_match"] > 0.85
    assert max(baseline["micro_f1"] for baseline in results["baselines"].values()) < 0.75
    assert not all(row["label"] for row in rows), "a text may be of no class"


def test_a_regression_predicts_numbers(finished):
    results, rows = results_of(finished, "grades")
    labels, predicted = (np.array([float(row[key]) for row in rows]) for key in ("label", "predicted"))
    assert results["metrics"] == pytest.approx(
        {
            "loss": mean_squared_error(labels, predicted),
            "mae": mean_absolute_error(labels, predicted),
            "r2": r2_score(labels, predicted),
            "pearson": np.corrcoef(labels, predicted)[0, 1],
            "spearman": spearmanr(labels, predicted)[0],
            "close": (np.abs(labels - predicted) < 0.5).mean(),
        },
        rel=1e-4,
    )
    assert results["metrics"]["r2"] > 0.8
    assert results["metrics"]["loss"] < 0.2 * results["baselines"]["mean"]["loss"]


@pytest.mark.parametrize(("run", "constant", "reached"), [
    ("pairs", "majority", {"auroc": 0.5}), ("topics", "majority", {"auroc": 0.5}), ("grades", "mean", {}),
])  # fmt: skip
def test_constant_answers_are_measured_by_the_metrics_of_the_configuration(finished, run, constant, reached):
    results, rows = results_of(finished, run)
    baseline = results["baselines"][constant]
    assert {name: baseline[name] for name in reached} == reached
    if run == "pairs":
        labels = [row["label"] for row in rows]
        share = labels.count("second") / len(labels)
        f1 = 2 * share / (1 + share) if share >= 0.5 else 0
        assert baseline["matthews_correlation"] == 0
        assert baseline["f1"] == pytest.approx(f1) and baseline["accuracy"] == pytest.approx(max(share, 1 - share))
        assert baseline["loss"] == pytest.approx(-share * np.log(share) - (1 - share) * np.log(1 - share))
    if run == "grades":
        assert "spearman" not in baseline, "the correlation with a constant is undefined"
        labels = np.array([float(row["label"]) for row in rows])
        mean = float(baseline["answer"].split()[1].rstrip(","))
        assert baseline["close"] == pytest.approx((np.abs(labels - mean) < 0.5).mean(), abs=0.02)
        assert baseline["mae"] == pytest.approx(np.abs(labels - mean).mean(), rel=1e-3)


@pytest.mark.parametrize("run", RUNS)
def test_on_end_runs_for_each_run_and_its_failure_changes_nothing(finished, run):
    told = dict(line.partition("=")[::2] for line in (finished / f"told-{run}.txt").read_text().splitlines())
    results, _ = results_of(finished, run)
    assert (told["SNAKETRAIN_RUN"], told["SNAKETRAIN_STATE"], told["SNAKETRAIN_REASON"]) == (run, "finished", "")
    assert told["SNAKETRAIN_FOLDER"] == str(finished / "results/runs" / run)
    figures = json.loads(told["SNAKETRAIN_FIGURES"])
    assert {name: figures[f"test/{name}"] for name in results["metrics"]} == pytest.approx(results["metrics"], rel=1e-4)
    metric = RUNS[run]["select.metric"]
    assert float(told[f"SNAKETRAIN_TEST_{metric.upper()}"]) == pytest.approx(results["metrics"][metric], rel=1e-4)
    assert f"tracking.on_end: the command for {run} failed with exit code 3. Its output is in " in (finished / "said.txt").read_text()
    assert (finished / "results/.on_end.log").read_text() == "no such user\n" * len(RUNS)


@pytest.mark.parametrize("run", RUNS)
def test_dev_metrics_are_those_that_the_checkpoint_was_selected_by(finished, run):
    winner = json.loads((finished / "results/runs" / run / "selection/selection.json").read_text())["winner"]
    results = json.loads((finished / "results/runs" / run / "evaluation/dev_results.json").read_text())
    assert {name: results["metrics"][name] for name in winner["metrics"]} == pytest.approx(winner["metrics"], rel=1e-4)
    assert RUNS[run]["select.metric"] in winner["metrics"] and "auroc" not in winner["metrics"], "which is of the evaluation alone"


def test_transformers_loads_the_selected_models(finished):
    from transformers import pipeline

    loaded = {run: pipeline("text-classification", str(finished / "results/runs" / run / "selection/model"), device="cpu") for run in RUNS}
    for row in results_of(finished, "pairs")[1][:5]:
        found = loaded["pairs"]({"text": row["text"], "text_pair": row["text_pair"]})
        assert found["label"] == row["predicted"] and found["score"] == pytest.approx(float(row["probability"]), abs=1e-4)
    for row in results_of(finished, "topics")[1][:5]:
        found = {each["label"]: each["score"] for each in loaded["topics"]([row["text"]], top_k=None)[0]}
        assert found == pytest.approx({name: float(row[f"p_{name}"]) for name in TOPICS}, abs=1e-4)
    for row in results_of(finished, "grades")[1][:5]:
        assert loaded["grades"]([row["text"]])[0]["score"] == pytest.approx(float(row["predicted"]), abs=1e-3)


@pytest.mark.parametrize(("run", "processes"), [("topics", 2), ("grades", 3)])
def test_several_processes_compute_equal_results(finished, tmp_path, monkeypatch, run, processes):
    """The splits divide evenly neither by the processes nor by the batch size; AUROC and Spearman's correlation need all rows at once."""
    before = finished / "results/runs" / run
    data = next((finished / "results/data").glob(f"{run}-*/manifest.json"))
    paths = {"--output": tmp_path / "manifest.json", "--data": data, "--training": before / "training/manifest.json"}
    paths |= {"--selection": before / "selection/manifest.json", "--run-name": run, "--device": "cpu"}
    given = Evaluate(batch_size=7, metrics=RUNS[run].get("evaluate.metrics", {}))
    settings = settings_words(tmp_path, "evaluate_model", {"evaluate": given.as_json})
    monkeypatch.chdir(finished)  # beside the code of the metric
    run_stage("evaluate_model", [*(word for pair in paths.items() for word in pair), *settings], tmp_path / "log", processes)
    for split in ("dev", "test"):
        expected, found = (json.loads((folder / f"{split}_results.json").read_text()) for folder in (before / "evaluation", tmp_path))
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
        assert found["examples"] == expected["examples"] and found["baselines"] == expected["baselines"]


SMALL_FILES = {"prepare": "report.json", "select": "selection.json", "evaluate": "test_results.json", "compare": "index.html"}


def test_each_stage_is_a_run_in_mlflow_with_params_and_artifacts(finished):
    client = Store(f"sqlite:///{finished}/mlflow.db").client
    found = client.search_runs([each.experiment_id for each in client.search_experiments()])
    once = {"fetch_model": 1, "compare": 1}
    several = dict.fromkeys(("fetch_data", "prepare", "train", "select", "evaluate"), len(RUNS))
    assert Counter(run.data.tags["pipeline.stage"] for run in found) == once | several
    contents = {run.data.tags["pipeline.content"] for run in found}
    for run in found:
        stage, params = run.data.tags["pipeline.stage"], run.data.params
        files = {each.path for each in client.list_artifacts(run.info.run_id)}
        if stage == "train":
            assert len(params) > 30 and "training" in files
            continue
        read = {value for name, value in params.items() if name.startswith("inputs.")}
        assert read <= contents and bool(read) == (not stage.startswith("fetch_")), "each input is what another run made"
        assert {"manifest.json", SMALL_FILES.get(stage, "manifest.json")} <= files and params["identity"]
        assert not [name for name in files if not name.endswith((".json", ".png", ".html", ".csv"))], "neither data nor weights"
        assert stage == "compare" or len(params) > len(read) + 1, "settings"


def test_a_classifier_of_pairs_is_served_by_mlflow(finished, tmp_path):
    registering = pytest.importorskip("snaketrain.extras.registry.registering")
    import mlflow

    shutil.copy(finished / "mlflow.db", tmp_path)
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    pairs, topics = (registering.is_servable(finished / "results/runs" / run) for run in ("pairs", "topics"))
    assert pairs and not topics
    registering.register(finished / "results/runs/pairs", store)
    mlflow.set_tracking_uri(store.uri)
    model = mlflow.pyfunc.load_model("models:/words-pairs@champion")
    rows = results_of(finished, "pairs")[1][:40]  # more than are answered at once
    answers = model.predict([{"text": row["text"], "text_pair": row["text_pair"]} for row in rows])
    assert [answer["label"] for answer in answers] == [row["predicted"] for row in rows]
    assert [answer["score"] for answer in answers] == pytest.approx([float(row["probability"]) for row in rows], abs=1e-4)
    assert model.input_example[0].keys() == {"text", "text_pair"}
    with pytest.raises(mlflow.exceptions.MlflowException, match="Give each pair as"):
        model.predict([{"text": "a good film"}])


def test_runs_of_all_kinds_are_compared(finished):
    page = (finished / "results/comparison/index.html").read_text()
    for run in RUNS:
        assert f'<th scope="row" class="run">{run}</th>' in page
    assert "nothing to compare" in page
    with open(finished / "results/comparison/runs.csv", newline="", encoding="utf-8") as file:
        lines = {line["run"]: line for line in csv.DictReader(file)}
    for run, metric in (("pairs", "accuracy"), ("topics", "micro_f1"), ("grades", "close")):
        assert float(lines[run][f"test_{metric}"]) == pytest.approx(results_of(finished, run)[0]["metrics"][metric])
    assert lines["grades"]["test_accuracy"] == ""
