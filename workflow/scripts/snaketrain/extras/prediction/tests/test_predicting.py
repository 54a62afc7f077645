"""Predictions of new files: in a finished workflow nothing else runs; by hand, and on several processes, they are the same."""

import csv
import json
import shutil
from itertools import product
from pathlib import Path

import pytest
from distributed.running import run_stage, train
from distributed.test_generated_answers import CASES, prepare
from distributed.test_language_models import run
from grammar import WORDS
from pipeline.test_examples import GENERATING, configuration, run_together, write_chats, write_summaries
from pipeline.test_staleness import configure, dry_run, jobs_in
from pipeline.test_text_classification import finish, results_of
from pipeline.workspace import REPOSITORY, snakemake
from pyarrow import parquet

from snaketrain.config.schema import Source
from snaketrain.tracking.mlflow_store import Store

SELECTION = ["--selection", "selection/manifest.json"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def predicted(workspace, tmp_path_factory) -> Path:
    """A finished workspace to which `predict` was added for one of its runs."""
    folder = tmp_path_factory.mktemp("predicted") / "project"
    shutil.copytree(workspace, folder, symlinks=True)
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(REPOSITORY / name)
    evaluated = rows_of(folder / "results/runs/small/evaluation/test_predictions.csv")[:20]
    (folder / "new.csv").write_text("key,said\n" + "".join(f"k{number},{row['text']}\n" for number, row in enumerate(evaluated)))
    configure(folder, runs={"small": {"predict.new": {"path": "new.csv", "text": "said", "id": "key"}}, "other": {"train.seed": 1}})
    assert jobs_in(dry_run(folder)) == {"fetch_input", "predict_inputs small"}
    snakemake(folder)
    return folder


def test_the_workflow_predicts_what_the_evaluation_does(predicted):
    folder = predicted / "results/runs/small/predictions"
    rows = rows_of(folder / "new.csv")
    evaluated = rows_of(predicted / "results/runs/small/evaluation/test_predictions.csv")[:20]
    assert [row["id"] for row in rows] == [f"k{number}" for number in range(20)]
    assert [row["text"] for row in rows] == [row["text"] for row in evaluated]
    assert [float(row["p_kind"]) for row in rows] == pytest.approx([float(row["p_kind"]) for row in evaluated], abs=1e-5)
    assert [row["predicted"] for row in parquet.read_table(folder / "new.parquet").to_pylist()] == [row["predicted"] for row in rows]
    assert jobs_in(dry_run(predicted)) == set()


def test_a_missing_file_and_a_changed_input_make_only_the_predictions_stale(predicted, tmp_path):
    shutil.copytree(predicted, tmp_path / "project", symlinks=True)
    table = tmp_path / "project/results/runs/small/predictions/new.parquet"
    content = table.read_bytes()
    table.unlink()
    planned = dry_run(tmp_path / "project")
    assert "new.parquet: is missing. predict_inputs runs again." in planned and jobs_in(planned) == {"predict_inputs small"}
    table.write_bytes(content)
    with open(tmp_path / "project/new.csv", "a") as file:
        file.write("more,a film\n")
    assert jobs_in(dry_run(tmp_path / "project")) == {"fetch_input", "predict_inputs small"}


def test_mlflow_has_the_predictions(predicted):
    store = Store(f"sqlite:///{predicted}/mlflow.db")
    runs = store.client.search_runs([store.experiment("words")], "tags.`pipeline.stage` = 'train' and tags.`pipeline.run` = 'small'")
    assert {file.path for run in runs for file in store.client.list_artifacts(run.info.run_id, "predictions")} == {
        "predictions/new.csv",
        "predictions/new.parquet",
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Runs of several kinds of label, whose models need not be good."""
    return finish(tmp_path_factory.mktemp("kinds"), epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "processes"), [("pairs", 1), ("topics", 2), ("grades", 1)])
def test_new_files_are_predicted_by_hand_as_by_transformers(finished, tmp_path, run, processes):
    """With a copy of the model's folder, and columns of other names; a row without a text has no prediction."""
    from transformers import pipeline

    folder = shutil.copytree(finished / "results/runs" / run / "selection/model", tmp_path / "copied")
    texts = [{key: row[key] for key in ("text", "text_pair") if key in row} for row in results_of(finished, run)[1][:9]]
    rows = [{"key": f"k{number}", **text} for number, text in enumerate(texts)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [rows[0], {"key": "empty"}, *rows[1:]]))
    words = ["--model", folder, "--input", tmp_path / "new.jsonl", "--id", "key", "--text", *texts[0], "--format", "jsonl"]
    printed = run_stage(
        "predict", [*words, "--output", tmp_path / "out", "--batch-size", "4", "--device", "cpu"], tmp_path / "log", processes
    )
    assert "1 rows without text; dropped" in printed and "new.jsonl, line 2" in printed
    written = rows_of(tmp_path / "out.csv")
    stored = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["id"] for row in written] == [row["id"] for row in stored] == [row["key"] for row in rows]
    loaded = pipeline("text-classification", str(folder), device="cpu", top_k=None)
    for text, row in zip(texts, stored, strict=True):
        (found,) = loaded([text] if "text_pair" in text else [text["text"]])
        expected = {f"p_{each['label']}": each["score"] for each in found} if run != "grades" else {"predicted": found[0]["score"]}
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-4)
        assert {key: row[key] for key in text} == text
    assert {row["predicted"] for row in stored} == (
        {row["predicted"] for row in written} if run != "grades" else {float(r["predicted"]) for r in written}
    )


def generated(folder: Path, processes: int) -> list[str]:
    options = [*SELECTION, "--inputs", "new/manifest.json", "--device", "cpu", "--batch-size", "4"]
    run(folder, "predict_inputs", f"predictions-{processes}", options, {"predict": {"new": {"path": "rows.jsonl"}}}, processes)
    return [row["generated"] for row in rows_of(folder / f"predictions-{processes}/new.csv")]


@pytest.mark.slow
def test_answers_are_those_of_one_process(tmp_path):
    model, columns, strategy = CASES["seq2seq"]
    data = prepare(tmp_path, columns)
    task = {"use": "seq2seq", "arguments": {"generate": {"max_new_tokens": 5}}}
    train(data, tmp_path / "training", 2, model=model, task=task, strategy=strategy, batch_size=12, epochs=2, evaluations_per_epoch=1)
    run(
        tmp_path,
        "select_checkpoint",
        "selection",
        ["--training", "training/manifest.json", "--data", str(data)],
        {"select": {"metric": "loss"}},
    )
    run(tmp_path, "fetch_source", "new", [], {"source": Source(path="rows.jsonl").as_json})
    new = generated(tmp_path, 2)
    assert new == generated(tmp_path, 1) and len(new) == 60 and len(set(new)) > 5


@pytest.fixture(scope="module")
def generated_together(tmp_path_factory) -> Path:
    """The examples that generate text; one of them answers prompts of three words that it was not trained on, the others learn less."""
    folder = tmp_path_factory.mktemp("generated")
    write_summaries(folder)  # with the answers
    write_chats(folder)
    known = {json.loads(line)["prompt"] for line in (folder / "data/answers/reversed.jsonl").read_text().splitlines()}
    unseen = {" ".join(words) for words in product(WORDS, repeat=3)} - known
    (folder / "data/new.csv").write_text("prompt\n" + "".join(f"{words}\n" for words in sorted(unseen)))
    further = {name: {"train": configuration(name)["train"] | {"epochs": 3}} for name in ("summaries", "chats")}
    return run_together(folder, GENERATING, further | {"answers": {"predict": {"new": {"path": "data/new.csv"}}}})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), [("answers", 2), ("summaries", 1), ("chats", 2)])
def test_texts_are_generated_by_hand_as_in_the_evaluation(name, processes, generated_together, tmp_path):
    """From a copy of the model's folder. Prompts have no answers, and a chat ends before the one that is to be given."""
    (run,) = configuration(name)["runs"]
    results = generated_together / f"results/runs/{name}-{run}"
    folder = shutil.copytree(results / "selection/model", tmp_path / "copied")
    rows = rows_of(results / "evaluation/test_predictions.csv")[:30]
    column = {"answers": "question", "summaries": "article", "chats": "messages"}[name]
    texts = [json.loads(row["text"])[:-1] if name == "chats" else row["text"] for row in rows]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({column: text}) + "\n" for text in texts))
    words = ["--model", folder, "--input", tmp_path / "new.jsonl", "--text", column, "--output", tmp_path / "out", "--device", "cpu"]
    generate = ["--generate", "max_new_tokens=5", *(["num_beams=2"] if name == "summaries" else [])]
    printed = run_stage("predict", [*words, "--batch-size", 7, *generate], tmp_path / "log", processes)
    written = rows_of(tmp_path / "out.csv")
    assert list(written[0]) == ["id", "text", "generated"] and "generating by max_new_tokens 5" in printed
    assert [row["generated"] for row in written] == [row["generated"] for row in rows]
    assert len({row["generated"] for row in rows}) > 5


@pytest.mark.slow
def test_the_workflow_generates_answers_to_unlabelled_prompts(generated_together):
    folder = generated_together / "results/runs/answers-answers/predictions"
    rows = rows_of(folder / "new.csv")
    assert len(rows) >= 10 and sum(row["generated"].split() == row["text"].split()[::-1] for row in rows) >= 0.75 * len(rows)
    assert parquet.read_table(folder / "new.parquet").to_pylist() == rows
