"""An evaluation takes only what it needs: one process by default, and as many as the training if the model is sharded."""

import shlex

import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Settings
from snaketrain.orchestration.launching import asked, launch
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.strategy_declarations import evaluation_compute, evaluation_errors

SOURCE = {"path": "x"}
DATA = {"train": SOURCE, "tokenizer": SOURCE}
LARGE = {"nodes": "2", "processes": 8, "gpus": 8, "threads": 64, "memory_mb": 400000, "minutes": 600, "partition": "gpu"}
OWN = """
from snaketrain.strategies.distributed import Distributed
from snaketrain.strategies.ddp import Ddp


class Compressed(Ddp):
    pass


class Sharding(Distributed):
    shards_model = True


class Rings(Ddp):
    degrees = {"ring": "data_parallel"}
"""


def run_of(strategy: object = "auto", **compute: object) -> Settings:
    train = {"strategy": strategy, "batch_size": 64}
    return Settings.model_validate({"data": DATA, "train": train, "compute": LARGE | compute})


def size(run: Settings) -> tuple[str, int, int]:
    compute = evaluation_compute(run)
    return compute.nodes, compute.processes, compute.gpus


@pytest.mark.parametrize("strategy", ["auto", "ddp", "zero1", "fairscale_oss"])
def test_one_process_evaluates_a_model_that_every_process_holds(strategy):
    run = run_of(strategy)
    assert size(run) == ("1", 1, 1)
    kept = evaluation_compute(run)
    assert (kept.threads, kept.memory_mb, kept.minutes, kept.partition) == (64, 400000, 600, "gpu")
    assert size(run_of(strategy, gpus=0)) == ("1", 1, 0)


@pytest.mark.parametrize(
    "strategy",
    ["fsdp", {"use": "hsdp", "arguments": {"shard": 8}}, {"use": "tensor_parallel", "arguments": {"tensor": 8}}, "fairscale_fsdp"],
)
def test_a_sharded_model_is_evaluated_where_it_was_trained(strategy):
    assert size(run_of(strategy)) == ("2", 8, 8)
    assert size(run_of(strategy, evaluation={"nodes": 1})) == ("1", 8, 8)


def test_a_users_strategy_declares_whether_it_shards_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    assert size(run_of("own.py:Compressed")) == ("1", 1, 1)
    assert size(run_of("own.py:Sharding")) == ("2", 8, 8)
    assert size(run_of({"use": "own.py:Rings", "arguments": {"ring": 2}})) == ("2", 8, 8), "which one process cannot divide"


def test_given_sizes_are_used_and_every_process_gets_a_gpu():
    wanted = {"processes": 4, "threads": 8, "memory_mb": 32000, "minutes": 30, "partition": "short", "sbatch": "--constraint=small"}
    found = evaluation_compute(run_of(evaluation=wanted))
    assert size(run_of(evaluation=wanted)) == ("1", 4, 4)
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert size(run_of(evaluation={"processes": 4, "gpus": 5})) == ("1", 4, 5)
    assert size(run_of(evaluation={"processes": 4}, gpus=0)) == ("1", 4, 0)
    assert size(run_of(evaluation={"in_training_job": True})) == ("2", 8, 8)


@pytest.mark.parametrize(
    ("strategy", "evaluation", "told"),
    [
        ("single", {"processes": 2}, "train.strategy `single` runs in one process, but compute.evaluation.processes is 2"),
        ("ddp", {"processes": 4, "gpus": 2}, "compute.evaluation: `processes` (4) need a GPU each, but `gpus` is 2"),
        ("ddp", {"nodes": "1-9", "threads": 2}, "compute.evaluation: `nodes` is 1-9, but with 2 `threads`"),
        ({"use": "tensor_parallel", "arguments": {"tensor": 8}}, {"processes": 3}, "does not divide compute.evaluation.processes (6)"),
    ],
)
def test_an_impossible_size_is_reported(strategy, evaluation, told):
    trained_on = {"nodes": "1", "processes": 1, "gpus": 1} if strategy == "single" else {}
    (found,) = evaluation_errors(run_of(strategy, **trained_on, evaluation=evaluation))
    assert told in found


@pytest.mark.parametrize(
    ("evaluation", "told"),
    [
        ({"in_training_job": True, "threads": 2}, "`in_training_job` evaluates with the training's size, but `threads` asks for another"),
        ({"nodes": "4-2"}, "compute.evaluation.nodes: 4-2 goes down"),
        ({"sbatch": "--mem=1"}, "compute.evaluation.sbatch: `--mem` is set by compute.memory_mb"),
    ],
)
def test_contradictions_of_the_section_are_reported_with_their_path(evaluation, told):
    with pytest.raises(ConfigurationError, match=".") as raised:
        Pipeline({"data": DATA, "compute": {"evaluation": evaluation}})
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("strategy", "compute", "light"),
    [
        ("ddp", {}, True),
        ("fsdp", {}, False),
        ("fsdp", {"checkpoint_format": "whole"}, True),
        ("ddp", {"checkpoint_format": "sharded"}, False),
    ],
)
def test_shards_are_not_joined_on_a_login_node(strategy, compute, light):
    runs = {"small": {}, "large": {"train.strategy": strategy, "compute": compute}}
    pipeline = Pipeline({"data": DATA, "train": {"batch_size": 64}, "compute": LARGE, "runs": runs})
    assert pipeline.selection_is_light is light


def test_its_job_and_its_command_have_its_own_size():
    config = {"data": DATA, "train": {"batch_size": 64}, "compute": LARGE}
    pipeline, as_trained = Pipeline(config, in_slurm_job=True), Pipeline(config | {"compute": {**LARGE, "evaluation": {"nodes": 3}}})
    training, evaluation = pipeline.stages["train_model"].compute("default"), pipeline.stages["evaluate_model"].compute("default")
    assert asked(training, saves=True)["gres"] == "gpu:8" and "-N2" in str(asked(training, saves=True)["slurm_extra"])
    assert asked(evaluation, saves=False)["gres"] == "gpu:1" and "-N1" in str(asked(evaluation, saves=False)["slurm_extra"])
    words = [shlex.split(launch(each, pipeline.in_slurm_job)) for each in (training, evaluation)]
    assert "--nproc-per-node=8" in words[0] and "--nproc-per-node=1" in words[1]
    assert pipeline.stages["evaluate_model"].planned("default") == as_trained.stages["evaluate_model"].planned("default"), (
        "nothing becomes stale"
    )


def test_jobs_of_a_run_evaluated_in_its_training_job_are_submitted_as_one():
    alone = Pipeline({"data": DATA, "train": {"batch_size": 64}, "compute": LARGE})
    assert alone.groups is None
    inside = {"compute.evaluation": {"in_training_job": True}}
    pipeline = Pipeline({"data": DATA, "train": {"batch_size": 64}, "compute": LARGE, "runs": {"a": inside, "b": inside, "c": {}}})
    assert callable(pipeline.groups) and [pipeline.groups([run]) for run in "abc"] == ["a", "b", None]
    assert [pipeline.is_in_group(run) for run in "abc"] == [True, True, False]
    # Snakemake merges the resources of their jobs: strings must be equal, and minutes are added up
    requests = [asked(pipeline.stages[stage].compute("a"), saves=stage == "train_model") for stage in ("train_model", "evaluate_model")]
    assert requests[0] == requests[1] and str(requests[0]["slurm_extra"]).split()[-3:] == ["-t600", "--signal=USR1@120", "-pgpu"]
