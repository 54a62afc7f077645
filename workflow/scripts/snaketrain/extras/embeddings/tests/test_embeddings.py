"""Sentence embeddings: the loss against a plain formula, a workflow on one process and on two, its metrics against plain ones, and bad rows."""

import csv
import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from pipeline.test_staleness import jobs_in
from pipeline.workspace import NEUTRAL, configuration, make_workspace, snakemake, write_tokenizer
from scipy.stats import spearmanr
from torch import Tensor, nn

from snaketrain.checking.runs import size_problems
from snaketrain.checking.trying import fake_world
from snaketrain.data.cells import BadData
from snaketrain.data.loading.training_data import Items
from snaketrain.extras.embeddings.pairs import Pairs
from snaketrain.extras.embeddings.retrieval import ranks_of
from snaketrain.extras.embeddings.task import Embeddings, no_negatives, place_among_ranks

PAIRS = "snaketrain.extras.embeddings.pairs.Pairs"
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def write_pairs(path: Path, rows: list[tuple[object, ...]], header: tuple[str, ...] = ("first", "second", "score")) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def drawn_pairs(count: int) -> list[tuple[object, ...]]:
    """The second text has the words of the first in another order; some pairs are repeated, and some share a text."""
    draw = random.Random(0)
    rows: list[tuple[object, ...]] = []
    while len(rows) < count:
        words = draw.sample(NEUTRAL, draw.randint(3, 6))
        first, second = " ".join(words), " ".join(draw.sample(words, len(words)))
        rows += [(first, second, 5), *([(first, second, 5), (second, first, 4), ("film", second, 1)] if len(rows) % 5 == 0 else [])]
    return rows[:count]


@pytest.fixture
def tokenizer(tmp_path) -> str:
    write_tokenizer(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


class Table(nn.Module):
    """In place of an encoder: a vector for each token."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(32, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> "Table":
        self.last_hidden_state = self.vectors(input_ids)
        return self


def embedded(model: nn.Module, texts: list[str], pairs: Pairs, pooling: str = "mean") -> Tensor:
    """One by one, by the plain formula."""
    numbers = {
        text: number
        for pair, joined in zip(pairs.pairs, pairs.texts, strict=True)
        for number, text in zip(pair, joined.split(" | "), strict=True)
    }
    found = []
    for text in texts:
        hidden = model(input_ids=torch.tensor(pairs.tokens[numbers[text]])[None].long(), attention_mask=None).last_hidden_state[0]
        found.append(nn.functional.normalize(hidden.mean(0) if pooling == "mean" else hidden[0], dim=0))
    return torch.stack(found)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_loss_is_that_of_the_formula_without_false_negatives(tmp_path, tokenizer, pooling, symmetric):
    rows = [
        ("the film", "a plot"),
        ("it was", "the actor is"),
        ("the film", "story"),
        ("very", "a plot"),
        ("story", "it was and"),
        ("it was", "the actor is"),
    ]
    pairs = Pairs(write_pairs(tmp_path / "pairs.csv", rows, ("first", "second")), tokenizer)
    batch = Items(pairs, "pairs", range(6), [], 0).batch([0, 1, 2, 3, 4, 5])
    model, task = Table(), Embeddings(temperature=0.1, pooling=pooling, symmetric=symmetric)
    loss = task.training_step({"model": model}, batch)
    losses = []
    for texts in ([list(pair) for pair in rows], [list(pair)[::-1] for pair in rows])[: 1 + symmetric]:
        total = torch.zeros(())
        for asked, answer in texts:
            others = [each for first, each in texts if first != asked and each not in (answer, asked)]
            query, answers = embedded(model, [asked], pairs, pooling), embedded(model, [answer, *others], pairs, pooling)
            logits = (answers @ query[0]) / 0.1
            total = total - logits.log_softmax(0)[0]
        losses.append(total)
    assert loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def test_in_a_plan_all_ranks_have_as_many_rows(monkeypatch):
    monkeypatch.setattr(Tensor, "__int__", lambda made_up: 1)
    with fake_world(3, 1):
        assert place_among_ranks(16) == (16, 48)


def test_an_example_that_is_there_again_is_one_negative():
    """As on a rank that has none of its own, and repeats one."""
    ids, texts = torch.tensor([7, 8, 9, 8]), torch.tensor([[0, 1], [2, 3], [4, 5], [2, 3]])
    for excluded in no_negatives(ids, texts, 0, 2):
        assert excluded.tolist() == [[False, False, False, True], [False, False, False, True]]
    for excluded in no_negatives(ids, texts, 3, 1):  # its own loss, which does not count, is finite
        assert excluded.tolist() == [[False, True, False, False]]


# --- a workflow


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder / "train.csv", drawn_pairs(57))  # the last batch has one pair: with two processes, one of them has none
    write_pairs(folder / "test.csv", drawn_pairs(90)[30:])
    given = configuration()
    arguments = {"tokenizer": "tokenizer", "score": "score", "max_length": 16}
    sets = {
        name: {"use": PAIRS, "arguments": arguments | {"path": f"{file}.csv"}}
        for name, file in (("train", "train"), ("dev", "test"), ("test", "test"))
    }
    make_workspace(
        folder,
        data={"name": "pairs"} | sets,
        model={"use": "transformers.BertModel", "arguments": SMALL | NO_DROPOUT | {"initializer_range": 0.2}},
        train=given["train"] | {"task": "embeddings", "batch_size": 8, "epochs": 4, "learning_rate": 3e-3},
        select={"metric": "mrr"},
        tracking=given["tracking"] | {"log_every_steps": 1},
        runs={"one": {}, "two": {"compute.processes": 2}},
    )
    snakemake(folder, tried=True)
    return folder


def losses(folder: Path, run: str) -> list[float]:
    lines = (folder / f"results/runs/{run}/training/journal.jsonl").read_text().splitlines()
    return [event["metrics"]["loss"] for event in map(json.loads, lines) if event["event"] == "train"]


def results(folder: Path, run: str) -> dict[str, float]:
    return json.loads((folder / f"results/runs/{run}/evaluation/test_results.json").read_text())["metrics"]


def test_two_processes_equal_one_and_the_model_learns(finished):
    assert len(losses(finished, "one")) == 32 and losses(finished, "one") == pytest.approx(losses(finished, "two"), rel=1e-5)
    # the order of equal cosines, of pairs that occur twice, is that of their rounding
    assert results(finished, "one") == pytest.approx(results(finished, "two"), abs=1e-2)
    assert np.mean(losses(finished, "one")[-8:]) < 0.8 * np.mean(losses(finished, "one")[:8])


def test_the_metrics_are_those_of_the_selected_model(finished):
    from transformers import AutoModel, AutoTokenizer

    folder = str(finished / "results/runs/one/selection/model")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with open(finished / "test.csv", newline="", encoding="utf-8") as file:
        rows = [(row["first"], row["second"], float(row["score"])) for row in csv.DictReader(file)]
    vectors = {}
    for text in {text for row in rows for text in row[:2]}:
        with torch.no_grad():
            batch = tokenizer([text, "film"], padding=True, return_tensors="pt")  # as the README says
            vector = model(**batch).last_hidden_state[0, : batch["attention_mask"][0].sum()].mean(0)
        vectors[text] = (vector / vector.norm()).numpy()
    answers: dict[str, set[str]] = {}
    for first, second, _ in rows:
        answers.setdefault(first, set()).add(second)
    ranks = []
    for first, second, _ in rows:
        others = {each for _, each, _ in rows} - answers[first] - {first}
        own = vectors[first] @ vectors[second]
        ranks.append(1 + sum(vectors[first] @ vectors[each] >= own - 1e-6 for each in others))
    cosines = [float(vectors[first] @ vectors[second]) for first, second, _ in rows]
    reciprocal = np.array([1 / rank for rank in ranks])
    found = results(finished, "one")
    assert found["recall_at_1"] == pytest.approx(np.mean([rank == 1 for rank in ranks]))
    assert found["recall_at_10"] == pytest.approx(np.mean([rank < 11 for rank in ranks]))
    assert found["mrr"] == pytest.approx(reciprocal.mean(), rel=1e-6)
    assert found["ndcg_at_10"] == pytest.approx(np.mean([1 / np.log2(1 + rank) if rank < 11 else 0 for rank in ranks]))
    assert found["spearman"] == pytest.approx(spearmanr(cosines, [score for *_, score in rows]).statistic, abs=3e-3)
    assert found["cosine"] == pytest.approx(np.mean(cosines), abs=1e-5)
    with open(finished / "results/runs/one/evaluation/test_predictions.csv", newline="", encoding="utf-8") as file:
        predicted = list(csv.DictReader(file))
    assert [float(row["cosine"]) for row in predicted] == pytest.approx(cosines, abs=1e-5)
    assert [(row["text"], float(row["score"])) for row in predicted] == [(f"{first} | {second}", score) for first, second, score in rows]


def test_another_pair_is_noticed(finished):
    assert not jobs_in(snakemake(finished, "--dry-run").stdout)
    before = (finished / "train.csv").read_bytes()
    (finished / "train.csv").write_bytes(before + b"it,was,1\r\n")
    assert "prepare_data" in jobs_in(snakemake(finished, "--dry-run").stdout)
    (finished / "train.csv").write_bytes(before)


def test_what_divides_a_batch_is_refused_and_a_metric_of_another_task(finished, tmp_path):
    config = yaml.safe_load((finished / "config/config.yaml").read_text())
    del config["select"]
    config["train"]["accumulate"], config["compute"]["reduce_batch_on_oom"] = 2, True
    config["runs"] = {"split": {"compute.processes": 2, "train.strategy": {"use": "tensor_parallel", "arguments": {"tensor": 2}}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(finished, "--dry-run", "--configfile", str(tmp_path / "config.yaml"), check=False)
    printed = done.stdout + done.stderr
    assert "train.accumulate: is 2, but `embeddings` compares" in printed
    assert "compute.reduce_batch_on_oom: is set, but `embeddings` compares" in printed
    assert "with `tensor_parallel` some processes see the same pairs" in printed
    assert "select.metric: the task logs no 'accuracy'" in printed


@pytest.mark.parametrize("by_class", [True, False])
def test_the_length_of_texts_does_not_limit_a_dataset_class(by_class):
    from transformers import BertConfig, BertModel

    data = SimpleNamespace(by_class=by_class, max_length=128, target=None)
    run = SimpleNamespace(data=data, train=SimpleNamespace(block_length=None), model=SimpleNamespace(source=None))
    assert bool(list(size_problems(run, BertModel(BertConfig(**SMALL)), {}))) == (not by_class)


def test_a_model_without_states_is_named(tmp_path, tokenizer):
    pairs = Pairs(write_pairs(tmp_path / "pairs.csv", [("the film", "a plot"), ("it was", "story")]), tokenizer)
    task = Embeddings()
    modules = task.build(
        {"use": "transformers.BertForSequenceClassification", "arguments": SMALL | {"max_position_embeddings": 128}}, None, pairs.facts()
    )
    with pytest.raises(SystemExit, match=r"model.use: transformers.BertForSequenceClassification does not return the states of tokens"):
        task.training_step(modules, Items(pairs, "pairs", range(2), [], 0).batch([0, 1]))


# --- the pairs


def test_equal_embeddings_and_those_that_are_no_numbers_find_nothing():
    texts = np.array([[0, 1], [2, 3], [4, 5]])
    assert ranks_of(np.ones((3, 2, 4), np.float32), texts).tolist() == [3, 3, 3]
    assert ranks_of(np.full((3, 2, 4), np.nan, np.float32), texts).tolist() == [3, 3, 3]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_files_of_each_format_give_the_same_pairs(tmp_path, tokenizer, ending, capsys):
    import pandas

    rows = [("the film", "a plot", 5.0), ("it was", "a plot", 0.5), ("story", "the film was very very very long", 4.0)]
    table = pandas.DataFrame(rows, columns=["one", "other", "points"])
    path = tmp_path / f"pairs.{ending}"
    if ending == "csv":
        table.to_csv(path, index=False, header=False)
    elif ending == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    names = {"first": "one", "second": "other", "score": "points", "columns": ["one", "other", "points"] if ending == "csv" else None}
    pairs = Pairs(str(path), tokenizer, max_length=6, least_score=1, **names)
    assert pairs.pairs.tolist() == [[0, 1], [2, 3]] and pairs.scores.tolist() == [5.0, 4.0]
    assert pairs.texts == ["the film | a plot", "story | the film was very very very long"] and pairs.lengths.tolist() == [4, 6]
    pairs.check()
    printed = capsys.readouterr().out
    assert "2 pairs" in printed and "1 cut to 6 tokens" in printed and "1 pairs left out" in printed


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("it", "", 1), r"pairs.csv, line 3: column 'second' has no text"),
        (("  ", "it", 1), r"pairs.csv, line 3: column 'first' has no text"),
        (("it", "was", "much"), r"pairs.csv, line 3: column 'score' cannot be read"),
        (("it", "was", "nan"), r"pairs.csv, line 3: column 'score' cannot be read \('nan' is no number"),
        (("it", "was", ""), r"pairs.csv, line 3: column 'score' cannot be read"),
    ],
)
def test_bad_rows_are_named(tmp_path, tokenizer, row, message):
    path = write_pairs(tmp_path / "pairs.csv", [("the film", "a plot", 5), row])
    with pytest.raises(BadData, match=message):
        Pairs(path, tokenizer, score="score")


def test_half_of_a_surrogate_pair_is_replaced_and_told(tmp_path, tokenizer, capsys):
    (tmp_path / "pairs.jsonl").write_text('{"first": "a film", "second": "\\ud83d it"}\n')
    pairs = Pairs(str(tmp_path / "pairs.jsonl"), tokenizer)
    pairs.check()
    assert pairs.texts == ["a film | ? it"] and "pairs.jsonl, line 1: ? it" in capsys.readouterr().out


def test_a_missing_column_is_named(tmp_path, tokenizer):
    path = write_pairs(tmp_path / "pairs.csv", [("the film", "a plot", 5)])
    with pytest.raises(BadData, match="has no column 'third'"):
        Pairs(path, tokenizer, second="third")
