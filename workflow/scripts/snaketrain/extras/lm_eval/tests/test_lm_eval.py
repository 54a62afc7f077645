"""A workflow scores two language models on tasks in files: with the harness's own figures, once, and again where a task changes."""

import csv
import json
import math
import os
from pathlib import Path

import mlflow
import numpy as np
import pytest
import yaml
from pipeline.test_staleness import jobs_in
from pipeline.workspace import KIND, UNKIND, configuration, make_workspace, sentences, snakemake, write_tokenizer

from snaketrain.config.errors import ConfigurationError
from snaketrain.evaluation.paired import Contender, difference
from snaketrain.evaluation.predictions import metric_of, read_predictions
from snaketrain.extras.lm_eval import check
from snaketrain.extras.lm_eval.task_files import tasks_in
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.runtime.strict_json import loads


def metrics(*names: str) -> list[dict[str, object]]:
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


TASKS = {
    "kind_words": {
        "include": "of_questions.yaml",
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": metrics("acc", "acc_norm"),
    },
    "running_text": {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "texts.jsonl"}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    },
    "answer": {
        "include": "of_questions.yaml",
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 2},
        "metric_list": metrics("exact_match"),
        "filter_list": [
            {"name": "whole", "filter": [{"function": "take_first"}]},
            {"name": "one-word", "filter": [{"function": "regex", "regex_pattern": r"(\w+)"}, {"function": "take_first"}]},
        ],
    },
}
OF_QUESTIONS = "process_docs: !function docs.cut\n" + yaml.safe_dump(
    {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "questions.jsonl"}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
)
LIMIT = 30


def write_tasks(folder: Path) -> None:
    tasks = folder / "tasks"
    tasks.mkdir()
    for name, content in TASKS.items():
        (tasks / f"{name}.yaml").write_text(yaml.safe_dump({"task": name} | content))
    (tasks / "of_questions.yaml").write_text(OF_QUESTIONS)
    (tasks / "docs.py").write_text("def cut(docs):\n    return docs.filter(lambda doc: doc['question'])\n")
    questions = [
        {"question": f"this {film} was very" * (n > 1), "choices": [KIND[n % 5], UNKIND[n * 2 % 5]], "answer": n % 2}
        for n, film in enumerate(["film", "story", "plot", "actor"] * 9)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in sentences(12)))


def settings(**of_lm_eval: object) -> dict:
    plain = configuration()
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    return {
        "data": plain["data"] | {"label": None, "labels": None},
        "model": {"use": "transformers.LlamaForCausalLM", "arguments": size},
        "train": plain["train"] | {"task": {"use": "causal_lm"}, "epochs": 1, "learning_rate": 1e-2},
        "select": {"metric": "loss"},
        "lm_eval": {"tasks": list(TASKS), "folder": "tasks", "limit": LIMIT} | of_lm_eval,
        "runs": {"one": {}, "two": {"train.seed": 1, "lm_eval.tasks": ["kind_words"]}},
    }


def write_plain_tokenizer(folder: Path) -> None:
    """One that writes nothing around a text: the harness joins the tokens of a question and of an answer."""
    write_tokenizer(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]", "pad_token": "[PAD]"})
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lm_eval")
    make_workspace(folder, **settings())
    write_plain_tokenizer(folder / "tokenizer")
    write_tasks(folder)
    snakemake(folder)
    return folder


def results(folder: Path, task: str, run: str = "one") -> dict:
    return loads((folder / f"results/runs/{run}/sets/lm_eval.{task}/lm_eval.{task}_results.json").read_text())


def predictions(folder: Path, task: str, run: str = "one") -> list[dict[str, str]]:
    with open(folder / f"results/runs/{run}/sets/lm_eval.{task}/lm_eval.{task}_predictions.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def direct(finished, tmp_path_factory) -> dict:
    """What the harness says of the same folder, called as its documentation does."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    here = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        os.chdir(finished)
        try:
            return lm_eval.simple_evaluate(
                model="hf",
                model_args="pretrained=results/runs/one/selection/model",
                tasks=list(TASKS),
                device="cpu",
                batch_size=3,
                limit=LIMIT,
                task_manager=TaskManager(include_path="tasks", include_defaults=False),
            )
        finally:
            os.chdir(here)


def test_the_figures_are_those_of_the_harness(finished, direct):
    for task, found in direct["results"].items():
        ours, several = results(finished, task), task == "answer"
        wanted = {}
        for key, value in found.items():
            name, comma, way = key.rpartition(",")
            if comma and value != "N/A":
                stderr = "_stderr" * name.endswith("_stderr")
                wanted[name.removesuffix("_stderr") + f"_{way.replace('-', '_')}" * several + stderr] = value
        assert {name: ours["metrics"].get(name, ours.get(name)) for name in wanted} == pytest.approx(wanted, rel=1e-5)
        assert ours["metrics"].keys() <= wanted.keys() and ours["examples"] == found["sample_len"] == (
            12 if task == "running_text" else LIMIT
        )
    assert results(finished, "kind_words")["acc_stderr"] > 0


def test_each_example_has_a_line(finished, direct):
    ours, theirs = predictions(finished, "kind_words"), direct["samples"]["kind_words"]
    assert [float(each["acc"]) for each in ours] == [each["acc"] for each in theirs] and len({each["acc"] for each in theirs}) == 2
    for line, sample in zip(ours, theirs, strict=True):
        doc = sample["doc"]
        assert (line["text"], line["label"]) == (doc["question"], doc["choices"][doc["answer"]])
        assert float(line["loss"]) == pytest.approx(-sample["filtered_resps"][doc["answer"]][0], rel=1e-5)
        assert (line["predicted"] == line["label"]) == (float(line["acc"]) == 1)
    answers = {
        way: [each["filtered_resps"][0] for each in direct["samples"]["answer"] if each["filter"] == way] for way in ("whole", "one-word")
    }
    lines = predictions(finished, "answer")
    assert [each["predicted_whole"] for each in lines] == answers["whole"] and [each["predicted_one_word"] for each in lines] == answers[
        "one-word"
    ]
    assert predictions(finished, "running_text")[0]["text"] == sentences(1)[0][0]


def saved(folder: Path, task: str, run: str = "one"):
    return read_predictions(folder / f"results/runs/{run}/sets/lm_eval.{task}", f"lm_eval.{task}", results(folder, task, run))


def test_each_metric_can_be_resampled(finished):
    for task in TASKS:
        found = saved(finished, task)
        for name, value in found.metrics.items():
            metric = metric_of(name, found)
            assert metric is not None, name
            assert metric(np.ones(len(found.table))) == pytest.approx(value, rel=1e-4)
    texts, losses = saved(finished, "running_text"), predictions(finished, "running_text")
    only_first = np.eye(len(losses))[0]
    wanted = math.exp(float(losses[0]["loss"]) / len(losses[0]["text"].split()))  # of the first text alone
    assert metric_of("word_perplexity", texts)(only_first) == pytest.approx(wanted)
    ours, theirs = (saved(finished, "kind_words", run) for run in ("one", "two"))
    tested = difference("acc", *(Contender([each.metrics["acc"]], [each]) for each in (ours, theirs)))
    assert tested is not None and "paired bootstrap" in tested.test
    assert tested.low <= ours.metrics["acc"] - theirs.metrics["acc"] <= tested.high


def test_the_page_the_card_and_mlflow_show_them(finished):
    page = (finished / "results/comparison/index.html").read_text()
    assert "Evaluation sets" in page and all(f"lm_eval.{task}" in page for task in TASKS)
    card = (finished / "results/runs/one/selection/model/README.md").read_text()
    assert "lm\\_eval.kind\\_words | acc\\_norm" in card
    mlflow.set_tracking_uri(f"sqlite:///{finished}/mlflow.db")
    (run,) = mlflow.search_runs(
        search_all_experiments=True, filter_string="tags.`pipeline.stage` = 'evaluate.lm_eval.answer'", output_format="list"
    )
    assert run.data.params["lm_eval.task"] == "answer" and run.data.params["versions.lm_eval"].startswith("0.4.")
    assert json.loads(run.data.params["lm_eval.files"]).keys() == {"questions.jsonl", "tasks/answer.yaml", "tasks/of_questions.yaml"}
    assert run.data.metrics["test.lm_eval.answer/exact_match_whole"] == results(finished, "answer")["metrics"]["exact_match_whole"]
    assert "test.lm_eval.answer/exact_match_whole_stderr" in run.data.metrics
    artifacts = {each.path for each in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert {"manifest.json", "lm_eval.answer_results.json", "lm_eval.answer_harness.json"} <= artifacts


def test_only_a_changed_task_makes_a_new_start_do_something(finished):
    assert jobs_in(snakemake(finished, "--dry-run").stdout) == set()
    path = finished / "tasks/running_text.yaml"
    path.write_text(path.read_text() + "metadata: {version: 2}\n")
    assert jobs_in(snakemake(finished, "--dry-run").stdout) == {"run_lm_eval one", "compare_runs"}


# --- what is refused before any job


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    make_workspace(tmp_path)
    write_tasks(tmp_path)
    monkeypatch.chdir(tmp_path)
    tasks_in.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"tasks": ["kind_word"]},
            "tasks has no task 'kind_word'. Did you mean 'kind_words'? It has: answer, kind_words, running_text.",
        ),
        ({"tasks": ["all_words"]}, "'all_words' is a group of tasks. Name the tasks themselves: kind_words, answer."),
        ({"tasks": ["of_hub"]}, "of_hub would fetch ai2_arc from the hub, but its job has no network."),
        ({"tasks": ["missing"]}, "missing: tasks/missing.yaml names nothing.jsonl, which does not exist."),
        ({"tasks": ["no_shots"], "fewshot": 2}, "no_shots takes no examples"),
        ({"tasks": ["broken"]}, "tasks/broken.yaml cannot be read:"),
        ({"folder": "elsewhere"}, "lm_eval.folder: elsewhere is not a folder."),
        ({"tasks": []}, "lm_eval.folder has no effect without lm_eval.tasks"),
        ({"tasks": ["answer", "answer"]}, "names 'answer' twice"),
        ({"tasks": ["../answer"]}, "'../answer' cannot be a name"),
    ],
)
def test_what_is_wrong_is_said_before_any_job(here, given, message):
    further = {
        "group": "group: all_words\ntask: [kind_words, answer]\n",
        "of_hub": "task: of_hub\ndataset_path: ai2_arc\n",
        "missing": "task: missing\ndataset_path: json\ndataset_kwargs: {data_files: nothing.jsonl}\n",
        "no_shots": "include: kind_words.yaml\ntask: no_shots\nnum_fewshot: 0\n",
        "broken": "task: [broken\n",
    }
    if (named := (given.get("tasks") or [""])[0]) in ("all_words", *further):
        name = "group" if named == "all_words" else named
        (here / f"tasks/{name}.yaml").write_text(further[name])
    with pytest.raises(ConfigurationError) as error:
        examine(configuration() | settings(**given))
    assert message in " ".join(str(error.value).split())


def test_other_models_and_a_missing_harness_are_refused(here, monkeypatch):
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as error:
        examine(configuration() | {"lm_eval": {"tasks": ["answer"], "folder": "tasks"}})
    assert "pip install -e '.[lm-eval]'" in str(error.value)
    assert "model.use is transformers.BertForSequenceClassification" in " ".join(str(error.value).split())


def test_a_stage_depends_on_its_own_task_alone(here):
    stage = Pipeline(configuration() | settings()).stages["run_lm_eval"]
    assert stage.jobs == [*(f"one/lm_eval.{task}" for task in TASKS), "two/lm_eval.kind_words"]
    assert set(stage.settings("one/lm_eval.running_text")["lm_eval"]["files"]) == {"tasks/running_text.yaml", "texts.jsonl"}
    assert "tasks/docs.py" in stage.code("one/lm_eval.kind_words") and "tasks/docs.py" not in stage.code("one/lm_eval.running_text")
    assert stage.compute("one/lm_eval.answer").processes == 1 and stage.reads("one/lm_eval.answer") == {
        "selection": ("select_checkpoint", "one")
    }
