"""A run starts from the selected model of another: in the same bits as from its folder, after it, and again whenever that one changes."""

import pytest
from pipeline.test_staleness import jobs_in
from pipeline.workspace import make_workspace, read_configuration, snakemake, write_configuration

from snaketrain.config.runs import read_runs
from snaketrain.config.schema.model import Weights
from snaketrain.extras.chains.check import problems_of_runs
from snaketrain.runtime.manifests import read_manifest
from snaketrain.tracking.mlflow_store import Store

RUNS = {"base": {"train.epochs": 1}, "tuned": {"model.source": {"run": "base"}, "train.learning_rate": 3e-4}}
DATA = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("chains"), runs=RUNS | {"other": {"train.epochs": 1, "train.seed": 5}})
    snakemake(folder)
    return folder


def selected(folder, run):
    return read_manifest(folder / f"results/runs/{run}/selection/manifest.json")


@pytest.mark.slow
def test_the_weights_are_those_of_a_training_from_the_folder(workspace):
    changed = read_configuration(workspace)
    changed["runs"]["by_path"] = RUNS["tuned"] | {"model.source": {"path": "results/runs/base/selection/model"}}
    write_configuration(workspace, changed)
    snakemake(workspace)
    assert not jobs_in(snakemake(workspace, "--dry-run").stdout)
    assert selected(workspace, "tuned").facts["weights"] == selected(workspace, "by_path").facts["weights"]
    assert selected(workspace, "tuned").facts["weights"] != selected(workspace, "base").facts["weights"]
    assert read_manifest(workspace / "results/runs/tuned/training/manifest.json").inputs["model"] == selected(workspace, "base").content


def test_mlflow_and_the_card_name_the_first_run(workspace):
    client = Store(f"sqlite:///{workspace}/mlflow.db").client
    found = client.search_runs([client.get_experiment_by_name("words").experiment_id])
    by_name = {run.data.tags["mlflow.runName"]: run for run in found if run.data.tags.get("pipeline.stage") == "train"}
    tags = by_name["tuned"].data.tags
    assert (tags["pipeline.trained_from"], tags["pipeline.trained_from_run_id"]) == ("base", by_name["base"].info.run_id)
    assert "It began with the selected model of base." in tags["mlflow.note.content"]
    assert by_name["tuned"].data.params["model.source.run"] == "base"
    assert "pipeline.trained_from" not in by_name["other"].data.tags
    assert "fine-tuned from the run base" in (workspace / "results/runs/tuned/selection/model/README.md").read_text()


def test_another_training_of_the_first_run_makes_the_second_stale(workspace):
    changed = read_configuration(workspace)
    changed["runs"]["base"] = {"train.epochs": 1, "train.seed": 3}
    changed["runs"].pop("by_path", None)
    write_configuration(workspace, changed)
    jobs = jobs_in(snakemake(workspace, "--dry-run").stdout)
    assert {"train_model base", "train_model tuned"} <= jobs and "train_model other" not in jobs


def problems(**runs):
    return list(problems_of_runs(read_runs({"data": DATA, "runs": runs})))


def test_a_run_that_does_not_exist_is_told():
    (problem,) = problems(base={}, tuned={"model.source": {"run": "bse"}})
    assert problem == "model.source.run: there is no run 'bse'. Did you mean 'base'? Runs: base, tuned (run tuned)."


def test_a_circle_is_told():
    found = problems(
        a={"model.source": {"run": "b"}}, b={"model.initial_weights": {"source": {"run": "c"}}}, c={"model.source": {"run": "a"}}, d={}
    )
    assert [problem.partition(",")[0] for problem in found] == [
        "model.source.run: a starts from b starts from c starts from a",
        "model.initial_weights.source.run: b starts from c starts from a starts from b",
        "model.source.run: c starts from a starts from b starts from c",
    ]
    (itself,) = problems(a={"model.source": {"run": "a"}})
    assert "a starts from a" in itself


def test_a_run_that_leads_into_a_circle_is_not_blamed_for_it():
    found = problems(a={"model.source": {"run": "a"}}, b={"model.source": {"run": "a"}})
    assert len(found) == 1


def test_a_run_and_files_exclude_each_other():
    assert list(Weights.model_construct(run="base", path="folder").contradictions()) == ["names a run and `path`: keep one"]
    assert list(Weights(run="base").contradictions()) == []
