"""Searches: their settings, which runs continue, and what each job waits for."""

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read_runs
from snaketrain.evaluation.predictions import Predictions
from snaketrain.extras.search import decide_rung, train_rung
from snaketrain.extras.search.deciding import AtRung, decide
from snaketrain.extras.search.stages import searches_of
from snaketrain.extras.search.top_level import Search, Trial, Trials, read_searches
from snaketrain.orchestration.pipeline import Pipeline, ranges_and_folders
from snaketrain.orchestration.stages import results_of_work, run_of_work
from snaketrain.runtime.manifests import Manifest, digests, read_manifest, write_manifest
from snaketrain.runtime.stages import JobSettings
from snaketrain.slurm.jobs import Work

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
    """A run that is right on this many examples."""
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
    assert continuing(found) == ["b", "c", "d"]  # always two of eight; `d` may be as good as `b`, and `a`, the fourth, is worse
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


def test_runs_that_were_measured_on_other_examples_are_not_ranked():
    mine = [replace(at_rung(run, 100 + number), examples=digest) for number, (run, digest) in enumerate(zip("abc", "xxy", strict=True))]
    with pytest.raises(SystemExit, match=r"different development examples \(a, b; c\), so that they cannot be ranked"):
        continuing(mine)
    assert continuing(mine[:2]) == ["b"]


def with_seeds(name: str, *correct: int) -> list[AtRung]:
    """A run for each seed, of the same settings."""
    return [replace(at_rung(f"{name}-seed={seed}", right, seed=seed), candidate=name) for seed, right in enumerate(correct)]


def test_runs_that_differ_only_in_the_seed_continue_together_by_their_mean():
    """The luckiest single run is one of `a`."""
    found = [*with_seeds("a", 190, 120, 125), *with_seeds("b", 170, 172, 174), *with_seeds("c", 100, 102, 98), *with_seeds("d", 90, 95, 92)]
    assert continuing(found, keep_tied=0.25) == [f"b-seed={seed}" for seed in range(3)]
    standings = {each.run: each for each in decide(found, "accuracy", "max", Search())}
    assert standings["b-seed=1"].why == "dev accuracy 0.860, number 1 (mean of 3 seeds)" and standings["b-seed=1"].value == 0.86
    assert "may be as good as b-seed=0 and its 2 other seeds (Welch's t over seeds and the same examples)" in standings["a-seed=0"].why
    assert "no more than 2 continue" in standings["c-seed=0"].why


def test_a_seed_that_diverged_ends_its_settings():
    found = [*with_seeds("a", 190, 190), *with_seeds("b", 100, 100)]
    found[1] = replace(found[1], value=math.nan, error="too many steps are not finite")
    assert continuing(found) == ["b-seed=0", "b-seed=1"]
    assert decide(found, "accuracy", "max", Search())[-1].why == "too many steps are not finite (a-seed=1)"


def test_shares_are_of_decimal_fractions():
    found = [at_rung(f"r{number:03d}", 100 + number) for number in range(100)]
    assert len(continuing(found, keep=0.07, keep_tied=0.07)) == 7
    assert len(continuing(found, keep=0.29, keep_tied=0.29)) == 29


def test_the_rungs_of_the_seeds_of_some_settings_are_recognised(tmp_path):
    def candidate(name: str, **settings: float) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "dev_results.json").write_text('{"metrics": {"accuracy": 0.5}, "kind": null, "examples": 2}')
        facts = {"run": name, "step": 20, "rung_step": 20, "metrics": {"accuracy": "max"}}
        write_manifest(tmp_path / name / "manifest.json", Manifest("train_rung", "", {"train": settings}, {"data": "1"}, {}, facts))
        return decide_rung.at_rung(name, read_manifest(tmp_path / name / "manifest.json"), "accuracy").candidate

    first = candidate("a", learning_rate=0.1, seed=0)
    assert candidate("b", learning_rate=0.1, seed=1) == first != candidate("c", learning_rate=0.2, seed=0)


@pytest.mark.parametrize("error", ["too many steps are not finite", ""])
def test_a_search_without_any_run_left_says_why(tmp_path, error):
    """All have diverged, or have metrics that are not numbers."""
    for run in "ab":
        facts = {"run": run, "step": 9, "rung_step": 9, "metrics": {"accuracy": "max"}} | ({"error": error} if error else {})
        (tmp_path / run).mkdir()
        (tmp_path / run / "dev_results.json").write_text('{"metrics": {"accuracy": NaN}, "kind": null, "examples": 2}')
        files = digests(tmp_path / run, ["dev_results.json"])
        write_manifest(tmp_path / run / "manifest.json", Manifest("train_rung", "", {"train": {"x": run}}, {}, files, facts))
    given = JobSettings("decide_rung", {"search": {"keep": 0.25, "keep_tied": 0.5}, "select": {"metric": "accuracy", "mode": None}}, {})
    contenders = [tmp_path / run / "manifest.json" for run in "ab"]
    args = Namespace(output=tmp_path / "out/manifest.json", settings=given, decision="rate/1", contenders=contenders)
    with pytest.raises(SystemExit, match=f"no run is left.*a: {error or 'its accuracy is not a finite number'}; b: "):
        decide_rung.main(args)
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_rung_without_weights_of_its_step_says_so(tmp_path):
    """The rung of a training that was past it before it was searched."""
    (tmp_path / "dev_results.json").write_text('{"metrics": {"accuracy": 0.5}, "kind": null, "examples": 2}')
    facts = {"run": "a", "step": 61, "rung_step": 20, "metrics": {"accuracy": "max"}}
    write_manifest(tmp_path / "manifest.json", Manifest("train_rung", "", {"train": {}}, {}, {}, facts))
    found = decide_rung.at_rung("a", read_manifest(tmp_path / "manifest.json"), "accuracy")
    (standing,) = decide([found], "accuracy", "max", Search())
    assert standing.why == "dev accuracy 0.500, number 1 (at step 61 instead of 20, which it was past before it was searched)"


def test_without_predictions_only_the_best_continue():
    found = [AtRung(f"r{n}", n / 10) for n in range(8)]
    assert continuing(found) == ["r7", "r6"]
    assert "no paired test for accuracy" in decide(found, "accuracy", "max", Search())[2].why


def test_a_run_that_may_be_stopped_is_no_start_of_another():
    """Its own training would be demanded while the search trains it."""
    searched = "rate-learning_rate=1e-05-seed=0"
    for model in ({"model.source": {"run": searched}}, {"model.initial_weights": {"source": {"run": searched}}}):
        with pytest.raises(
            ConfigurationError, match=f"search.rate: stops some of its runs early, but run tuned starts from one of them .*{searched}"
        ):
            read_runs(configuration(search={"rate": {}}, runs={"tuned": model}))
    first = {"rate": {"train.learning_rate": [1e-5, 1e-4], "model.source": [{"run": "first"}]}}
    assert len(read_runs(configuration(search={"rate": {}}, runs={"first": {}}, sweeps=first))) == 3


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
            "search.rate: its runs differ in select.metric (accuracy, loss), so they cannot be ranked",
        ),
        ({"data.split_seed": [1, 2]}, "search.rate: its runs differ in data.split_seed (1, 2), so they cannot be ranked"),
        ({"data.limit_dev": [10, 20]}, "search.rate: its runs differ in data.limit_dev (10, 20), so they cannot be ranked"),
        ({"data.dev_fraction": [0.1, 0.2]}, "search.rate: its runs differ in data.dev_fraction (0.1, 0.2), so they cannot be ranked"),
        ({"data.train": [{"path": "a.csv"}, {"path": "b.csv"}]}, "search.rate: its runs differ in data.train ("),
        ({"data.where": [{"a": "1"}, {}]}, "search.rate: its runs differ in data.where ({'a': '1'}, {}), so they cannot be ranked"),
        ({"compute.threads": [1, 2]}, "search.rate: the runs of the sweep differ only in train.seed or in what trains nothing"),
        (
            {"select.average": [1, 2], "train.seed": [0, 1]},
            "search.rate: the runs of the sweep differ only in train.seed or in what trains",
        ),
        ({"train.seed": [0]}, "search.rate: the sweep has a single run"),
        ({"train.seed": [0, 1]}, "search.rate: the runs of the sweep differ only in train.seed"),
        ({"train.steps": [0, 1]}, "search.rate: train.steps is 0"),
    ],
)
def test_runs_that_cannot_be_ranked_are_refused(sweep, message):
    with pytest.raises(ConfigurationError) as raised:
        read_runs(configuration(sweeps={"rate": sweep}, search={"rate": {}}))
    assert len(raised.value.problems) == 1 and raised.value.problems[0].startswith(message), raised.value.problems


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"space": {}}, "search.tuned.space: expects names with values below them, at least 1"),
        (
            {"space": {"train.learning_rate": {"low": 1, "high": 1}}},
            "search.tuned.space.train.learning_rate: `low` (1) is not below `high` (1)",
        ),
        ({"space": {"train.learning_rate": {"low": "x", "high": 1}}}, "search.tuned.space.train.learning_rate.low: expects a valid number"),
        ({"space": {"train.seed": [1]}, "trial": 3}, "search.tuned.trial: no such setting. Did you mean 'trials'?"),
        ({"space": {"train.seed": [1]}}, "search.tuned: has sampled no runs yet. Start the workflow with"),
    ],
)
def test_wrong_samplings_are_reported(sampling, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        read_runs(configuration(search={"tuned": sampling}))
    assert any(problem.startswith(message) for problem in raised.value.problems), raised.value.problems


def test_a_search_whose_name_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Trials("", []).write("another")  # so that the name is looked up in the folder of searches
    with pytest.raises(ConfigurationError, match="cannot be a name"):
        read_runs(configuration(search={"a" * 300: {"space": {"train.seed": [1, 2]}}}))


def test_sampled_runs_change_the_common_sections(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Trials("", [Trial("tuned-000", {"train.learning_rate": 0.5}), Trial("tuned-001", {"train.seed": 3}, failed=True)]).write("tuned")
    config = configuration(sweeps={}, search={"tuned": {"space": {"train.seed": [1, 2]}}})
    runs = read_runs(config)
    assert set(runs) == {"tuned-000"} and runs["tuned-000"].train.learning_rate == 0.5 and read_searches(config) == {}


def test_a_run_that_diverged_ends_its_rung_without_an_error(tmp_path, monkeypatch):
    """So that it does not hold up the decision about the others."""

    from snaketrain.training.step import Diverged

    def diverge(args, share):
        raise Diverged("step 3: too many steps are not finite")

    output = tmp_path / "rungs/1/manifest.json"
    write_manifest_of_data(tmp_path / "data.json")
    settings = JobSettings("train_rung", {"train": {}}, {})
    args = Namespace(
        output=tmp_path / "training/manifest.json", rung_output=output, rung_settings=settings, run_name="r", share=0.1,
        data=tmp_path / "data.json", model=None, initial=None,
    )  # fmt: skip
    monkeypatch.setattr(train_rung.train_model, "train", diverge)
    assert train_rung.main(args) == 0
    assert read_manifest(output).facts == {"run": "r", "step": None, "error": "step 3: too many steps are not finite"}
    assert decide_rung.at_rung("r", read_manifest(output), "accuracy").error == "step 3: too many steps are not finite"


def write_manifest_of_data(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_manifest(path, Manifest("prepare_data", "", {}, {}, {}, {}))


def test_a_search_changes_no_setting_of_its_runs():
    plain, searched = configuration(), configuration(search={"rate": None})
    assert read_runs(plain) == read_runs(searched)
    assert read_searches(searched)["rate"].runs == tuple(sorted(read_runs(plain)))
    run = next(iter(read_runs(plain)))
    assert Pipeline(plain).stages["train_model"].planned(run) == Pipeline(searched).stages["train_model"].planned(run)


def test_later_jobs_follow_from_the_decisions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline(configuration(runs={"plain": {}}, search={"rate": {"rungs": [0.1, 0.5]}}))
    searches = searches_of(pipeline)
    runs = searches.searches["rate"].runs
    assert searches.decisions == ["rate/1", "rate/2"] and len(searches.rungs) == 8 and searches.share(f"{runs[0]}/2") == 0.5
    assert searches.contenders("rate/1") == [f"{run}/1" for run in runs] and searches.contenders("rate/2") == []
    assert pipeline.finishing() == ["plain"]
    decided(searches, "rate/1", [*runs[:2], "a run that was removed from the sweep"])
    assert searches.contenders("rate/2") == [f"{run}/2" for run in runs[:2]] and pipeline.finishing() == ["plain"]
    decided(searches, "rate/2", [runs[1]])
    assert pipeline.finishing() == ["plain", runs[1]]
    assert searches.rungs_before(f"{runs[0]}/1") == [] and searches.rungs_before(f"{runs[0]}/2") == [f"{runs[0]}/1"]


def decided(searches, decision: str, survivors: list[str]) -> None:
    write_manifest(searches.manifest(decision), Manifest("decide_rung", "", {}, {}, {}, {"survivors": survivors}))


def test_the_share_that_continues_is_rounded_up():
    found = [at_rung(f"r{number}", 10 * number) for number in range(5)]
    assert len(continuing(found, keep=0.5, keep_tied=0.5)) == 3


def test_the_monitor_of_a_cluster_knows_rungs_and_what_is_planned_behind_them():
    """They start on a range of nodes again as well."""
    ranges, folders = ranges_and_folders(Pipeline(configuration(search={"rate": {"rungs": [0.1]}}, compute={"nodes": "1-4", "threads": 4})))
    run = "rate-learning_rate=1e-05-seed=0"
    training = Path(f"results/runs/{run}/training")
    for comment in (f"rule_train_rung_wildcards_{run}_1", f"rule_train_model_wildcards_{run}"):
        work = Work.of(comment)
        assert folders[str(work)] == training and ranges[str(work)].nodes == "1-4", comment
        assert run_of_work(work) == run and results_of_work(work) == {("train_model", run)}
