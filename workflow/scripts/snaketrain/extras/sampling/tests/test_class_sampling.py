"""An epoch takes examples of rare classes more often: the same ones whatever the number of processes, and others in each epoch."""

import json

import numpy as np
import pytest
from pipeline.workspace import make_workspace, sentences, snakemake

from snaketrain.config.runs import read
from snaketrain.data.loading import batches
from snaketrain.data.loading.batches import Batches
from snaketrain.extras.sampling.sampling import ByClass, shares
from snaketrain.orchestration.pipeline import Pipeline

LABELS = np.random.default_rng(0).choice(4, size=3000, p=[0.7, 0.2, 0.09, 0.01])
LENGTHS = np.random.default_rng(1).integers(3, 60, len(LABELS))
DATA = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}


@pytest.mark.parametrize("power", [0, 0.3, 0.5, 0.99])
def test_shares_follow_the_power_and_fill_the_epoch(power):
    counts = np.bincount(LABELS)
    found = shares(counts, power)
    assert found.sum() == len(LABELS) and (abs(found - len(LABELS) * counts**power / (counts**power).sum()) < 1).all()
    assert list(shares(np.array([1, 1, 1]), power)) == [1, 1, 1]


def test_an_epoch_takes_all_examples_of_a_class_equally_often():
    drawn = ByClass(LENGTHS, LABELS, 0.5)
    first, again, second = drawn.of_epoch(42, 0), drawn.of_epoch(42, 0), drawn.of_epoch(42, 1)
    assert (first == again).all() and (np.sort(first) == first).all() and len(first) == len(second) == len(LABELS)
    times = np.bincount(first, minlength=len(LABELS))
    for label, count in enumerate(drawn.counts):
        of_class = times[label == LABELS]
        assert of_class.sum() == count and of_class.max() - of_class.min() <= 1
    assert (times != np.bincount(second, minlength=len(LABELS))).any() and (first != drawn.of_epoch(43, 0)).any()


@pytest.mark.parametrize("tokens", [None, 700])
def test_batches_are_of_the_drawn_examples_in_sections_too(tokens, monkeypatch):
    monkeypatch.setattr(batches, "SECTION", 512)
    monkeypatch.setattr(batches, "BLOCK", 64)
    drawn = ByClass(LENGTHS, LABELS, 0.5)
    made = Batches(drawn, 7, 16, tokens)
    for epoch in (0, 1):
        of_epoch = made.of(epoch)
        assert (np.sort(np.concatenate(of_epoch)) == drawn.of_epoch(7, epoch)).all()
        assert all((np.diff(LENGTHS[batch]) >= 0).all() for batch in of_epoch)
        assert tokens is None or all(LENGTHS[batch].max() * len(batch) <= tokens for batch in of_epoch)
    resumed = Batches(drawn, 7, 16, tokens)  # asked for a later batch alone
    assert (resumed.batch(1, 5) == made.batch(1, 5)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": DATA | {"label_kind": "number"}}, "`sampling` needs one class for each example"),
        ({"data": DATA | {"label": None}}, "`sampling` needs one class for each example"),
        ({"data": {"train": {"use": "sklearn.datasets.load_digits"}}}, "the examples come from a dataset class"),
        ({"data": DATA, "train": {"sampling": {"power": 1}}}, "less than 1"),
        ({"data": DATA, "train": {"steps": 0, "sampling": {"power": 0.5}}}, "`sampling` has no effect, since `steps` is 0"),
        ({"data": DATA, "train": {"sampling": {"by": "length"}}}, "label"),
    ],
)
def test_what_cannot_be_sampled_is_refused(changes, message):
    assert any(message in problem for problem in read({"train": {"sampling": {"power": 0.5}}} | changes).problems)


def test_the_code_that_draws_decides_the_weights_where_it_is_used():
    config = {"data": DATA, "runs": {"plain": {}, "sampled": {"train.sampling": {"power": 0}}}}
    code = {run: Pipeline(config, reads_files=False).stages["train_model"].code(run) for run in ("plain", "sampled")}
    assert {name.rpartition(".")[2] for name in code["sampled"].keys() - code["plain"].keys()} == {"sampling"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Every twelfth sentence is kind."""
    sampled = {"train.sampling": {"power": 0}, "train.epochs": 4}
    two = sampled | {"compute.processes": 2, "train.strategy": "ddp"}
    runs = {"as_it_is": {"train.epochs": 4}, "sampled": sampled, "two": two}
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder = make_workspace(tmp_path_factory.mktemp("sampling"), runs=runs)
    written = [(text, label) for number, (text, label) in enumerate(sentences(1200)) if not label or number % 11 == 0]
    lines = ["text,label", *(f"{text},{label}" for text, label in written)]
    (folder / "sentences.csv").write_text("\n".join(lines) + "\n")
    snakemake(folder, "--config", f"model={json.dumps({'arguments': without_dropout})}")
    return folder


def journal(folder, run, kind):
    lines = (folder / f"results/runs/{run}/training/journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.slow
def test_a_rare_class_is_found_and_two_processes_equal_one(workspace):
    def found_and_missed(run):
        return json.loads((workspace / f"results/runs/{run}/evaluation/test_results.json").read_text())["confusion"][1][::-1]

    (found, missed), (found_if_sampled, missed_if_sampled) = map(found_and_missed, ("as_it_is", "sampled"))
    assert found < missed and found_if_sampled > 4 * missed_if_sampled
    losses = [[event["metrics"]["loss"] for event in journal(workspace, run, "train")] for run in ("sampled", "two")]
    assert len(losses[0]) > 20 and losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_how_often_is_told(workspace):
    log = (workspace / "results/runs/sampled/training/logs/rank-0.log").read_text()
    assert "train.sampling: how often an epoch takes an example, by its class: unkind 0." in log and ", kind 6." in log
    assert "train.sampling" not in (workspace / "results/runs/as_it_is/training/logs/rank-0.log").read_text()
