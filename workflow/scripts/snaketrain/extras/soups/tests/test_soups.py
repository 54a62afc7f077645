"""Soups: which runs are averaged, how, and that the run of a soup is evaluated, compared and made anew as any other."""

import csv
import json
import random
import re

import numpy as np
import pytest
import torch
from pipeline.test_staleness import jobs_in
from pipeline.workspace import make_workspace, read_configuration, snakemake, write_configuration
from safetensors.torch import load_file, save_file

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read_runs
from snaketrain.extras.soups.make_soup import average, greedy
from snaketrain.runtime.manifests import read_manifest

DATA = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}
RUNS = {"a": {"train.learning_rate": 1e-4}, "b": {"train": {"epochs": 5, "learning_rate": 2e-4}}}


def runs_of(soup, runs=None, **sections):
    return read_runs({"data": DATA, "runs": RUNS if runs is None else runs, "soups": {"soup": soup}} | sections)


# --- which runs, and what is refused


def test_a_soup_is_a_run_that_takes_no_step():
    found = runs_of(
        {"runs": ["b", "a"]}, train={"epochs": 2}, model={"initial_weights": {"source": {"path": "w.pt"}}}, select={"average": 2}
    )
    soup = found["soup"]
    assert (soup.train.steps, soup.train.learning_rate, soup.model.initial_weights) == (0, 2e-4, None)
    assert (soup.select.average, found["a"].select.average) == (1, 2)
    assert soup.tracking.notes == "Greedy soup of b, a; which of them are in it: results/soups/soup/soup.json."
    assert set(read_runs({"data": DATA, "runs": RUNS})) == {"a", "b"}


def test_a_sweep_stands_for_its_runs():
    found = runs_of({"runs": ["rate", "a"]}, sweeps={"rate": {"train.learning_rate": [1e-5, 3e-5]}})
    assert found["soup"].tracking.notes.startswith("Greedy soup of rate-learning_rate=1e-05, rate-learning_rate=3e-05, a;")


@pytest.mark.parametrize(
    ("soup", "change", "problem"),
    [
        ({"runs": ["a", "bb"]}, {}, "soups.soup.runs: there is no run or sweep 'bb'. Did you mean 'b'?"),
        ({"runs": ["a"]}, {}, "soups.soup.runs: a: a soup is the average of two or more runs"),
        ({"runs": ["a", "a"]}, {}, "soups.soup.runs: a, a: a soup is the average of two or more runs"),
        ({"runs": ["soup", "a"]}, {}, "there is no run or sweep 'soup'"),
        ({"runs": []}, {}, "soups.soup.runs"),
        ({}, {}, "soups.soup.runs"),
        (["a", "b"], {}, "soups.soup"),
        ({"runs": ["a", "b"]}, {"model.arguments": {"num_hidden_layers": 1}}, "its runs differ in model.arguments"),
        ({"runs": ["a", "b"]}, {"model.use": "transformers.BertModel"}, "its runs differ in model.use"),
        ({"runs": ["a", "b"]}, {"model.source": {"path": "elsewhere"}}, "its runs differ in model.source"),
        ({"runs": ["a", "b"]}, {"data.labels": {0: "no", 1: "yes"}}, "its runs differ in data.labels"),
        ({"runs": ["a", "b"]}, {"data.limit_train": 10}, "its runs differ in data.limit_train (None, 10)"),
        ({"runs": ["a", "b"]}, {"data.tokenizer": {"path": "other"}}, "its runs differ in data.tokenizer.path (tokenizer, other)"),
        ({"runs": ["a", "b"]}, {"select.metric": "loss"}, "its runs differ in select.metric (accuracy, loss)"),
        ({"runs": ["a", "b"]}, {"train.task": "masked_lm"}, "its runs differ in train.task"),
        ({"runs": ["a", "b"]}, {"evaluate.batch_size": 3}, "its runs differ in evaluate.batch_size"),
        ({"runs": ["a", "b"]}, {"train.seed": 1}, "its runs begin with different random weights, since they differ in train.seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_averaged_is_refused(soup, change, problem):
    model = {"use": "transformers.BertForSequenceClassification"}
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        runs_of(soup, RUNS | {"b": {"train.learning_rate": 2e-4} | change}, model=model)


def test_adapters_are_refused():
    with pytest.raises(ConfigurationError, match="soups.soup: its runs have model.adapters, of which no averages were tried"):
        runs_of({"runs": ["a", "b"]}, model={"source": {"path": "pretrained"}, "adapters": {}})


@pytest.mark.parametrize("model", [{"source": {"path": "pretrained"}}, {"initial_weights": {"source": {"path": "w.pt"}}}])
def test_other_seeds_may_start_from_the_same_weights(model):
    assert "soup" in runs_of({"runs": ["a", "c"]}, RUNS | {"c": {"train.seed": 1}}, model=model)


def test_without_soups_no_run_is_added():
    assert set(read_runs({"data": DATA, "runs": RUNS, "soups": None})) == {"a", "b"}
    with pytest.raises(ConfigurationError, match="soups: expects names of soups"):
        read_runs({"data": DATA, "runs": RUNS, "soups": ["a", "b"]})


# --- the average, and the greedy choice


def test_weights_are_averaged_in_double_precision_and_counters_are_those_of_the_first(tmp_path):
    values = {"a": [1.0, 1e8], "b": [2.0, 1.0], "c": [6.0, -1e8]}
    for number, (run, weights) in enumerate(values.items()):
        (tmp_path / run).mkdir()
        module = {
            "weight": torch.tensor(weights),
            "running_mean": torch.tensor([float(number)]),
            "num_batches_tracked": torch.tensor(7 + number),
        }
        save_file(module, tmp_path / run / "model.safetensors")
    average({run: tmp_path / run for run in values}, tmp_path / "soup")
    found = load_file(tmp_path / "soup/model.safetensors")
    assert found["weight"].tolist() == [3.0, pytest.approx(1 / 3)] and found["weight"].dtype == torch.float32  # in single precision: 0
    assert found["running_mean"].tolist() == [1.0] and found["num_batches_tracked"].item() == 7
    average({"b": tmp_path / "b"}, tmp_path / "soup")
    assert load_file(tmp_path / "soup/model.safetensors")["weight"].tolist() == values["b"]


def test_other_tensors_are_refused(tmp_path):
    for run, shape in (("a", 2), ("b", 3)):
        (tmp_path / run).mkdir()
        save_file({"weight": torch.zeros(shape)}, tmp_path / run / "model.safetensors")
    with pytest.raises(SystemExit, match="b: its weights have other names or shapes than those of a"):
        average({run: tmp_path / run for run in ("a", "b")}, tmp_path / "soup")


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_choice_is_that_of_a_plain_loop_and_never_worse_than_the_best_run(mode):
    """Weights are points, and the metric is their distance from another one."""
    generator, sign = np.random.default_rng(0), 1 if mode == "max" else -1
    several = 0
    for _ in range(50):
        goal, *points = generator.normal(size=(7, 3))
        weights = {f"run {number}": point for number, point in enumerate(points)}

        def metric(runs, goal=goal, weights=weights):
            return -sign * float(np.linalg.norm(np.mean([weights[run] for run in runs], 0) - goal))

        alone = dict(sorted(((run, metric([run])) for run in weights), key=lambda item: -sign * item[1]))
        expected = [next(iter(alone))]
        for run in [*alone][1:]:
            if sign * metric([*expected, run]) > sign * metric(expected):
                expected.append(run)
        tried = list(greedy(alone, mode, metric))
        kept = [each["run"] for each in tried if each["kept"]]
        assert kept == expected and [each["run"] for each in tried] == [*alone]
        assert sign * metric(kept) >= max(sign * value for value in alone.values())
        several += len(kept) > 1
    assert several > 20


@pytest.mark.parametrize("found", [0.5, None, float("nan")])
def test_an_average_that_is_no_better_is_left_out(found):
    assert [each["kept"] for each in greedy({"a": 0.5, "b": 0.5}, "max", lambda runs: found)] == [True, False]


# --- in a workflow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A quarter of the labels is wrong, so that models with a high rate differ by noise, which an average reduces."""
    folder, generator = tmp_path_factory.mktemp("soups"), random.Random(0)
    train = {"batch_size": 16, "epochs": 8, "schedule": "constant", "evaluations_per_epoch": 1}
    rates = {"train.learning_rate": [4e-3, 5e-3]}
    make_workspace(
        folder, runs={}, train=train, select={"metric": "loss"}, sweeps={"rate": rates}, soups={"mean": {"runs": ["rate"]}}
    )  # fmt: skip
    with open(folder / "sentences.csv", newline="") as file:
        header, *rows = csv.reader(file)
    with open(folder / "sentences.csv", "w", newline="") as file:
        flipped = [[text, label if generator.random() < 0.75 else str(1 - int(label))] for text, label in rows]
        csv.writer(file).writerows([header, *flipped])
    snakemake(folder)
    return folder


def test_the_soup_is_a_run_beside_the_others(workspace):
    soup = json.loads((workspace / "results/soups/mean/soup.json").read_text())
    assert (soup["metric"], soup["mode"], len(soup["tried"])) == ("loss", "min", 2) and len(soup["runs"]) > 1
    alone = [each["alone"] for each in soup["tried"]]
    value = [each["average with it"] for each in soup["tried"] if each["kept"]][-1]
    assert alone == sorted(alone) and value < alone[0]
    results = {
        run: json.loads((workspace / f"results/runs/{run}/evaluation/dev_results.json").read_text()) for run in ("mean", *soup["runs"])
    }
    assert results["mean"]["metrics"]["loss"] == pytest.approx(value, rel=1e-6)
    assert min(each["metrics"]["loss"] for each in results.values()) == results["mean"]["metrics"]["loss"]
    files = [load_file(workspace / f"results/runs/{run}/selection/model/model.safetensors") for run in soup["runs"]]
    for name, tensor in load_file(workspace / "results/runs/mean/selection/model/model.safetensors").items():
        expected = torch.stack([each[name].double() for each in files]).mean(0).to(tensor.dtype)
        assert torch.equal(tensor, expected if tensor.is_floating_point() else files[0][name])
    assert "mean is " in read_manifest(workspace / "results/comparison/manifest.json").facts["verdict"]
    log = (workspace / "logs/make_soup/mean.log").read_text()
    assert re.search(r"mean: 2 of 2: with rate-learning_rate=\S+ the dev loss is 0\.\d+: kept", log)
    training = read_manifest(workspace / "results/runs/mean/training/manifest.json")
    assert training.inputs["initial"] == read_manifest(workspace / "results/soups/mean/manifest.json").content


def test_a_run_that_is_trained_anew_makes_the_soup_stale(workspace):
    assert not jobs_in(snakemake(workspace, "--dry-run").stdout)
    config = read_configuration(workspace)
    changed = json.loads(json.dumps(config))
    changed["sweeps"]["rate"]["train.learning_rate"] = [4e-3, 7e-3]
    write_configuration(workspace, changed)
    jobs = jobs_in(snakemake(workspace, "--dry-run").stdout)
    assert {"make_soup mean", "train_model mean", "evaluate_model mean", "train_model rate-learning_rate=0.007"} <= jobs
    assert "train_model rate-learning_rate=0.004" not in jobs
    changed = json.loads(json.dumps(config))
    del changed["soups"]
    write_configuration(workspace, changed)
    assert jobs_in(snakemake(workspace, "--dry-run").stdout) == {"compare_runs"}
    write_configuration(workspace, config)
    assert not jobs_in(snakemake(workspace, "--dry-run").stdout)


def test_runs_that_a_search_may_stop_are_refused(workspace):
    pytest.importorskip("snaketrain.extras.search")
    config = read_configuration(workspace)
    write_configuration(workspace, config | {"search": {"rate": {}}})
    done = snakemake(workspace, "--dry-run", check=False)
    write_configuration(workspace, config)
    assert (
        done.returncode
        and "soups: a search or a verdict decides whether these runs are trained to their end: rate-" in done.stdout + done.stderr
    )
