"""Searches: their settings, which runs continue, and what each job waits for."""

import math

import numpy as np
import pandas as pd
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read_runs
from snaketrain.config.schema.search import Search
from snaketrain.config.searches import read_searches
from snaketrain.evaluation.halving import AtRung, decide
from snaketrain.evaluation.predictions import Predictions
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.runtime.manifests import Manifest, write_manifest

EXAMPLES = 200
SWEEP = {"rate": {"train.learning_rate": [1e-5, 1e-4], "train.seed": [0, 1]}}


def configuration(**sections) -> dict:
    return {
        "data": {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}},
        "model": {"use": "transformers.BertForSequenceClassification"},
        "sweeps": SWEEP,
        **sections,
    }


def at_rung(run: str, correct: int, loss: float = 1.0, seed: int = 0) -> AtRung:
    """A run that is right on so many examples."""
    right = np.random.default_rng(seed).permutation(EXAMPLES) < correct
    labels = np.arange(EXAMPLES) % 2
    table = pd.DataFrame({"label": labels, "predicted": np.where(right, labels, 1 - labels)}).astype(str)
    return AtRung(run, correct / EXAMPLES, loss, Predictions("class", ["0", "1"], {"accuracy": correct / EXAMPLES}, table))


def continuing(found: list[AtRung], mode: str = "max", **settings) -> list[str]:
    return [each.run for each in decide(found, "accuracy", mode, Search(**settings)) if each.continues]


def test_the_best_continue_and_those_that_a_test_cannot_tell_from_the_best():
    found = [
        at_rung("a", 100),
        at_rung("b", 180),
        at_rung("c", 178, seed=1),
        at_rung("d", 176, seed=2),
        *(at_rung(f"z{n}", 100) for n in range(4)),
    ]
    assert continuing(found) == ["b", "c", "d"]  # two of eight in any case; `d` may be as good as `b`, and `a`, the fourth, is worse
    assert continuing(found, keep_tied=0.25) == ["b", "c"]
    why = {each.run: each.why for each in decide(found, "accuracy", "max", Search())}
    assert "may be as good as b (McNemar's test on the same 200 examples" in why["d"]
    assert "worse than b (McNemar's test" in why["a"] and "no more than 4 continue" in why["z3"]


def test_a_lower_value_is_better_where_the_mode_says_so():
    assert continuing([at_rung("a", 20), at_rung("b", 180)], mode="min") == ["a"]


def test_at_least_one_continues_and_never_one_that_diverged():
    assert continuing([at_rung("b", 100), AtRung("a", math.nan, error="too many steps are not finite")]) == ["b"]
    assert continuing([at_rung("b", 100)]) == ["b"]


def test_equal_values_are_ranked_by_the_loss_then_by_name():
    assert continuing([at_rung("a", 100, 0.9), at_rung("b", 100, 0.5)], keep_tied=0.3) == ["b"]
    assert continuing([at_rung("b", 100), at_rung("a", 100)], keep_tied=0.3) == ["a"]


def test_without_predictions_only_the_best_continue():
    found = [AtRung(f"r{n}", n / 10) for n in range(8)]
    assert continuing(found) == ["r7", "r6"]
    assert "no paired test for accuracy" in decide(found, "accuracy", "max", Search())[2].why


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"rats": {}}, "search.rats: there is no such sweep. Did you mean 'rate'? The sweeps are: rate."),
        ({"rate": {"rung": [0.1]}}, "search.rate.rung: no such setting. Did you mean 'rungs'?"),
        ({"rate": {"rungs": []}}, "search.rate.rungs: expects a list of at least 1 item"),
        ({"rate": {"rungs": [0.5, 0.1]}}, "search.rate: `rungs` (0.5, 0.1) must rise"),
        ({"rate": {"rungs": [1.0]}}, "search.rate.rungs.0: expects a number less than 1, not 1.0."),
        ({"rate": {"keep": 0.5, "keep_tied": 0.4}}, "search.rate: `keep_tied` (0.4) is below `keep` (0.5)"),
        ({"rate": 3}, "search.rate: expects"),
        ([], "search: expects names of sweeps with their settings below them, not []."),
    ],
)
def test_wrong_settings_are_reported(search, message):
    with pytest.raises(ConfigurationError) as raised:
        read_runs(configuration(search=search))
    assert len(raised.value.problems) == 1 and raised.value.problems[0].startswith(message), raised.value.problems


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (
            {"select.metric": ["accuracy", "loss"]},
            "search.rate: its runs differ in select.metric (accuracy, loss), so that they cannot be ranked",
        ),
        ({"train.seed": [0]}, "search.rate: the sweep has a single run"),
        ({"train.steps": [0, 1]}, "search.rate: train.steps is 0"),
    ],
)
def test_runs_that_cannot_be_ranked_are_refused(sweep, message):
    with pytest.raises(ConfigurationError) as raised:
        read_runs(configuration(sweeps={"rate": sweep}, search={"rate": {}}))
    assert len(raised.value.problems) == 1 and raised.value.problems[0].startswith(message), raised.value.problems


def test_a_search_changes_no_setting_of_its_runs():
    plain, searched = configuration(), configuration(search={"rate": None})
    assert read_runs(plain) == read_runs(searched)
    assert read_searches(searched)["rate"].runs == tuple(sorted(read_runs(plain)))
    run = next(iter(read_runs(plain)))
    assert Pipeline(plain)._settings("train_model", run) == Pipeline(searched)._settings("train_model", run)


def test_later_jobs_follow_from_the_decisions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    searches = Pipeline(configuration(runs={"plain": {}}, search={"rate": {"rungs": [0.1, 0.5]}})).searches
    runs = searches.searches["rate"].runs
    assert searches.decisions == ["rate/1", "rate/2"] and len(searches.rungs) == 8 and searches.share(f"{runs[0]}/2") == 0.5
    assert searches.contenders("rate/1") == [f"{run}/1" for run in runs] and searches.contenders("rate/2") == []
    assert searches.finishing() == ["plain"]
    decided(searches, "rate/1", [*runs[:2], "a run that was removed from the sweep"])
    assert searches.contenders("rate/2") == [f"{run}/2" for run in runs[:2]] and searches.finishing() == ["plain"]
    decided(searches, "rate/2", [runs[1]])
    assert searches.finishing() == ["plain", runs[1]]
    assert searches.rungs_before(f"{runs[0]}/1") == [] and searches.rungs_before(f"{runs[0]}/2") == [f"{runs[0]}/1"]


def decided(searches, decision: str, survivors: list[str]) -> None:
    write_manifest(searches.manifest(decision), Manifest("decide_rung", "", [], {}, {}, {"survivors": survivors}))
