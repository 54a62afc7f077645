"""Seeds are added until a verdict is decided, or would hardly be."""

import re
from statistics import NormalDist

import numpy as np
import pytest
from pipeline.workspace import make_workspace, read_configuration, snakemake, write_configuration

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read_runs
from snaketrain.evaluation.paired import Difference, level_of
from snaketrain.evaluation.verdicts import Judged
from snaketrain.extras.sequential_verdicts.decide_seeds import chance_at_the_end
from snaketrain.extras.sequential_verdicts.stages import DecideSeeds
from snaketrain.extras.sequential_verdicts.top_level import SequentialVerdict
from snaketrain.runtime.manifests import read_manifest

DATA = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}


def runs_of(verdict, runs=None, **sections):
    runs = {"base": {}, "warm": {"train.warmup": 0.1, "train.seed": 7}} if runs is None else runs
    return read_runs({"data": DATA, "runs": runs, "verdicts": {"warmup": verdict}} | sections)


def test_runs_with_further_seeds_are_added():
    found = runs_of({"runs": ["base", "warm"], "looks": [2, 3]}, train={"seed": 4})
    seeds = {name: (settings.train.seed, settings.train.warmup) for name, settings in found.items()}
    assert {name: seed for name, (seed, _) in seeds.items()} == {
        "base": 4, "base-seed+1": 5, "base-seed+2": 6, "warm": 7, "warm-seed+1": 8, "warm-seed+2": 9,
    }  # fmt: skip
    assert len({warmup for name, (_, warmup) in seeds.items() if name.startswith("warm")}) == 1 and seeds["warm"][1] != seeds["base"][1]


def test_a_seed_may_be_given_below_its_section():
    found = runs_of({"runs": ["base", "warm"], "looks": [2]}, {"base": None, "warm": {"train": {"seed": 3, "warmup": 0.2}}})
    assert (found["warm-seed+1"].train.seed, found["warm-seed+1"].train.warmup) == (4, found["warm"].train.warmup)


def test_a_run_of_two_verdicts_has_the_seeds_of_the_longer_one():
    runs, verdicts = (
        {"a": {}, "b": {"train.epochs": 1}},
        {"x": {"runs": ["a", "b"], "looks": [2]}, "y": {"runs": ["b", "a"], "looks": [2, 4]}},
    )
    assert len(read_runs({"data": DATA, "runs": runs, "verdicts": verdicts})) == 8


@pytest.mark.parametrize(
    ("verdict", "problem"),
    [
        ({"runs": ["base", "wram"]}, "verdicts.warmup.runs: there is no run 'wram'. Did you mean 'warm'?"),
        ({"runs": ["base", "base"]}, "names base twice: name two runs"),
        ({"runs": ["base"]}, "verdicts.warmup.runs"),
        ({"runs": ["base", "warm"], "looks": [3, 2]}, "`looks` (3, 2) must rise"),
        ({"runs": ["base", "warm"], "looks": [1, 2]}, "verdicts.warmup.looks"),
        ({"runs": ["base", "again"]}, "verdicts.warmup: its runs differ only in train.seed"),
        ({"runs": ["base", "other"]}, "verdicts.warmup: its runs differ in data.limit_dev"),
        (["base", "warm"], "verdicts.warmup"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(verdict, problem):
    runs = {"base": {}, "warm": {"train.warmup": 0.1}, "other": {"data.limit_dev": 10}, "again": {"train.seed": 9}}
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        runs_of(verdict, runs)


def test_a_run_may_not_start_from_a_seed_that_is_perhaps_not_trained():
    def tuned(base):
        return {"base": {}, "warm": {"train.warmup": 0.1}, "tuned": {"model.source": {"run": base}}}

    assert "tuned" in runs_of({"runs": ["base", "warm"], "looks": [2, 3]}, tuned("base-seed+1"))
    with pytest.raises(ConfigurationError, match=re.escape("may not train base-seed+2, which run tuned starts from")):
        runs_of({"runs": ["base", "warm"], "looks": [2, 3]}, tuned("base-seed+2"))


def test_the_chance_to_tell_them_apart_at_the_end():
    """Against draws: of the true gap by what is known after four seeds, and of four further seeds."""
    looks, gap, error, generator = [4, 8], 0.02, 0.01, np.random.default_rng(0)
    further = generator.normal(generator.normal(gap, error, 200_000), error)
    expected = np.mean(np.abs((gap + further) / 2) > NormalDist().inv_cdf(1 - level_of(2) / 2) * error / np.sqrt(2))
    judged = Judged("", gap, Difference(0, 1, False, "", 0.05, error))
    assert chance_at_the_end(judged, looks, 1) == pytest.approx(expected, abs=0.005) and 0.5 < expected < 0.7
    assert chance_at_the_end(judged, looks, 2) == 0  # no look is left
    assert chance_at_the_end(Judged("", 0.0), looks, 1) == 0  # they predict the same


def test_a_look_is_only_awaited_where_the_one_before_asks_for_it(monkeypatch):
    said = {}
    stage = DecideSeeds.__new__(DecideSeeds)
    stage.verdicts = {"v": SequentialVerdict(runs=["a", "b"], looks=[2, 3, 4])}
    monkeypatch.setattr(stage, "continues", lambda job: said.get(job, False), raising=False)
    assert stage.looks_of("v") == ["v/1", "v/2", "v/3"] and stage.finishing() == []
    assert stage.reads("v/2") == {"decide_seeds v/1": ("decide_seeds", "v/1")}
    said["v/1"] = True
    assert sorted(stage.finishing()) == ["a-seed+2", "b-seed+2"]
    assert stage.reads("v/2") == {"decide_seeds v/1": ("decide_seeds", "v/1")} | {
        run: ("evaluate_model", run) for run in ("a", "a-seed+1", "a-seed+2", "b", "b-seed+1", "b-seed+2")
    }
    said["v/2"] = True
    assert len(stage.finishing()) == 4 and "a-seed+3" in stage.reads("v/3")


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    """One learns, by its seed more or less; the other does not. Two seeds cannot tell, but three might."""
    folder = tmp_path_factory.mktemp("verdicts")
    runs = {"learns": {"train.learning_rate": 1e-2}, "stays": {"train.learning_rate": 1e-6}}
    train = {"batch_size": 16, "epochs": 4, "evaluations_per_epoch": 1}
    make_workspace(folder, runs=runs, train=train, select={"metric": "loss"}, verdicts={"rate": {"runs": [*runs], "looks": [2, 3]}})
    snakemake(folder)
    return folder


@pytest.mark.slow
def test_seeds_are_added_and_the_page_says_what_was_decided(looked_at):
    first, last = (read_manifest(looked_at / f"results/verdicts/rate/{look}/manifest.json") for look in (1, 2))
    assert (first.facts["seeds"], first.facts["continues"]) == (2, True), first.facts
    assert "learns is not clearly better than stays: test loss " in first.facts["verdict"] and "(2 seeds each)" in first.facts["verdict"]
    assert (last.facts["seeds"], last.facts["continues"]) == (3, False) and last.facts["looks"][0] == first.facts["looks"][0]
    assert "98.75 % interval" in last.facts["verdict"] or "tested at a level of 1.25 %" in last.facts["verdict"]
    trained = {path.parents[1].name for path in looked_at.glob("results/runs/*/training/manifest.json")}
    assert trained == {f"{run}{seed}" for run in ("learns", "stays") for seed in ("", "-seed+1", "-seed+2")} == set(last.facts["looks"][1])
    assert last.facts["verdict"] in read_manifest(looked_at / "results/comparison/manifest.json").facts["verdict"]


@pytest.mark.slow
def test_an_added_look_makes_no_training_stale(looked_at):
    def planned() -> dict[str, int]:
        printed = snakemake(looked_at, "--dry-run").stdout
        return {rule: int(number) for rule, number in re.findall(r"^(\w+) +(\d+)$", printed, re.MULTILINE) if rule not in ("total", "all")}

    assert planned() == {}
    changed = read_configuration(looked_at)
    changed["verdicts"]["rate"]["looks"] = [2, 3, 4]
    write_configuration(looked_at, changed)
    assert planned() == {"decide_seeds": 3, "compare_runs": 1}
