"""Every file of config/examples runs, unchanged except for its size, and trains a model that has learnt something.

An example that is added needs a case here: what writes its files, what makes it small, and what it must reach.
"""

import csv
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from grammar import WORDS, texts, write_texts, write_word_tokenizer
from sklearn.metrics import r2_score

from pipeline.test_staleness import jobs_in
from pipeline.workspace import KIND, NEUTRAL, REPOSITORY, SPECIAL, UNKIND, sentences, snakemake, write_tokenizer
from snaketrain.orchestration.preflight import examine
from snaketrain.tracking.mlflow_store import Store

EXAMPLES = REPOSITORY / "config/examples"


class Case(NamedTuple):
    """`write` puts files where the example looks for them; `smaller` replaces settings; `reaches`: from what to what the test metrics go."""

    write: Callable[[Path], None]
    smaller: dict[str, Any]
    reaches: dict[str, tuple[float, float]]


def copy_code(folder: Path) -> None:
    shutil.copytree(EXAMPLES, folder / "config/examples", ignore=shutil.ignore_patterns("*.yaml", "__pycache__"))


def write_sst2(folder: Path) -> None:
    """`sentence<TAB>label` without a header line, in files without an ending; half of each is kind."""
    rows = iter(sentences(800))
    (folder / "data/sst2").mkdir(parents=True)
    for split, count in (("train", 600), ("dev", 80), ("test", 120)):
        lines = [f"{text}\t{label}\n" for text, label in (next(rows) for _ in range(count))]
        (folder / f"data/sst2/sentiment-{split}").write_text("".join(lines))
    write_tokenizer(folder / "models/bart-base")


def write_grammar(folder: Path) -> None:
    """Training texts where the example looks for them; others of a known perplexity for the test."""
    for path, (count, seed) in {"text/grammar.txt": (2500, 0), "dev.txt": (200, 1), "test.txt": TESTED}.items():
        write_texts(folder / "data" / path, count, seed)
    write_word_tokenizer(folder / "models/tokenizer")


def write_answers(folder: Path) -> None:
    """Prompts of three random words, which cannot be predicted, and answers that reverse them."""
    draw = random.Random(0)
    (folder / "data/answers").mkdir(parents=True)
    prompts = [draw.choices(WORDS, k=3) for _ in range(2000)]
    pairs = [{"prompt": " ".join(words), "answer": " ".join(reversed(words))} for words in prompts]
    (folder / "data/answers/reversed.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    write_word_tokenizer(folder / "models/SmolLM2-135M")


def write_summaries(folder: Path) -> None:
    """Sources of three random words, and targets that reverse them."""
    write_answers(folder)
    rows = [json.loads(line) for line in (folder / "data/answers/reversed.jsonl").read_text().splitlines()]
    (folder / "data/summaries").mkdir()
    lines = [json.dumps({"article": row["prompt"], "summary": row["answer"]}) + "\n" for row in rows]
    (folder / "data/summaries/reversed.jsonl").write_text("".join(lines))
    write_word_tokenizer(folder / "models/t5-small")


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|> ' + message['role'] + ' ' + message['content'] + ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)


def write_chats(folder: Path) -> None:
    """Chats of two turns, in each of which the assistant reverses the user's two words."""
    draw = random.Random(0)
    (folder / "data/chats").mkdir(parents=True)
    lines = []
    for _ in range(800):
        turns = [draw.choices(WORDS, k=2) for _ in range(2)]
        said = [(("user", words), ("assistant", words[::-1])) for words in turns]
        messages = [{"role": role, "content": " ".join(words)} for turn in said for role, words in turn]
        lines.append(json.dumps({"messages": messages}) + "\n")
    (folder / "data/chats/reversed.jsonl").write_text("".join(lines))
    write_word_tokenizer(folder / "models/SmolLM2-135M-Instruct", more=("<|im_start|>", "<|im_end|>", "user", "assistant"))
    (folder / "models/SmolLM2-135M-Instruct/chat_template.jinja").write_text(CHAT_TEMPLATE)


TESTED = (300, 2)
PERPLEXITY = texts(*TESTED)[1]  # about 3.4; a model that sees one word reaches 6.8, one that sees none 8.7


LABELLED_COLUMNS = "index\tquestion\tsentence\tlabel\n"


def write_qnli(folder: Path) -> None:
    """Whether the sentence has more kind words than the question: reading only one of the two is right four times out of five."""
    draw = random.Random(0)
    (folder / "data/QNLI").mkdir(parents=True)
    for split, count in (("train", 700), ("dev", 150), ("test", 150)):
        lines = [LABELLED_COLUMNS if split != "test" else LABELLED_COLUMNS.replace("\tlabel", "")]
        for index in range(count):
            kind = draw.sample(range(5), 2)
            texts = [" ".join(draw.sample(draw.choices(KIND, k=n) + draw.choices(NEUTRAL, k=5 - n), 5)) for n in kind]
            label = ["entailment" if kind[1] > kind[0] else "not_entailment"] if split != "test" else []
            lines.append("\t".join([str(index), *texts, *label]) + "\n")
        (folder / f"data/QNLI/{split}.tsv").write_text("".join(lines))
    write_tokenizer(folder / "models/bert-base-cased")


def write_pretrained(folder: Path) -> None:
    """Sentences as SST-2 has them, and a random encoder in place of the published one."""
    import torch
    from transformers import BertConfig, BertModel

    rows = iter(sentences(800))
    (folder / "data/SST-2").mkdir(parents=True)
    for split, count in (("train", 600), ("dev", 200)):
        lines = ["sentence\tlabel\n", *(f"{text}\t{label}\n" for text, label in (next(rows) for _ in range(count)))]
        (folder / f"data/SST-2/{split}.tsv").write_text("".join(lines))
    torch.manual_seed(0)
    size = SMALL_BERT | {"vocab_size": len(SPECIAL + NEUTRAL + KIND + UNKIND), "max_position_embeddings": 128}
    BertModel(BertConfig(**size)).save_pretrained(folder / "models/bert-base-uncased")
    write_tokenizer(folder / "models/bert-base-uncased")


def write_reviews(folder: Path) -> None:
    """Sentences of two sources in one file; those of the second occur twice."""
    with open(folder / "reviews.csv", "w", newline="", encoding="utf-8") as file:
        rows = [(text, label, "rotten_tomatoes") for text, label in sentences(700)]
        rows += [(f"{text} {text}", label, "imdb") for text, label in sentences(900)[700:]]
        csv.writer(file).writerows([("text", "label", "source"), *rows])
    write_tokenizer(folder / "tokenizer")


PAD, _, START, END = range(len(SPECIAL))
SMALL_BART = {"d_model": 32, "max_position_embeddings": 256, "bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
SMALL_BART |= {"decoder_start_token_id": END, "forced_eos_token_id": END}
SMALL_BART |= {
    f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in {"layers": 1, "attention_heads": 2, "ffn_dim": 64}.items()
}

SMALL_BERT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "initializer_range": 0.2}
SMALL_BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

SMALL_T5 = {"d_model": 48, "d_kv": 24, "d_ff": 96, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}

CASES = {
    "image_classification": Case(copy_code, {}, {"accuracy": (0.93, 1)}),  # always the largest class: 0.1
    "streamed_digits": Case(copy_code, {}, {"accuracy": (0.85, 1)}),
    "segmentation": Case(
        copy_code,
        {"data": {"train": {"arguments": {"count": 600}}}, "train": {"epochs": 8}},
        {"overlap": (0.6, 1), "pixels": (0.9, 1)},  # background everywhere: 0.25 and 0.76
    ),
    "regression_regularised": Case(copy_code, {"train": {"epochs": 6}}, {"sine_r2": (0.85, 1), "cosine_r2": (0.85, 1)}),
    "gan": Case(copy_code, {}, {"distance": (0.01, 0.12)}),  # one mode of eight gives 0.6, four of them 0.2
    "glue_pair": Case(
        write_qnli,
        {
            "data": {"dev_fraction": 0.15},
            "model": {"source": None, "arguments": SMALL_BERT},
            "train": {"batch_size": 16, "learning_rate": 3e-3, "warmup": 0.1, "epochs": 10},
        },
        {"accuracy": (0.88, 1), "f1": (0.88, 1), "matthews_correlation": (0.76, 1)},
    ),
    "sst2_bart": Case(
        write_sst2,
        {"model": {"source": None, "arguments": SMALL_BART}, "train": {"batch_size": 16, "learning_rate": 2e-3, "epochs": 2}},
        {"accuracy": (0.85, 1)},  # always the larger class: 0.5
    ),
    "evaluation_sets": Case(
        write_reviews,
        {
            "data": {"train": {"package": None, "path": "reviews.csv"}, "tokenizer": {"package": None, "path": "tokenizer"}},
            "evaluation_sets": {"imdb": {"package": None, "path": "reviews.csv"}},
            "model": {"use": "transformers.BertForSequenceClassification", "source": None, "arguments": SMALL_BERT},
            "train": {"batch_size": 16, "learning_rate": 3e-3, "epochs": 4},
        },
        {"accuracy": (0.9, 1)},
    ),
    "adapters": Case(
        write_pretrained,
        {"data": {"dev_fraction": 0.15}, "train": {"batch_size": 16, "learning_rate": 1e-2, "epochs": 8}},
        {"accuracy": (0.85, 1)},
    ),
    "causal_lm": Case(
        write_grammar,
        {
            "data": {"dev": {"path": "data/dev.txt"}, "test": {"path": "data/test.txt"}},
            "model": {"arguments": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}},
            "train": {"block_length": 32, "batch_size": 16, "epochs": 5, "learning_rate": 6e-3, "evaluations_per_epoch": 1},
        },
        {"perplexity": (0.97 * PERPLEXITY, 1.1 * PERPLEXITY)},  # a lower value would mean that the answer leaked
    ),
    "answers": Case(
        write_answers,
        {
            "model": {
                "use": "transformers.LlamaForCausalLM",
                "source": None,
                "arguments": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2},
            },
            "train": {"epochs": 8, "learning_rate": 6e-3, "evaluations_per_epoch": 1},
            "evaluate": {"generate": {"max_new_tokens": 5}},
        },
        {"perplexity": (1, 1.3), "exact_match": (0.8, 1)},  # with the prompts the perplexity could not be less than 2.5
    ),
    "summaries": Case(
        write_summaries,
        {
            "data": {"end_token": "<|endoftext|>"},  # the tokenizer of T5 writes one by itself
            "model": {"source": None, "arguments": SMALL_T5},
            "train": {
                "task": {"arguments": {"generate": {"max_new_tokens": 5}}},
                "epochs": 10,
                "learning_rate": 5e-3,
            },
            "evaluate": {"generate": {"max_new_tokens": 5, "num_beams": 2}},
        },
        {"exact_match": (0.9, 1), "rougeL": (0.95, 1)},  # by chance: 1 in 512
    ),
    "chats": Case(
        write_chats,
        {
            "model": {
                "use": "transformers.LlamaForCausalLM",
                "source": None,
                "arguments": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2},
            },
            "train": {"epochs": 5, "learning_rate": 6e-3, "evaluations_per_epoch": 1},
            "evaluate": {"generate": {"max_new_tokens": 5}},
        },
        {"perplexity": (1, 1.3), "exact_match": (0.9, 1)},
    ),
}

GENERATING = ["answers", "summaries", "chats"]
WITH_SETS = ["evaluation_sets"]
OF_CLASSES = [name for name, case in CASES.items() if case.write is copy_code]


def merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def test_every_example_has_a_case():
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == {*CASES, "glue"}, "which tests/slow/test_glue.py runs"


def configuration(name: str) -> dict[str, Any]:
    as_it_is = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return merged(merged(as_it_is, CASES[name].smaller), {"compute": {"threads": 1}})


def run_all(folder: Path, config: dict[str, Any]) -> None:
    (folder / "example.yaml").write_text(yaml.safe_dump(config))
    snakemake(folder, "--configfile", str(folder / "example.yaml"), tried=True)
    assert {path.name for path in (folder / "results/runs").iterdir()} == set(config["runs"])


def assert_it_has_learnt(name: str, folder: Path, run: str) -> None:
    results = json.loads((folder / f"results/runs/{run}/evaluation/test_results.json").read_text())
    for metric, (least, most) in CASES[name].reaches.items():
        assert least <= results["metrics"][metric] <= most, metric


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*OF_CLASSES, *WITH_SETS, *GENERATING)])
def test_the_example_trains_a_model_that_has_learnt(name, tmp_path):
    CASES[name].write(tmp_path)
    config = configuration(name)
    run_all(tmp_path, config)
    for run in config["runs"]:
        assert_it_has_learnt(name, tmp_path, run)
    if name == "sst2_bart":
        assert_another_test_set_trains_nothing(tmp_path)


def assert_another_test_set_trains_nothing(folder: Path) -> None:
    (run,) = (folder / "results/runs").iterdir()
    card = (run / "selection/model/README.md").read_text()
    assert 'data.test.path: "data/sst2/sentiment-test"' in card and "| test | 120 |" in card
    tested = folder / "data/sst2/sentiment-test"
    tested.write_text("".join(tested.read_text().splitlines(keepends=True)[:60]))
    planned = snakemake(folder, "--configfile", str(folder / "example.yaml"), "--dry-run")
    assert jobs_in(planned.stdout + planned.stderr) == {"fetch_input", "prepare_set", f"evaluate_model {run.name}", "compare_runs"}


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Without dots in the keys, since a run takes one of the two forms for a setting."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        found = merged(found, value)
    return found


def run_together(folder: Path, names: list[str], further: dict[str, dict[str, Any]] | None = None) -> Path:
    """Several examples as runs of one workflow, two at a time: most of the time is spent on starting processes. `further`: sections."""
    runs: dict[str, Any] = {}
    for name in names:
        sections = configuration(name) | (further or {}).get(name, {})
        changes = sections.pop("runs")
        for run, change in changes.items():
            settings = merged(sections, new := nested(change))
            if "steps" in new.get("train", {}):  # which takes the place of the section's epochs
                settings["train"].pop("epochs", None)
            runs[f"{name}-{run}"] = settings
    run_all(folder, {"runs": runs})
    return folder


@pytest.fixture(scope="module")
def trained_together(tmp_path_factory) -> Path:
    """The examples of dataset classes, and the one of evaluation sets."""
    folder = tmp_path_factory.mktemp("together")
    copy_code(folder)
    write_reviews(folder)
    return run_together(folder, [*OF_CLASSES, *WITH_SETS])


def test_a_published_model_is_evaluated_beside_a_trained_one(trained_together):
    assert_it_has_learnt("evaluation_sets", trained_together, "evaluation_sets-fine_tuned")
    sets = {run: trained_together / f"results/runs/evaluation_sets-{run}/sets/imdb" for run in ("fine_tuned", "published")}
    accuracy = {run: json.loads((folder / "imdb_results.json").read_text())["accuracy"] for run, folder in sets.items()}
    assert accuracy["fine_tuned"] > 0.9 > 0.7 > accuracy["published"]
    steps = {run: json.loads((folder / "checkpoints.json").read_text())["checkpoints"] for run, folder in sets.items()}
    assert len(steps["fine_tuned"]) > 1 and [each["step"] for each in steps["published"]] == [0]


@pytest.fixture(scope="module")
def generated_together(tmp_path_factory) -> Path:
    """The examples that generate text."""
    folder = tmp_path_factory.mktemp("generated")
    write_summaries(folder)  # with the answers
    write_chats(folder)
    return run_together(folder, GENERATING)


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATING)
def test_the_example_generates_what_it_has_learnt(name, generated_together):
    for run in configuration(name)["runs"]:
        assert_it_has_learnt(name, generated_together, f"{name}-{run}")
        folder = generated_together / f"results/runs/{name}-{run}/evaluation"
        with open(folder / "test_predictions.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        metrics = json.loads((folder / "test_results.json").read_text())["metrics"]
        wanted = [row.get("target") or row.get("text_pair") or json.loads(row["text"])[-1]["content"] for row in rows]
        exact = sum(row["generated"] == text for row, text in zip(rows, wanted, strict=True))
        assert metrics["exact_match"] == pytest.approx(exact / len(rows))


@pytest.mark.slow
def test_mlflow_has_the_texts_that_were_generated_during_the_training(generated_together):
    client = Store(f"sqlite:///{generated_together}/mlflow.db").client
    (run,) = client.search_runs(
        [each.experiment_id for each in client.search_experiments()],
        "tags.`pipeline.stage` = 'train' and tags.`pipeline.run` = 'summaries-summaries'",
    )
    assert "training/samples.json" in {file.path for file in client.list_artifacts(run.info.run_id, "training")}


def test_predictions_are_beside_their_targets_and_metrics_beside_a_constant_answer(trained_together):
    folder = trained_together / "results/runs/regression_regularised-free/evaluation"
    with open(folder / "test_predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "sine", "true_sine", "cosine", "true_cosine"]
    predicted, true = ([float(row[name]) for row in rows] for name in ("sine", "true_sine"))
    results = json.loads((folder / "test_results.json").read_text())
    assert results["metrics"]["sine_r2"] == pytest.approx(r2_score(true, predicted), rel=1e-4)
    assert results["baselines"]["constant"]["sine_r2"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_the_example_of_a_dataset_class_trains_a_model_that_has_learnt(name, trained_together, monkeypatch):
    for run in configuration(name)["runs"]:
        assert_it_has_learnt(name, trained_together, f"{name}-{run}")
    monkeypatch.chdir(REPOSITORY)  # where the unchanged file finds its code
    examine(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()))
