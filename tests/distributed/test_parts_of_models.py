"""Processes of a `mesh` that hold different parts of a model, pipeline stages or experts: their losses equal those of one process, alone, combined with
other dimensions, and resumed from each other's checkpoints."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed.test_strategies import HALF, STEP, brief, job, run

TWO_LOSSES = {"task": f"{Path(__file__).with_name('pair_task.py')}:TwoLosses"}
# a text in each microbatch. The steps are those of `job`: of two experts that are equally good, rounding may choose the other one
ONE_TEXT = {"batch_size": 16, "steps": 12, "evaluate_every": 6}
# by the number of processes: name, model, arguments of `mesh` (or another strategy), whose checkpoint it resumes, and settings
FIRST = [
    ("deep", "deep", "single", None, {}),
    ("mixture", "mixture", "single", None, {}),
    ("qwen", "qwen", "single", None, {}),
    ("few", "few", "single", None, ONE_TEXT),
    ("half frozen", "half frozen", "single", None, TWO_LOSSES),
    ("1f1b, a frozen stage", "half frozen", {"pipeline": 2}, None, TWO_LOSSES | {"accumulate": 2}),
    ("1f1b", "deep", {"pipeline": 2}, None, {"accumulate": 12}),  # more than there are examples in a batch: some microbatches are fillers
    ("zbv, whole", "deep", {"pipeline": 2, "schedule": "zbv"}, None, {"accumulate": 4, "format": "whole"}),
    ("zbv, recomputed", "deep", {"pipeline": 2, "schedule": "zbv"}, None, {"accumulate": 4, "recompute_activations": True}),
    ("expert", "mixture", {"expert": 2}, None, {}),
    ("one expert each, or no token", "few", {"expert": 2}, None, ONE_TEXT),
    ("expert, packed", "qwen", {"expert": 2}, None, {"accumulate": 2, "format": "whole"}),
]
RESUMED = [
    ("interleaved from single", "deep", {"pipeline": 2, "schedule": "interleaved"}, "deep", {"accumulate": 4}),
    ("single from 1f1b", "deep", "single", "1f1b", {}),
    ("fsdp from zbv", "deep", "fsdp", "zbv, whole", {}),
    ("expert from single", "mixture", {"expert": 2}, "mixture", {}),
    ("pipeline from expert", "mixture", {"pipeline": 2}, "expert", {"accumulate": 2}),
]
ON_FOUR = [
    ("1f1b and shard", "deep", {"pipeline": 2, "shard": 2}, "1f1b", {"accumulate": 4}),
    ("zbv and shard", "deep", {"pipeline": 2, "shard": 2, "schedule": "zbv"}, "zbv, whole", {"accumulate": 4}),
    ("interleaved and replicate", "deep", {"pipeline": 2, "replicate": 2, "schedule": "interleaved"}, "1f1b", {"accumulate": 4}),
    ("zbv and tensor", "deep", {"pipeline": 2, "tensor": 2, "schedule": "zbv"}, "zbv, whole", {"accumulate": 4}),
    ("expert and shard", "mixture", {"expert": 2, "shard": 2}, "expert", {}),
    ("expert and pipeline", "mixture", {"expert": 2, "pipeline": 2}, "expert", {"accumulate": 2}),
]
EMA = {"callbacks": [{"use": "snaketrain.training.weight_average.Ema", "arguments": {"decay": 0.8}}]}
AVERAGED = [
    ("deep, averaged", "deep", "single", None, EMA),
    ("pipeline, averaged in shards", "deep", {"pipeline": 2}, None, EMA | {"accumulate": 2}),
    ("pipeline, averaged as a whole", "deep", {"pipeline": 2}, None, EMA | {"accumulate": 2, "format": "whole"}),
    ("tensor, averaged as a whole", "deep", {"tensor": 2}, None, EMA | {"format": "whole"}),
    ("context, averaged in shards", "deep", {"context": 2}, None, EMA),
    ("zero1, averaged in shards", "deep", "zero1", None, EMA | {"format": "sharded"}),
]
CASES = [(name, model, resumes) for name, model, _, resumes, _ in [*FIRST, *RESUMED] if name != model]
CASES_ON_FOUR = [(name, model, resumes) for name, model, _, resumes, _ in ON_FOUR]


OVERFLOWING = {
    "pipeline overflows": job("mesh", "deep", arguments={"pipeline": 2}, accumulate=2, precision="fp16"),
    "a frozen stage overflows": job("mesh", "half frozen", arguments={"pipeline": 2}, accumulate=2, precision="fp16"),
    "expert overflows": job("mesh", "mixture", arguments={"expert": 2}, precision="fp16"),
}


def trained(folder: Path, processes: int, cases: list[Any], more: Any = None) -> dict[str, Any]:
    jobs = dict(more or {})
    for name, model, strategy, resumes, settings in cases:
        if resumes:
            shutil.copytree(folder / resumes / STEP, folder / name / STEP)
        use, arguments = (strategy, {}) if isinstance(strategy, str) else ("mesh", strategy)
        jobs[name] = "trained", brief(use, model, folder / name, arguments, **settings)
    return run(folder, processes, jobs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def found(folder) -> dict[str, Any]:
    """What each training on two processes found."""
    overflowed = {name: ("overflowed", each) for name, each in OVERFLOWING.items()}
    return trained(folder, 2, [*FIRST, *AVERAGED]) | trained(folder, 2, RESUMED, overflowed)


@pytest.fixture(scope="module")
def on_four(folder, found) -> dict[str, Any]:
    return found | trained(folder, 4, ON_FOUR)


@pytest.mark.parametrize(("name", "model", "resumes"), CASES)
def test_losses_norms_and_examples_equal_those_of_single(found, name, model, resumes):
    compare(found[name], found[model], HALF if resumes else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "resumes"), CASES_ON_FOUR)
def test_combined_with_other_dimensions_they_equal_those_of_single(on_four, name, model, resumes):
    compare(on_four[name], on_four[model], HALF)
    assert on_four[name]["placed"] == pytest.approx(on_four[name]["metrics"], rel=1e-5)


def compare(training: dict[str, Any], expected: dict[str, Any], start: int) -> None:
    assert training["start"] == start
    assert len(training["losses"]) == len(expected["losses"]) - start >= HALF
    assert training["losses"] == pytest.approx(expected["losses"][start:], rel=1e-5)
    assert training["norms"] == pytest.approx(expected["norms"][start:], rel=1e-4)
    assert training["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
    assert training["ids"] == expected["ids"][start:]


@pytest.mark.parametrize("name", [name for name, *_ in CASES])
def test_saved_weights_are_evaluated_as_in_training(found, name):
    assert found[name]["placed"] == pytest.approx(found[name]["metrics"], rel=1e-5)


@pytest.mark.parametrize("name", [name for name, *_ in AVERAGED])
def test_averages_are_evaluated_and_saved_as_in_one_process(found, name):
    """They are those of all processes, whichever of them hold them."""
    assert found[name]["losses"] == pytest.approx(found["deep"]["losses"], rel=1e-5)
    assert found[name]["metrics"] == pytest.approx(found["deep, averaged"]["metrics"], rel=1e-5)
    assert found[name]["placed"] == pytest.approx(found[name]["metrics"], rel=1e-5)
    assert found[name]["metrics"]["loss"] != pytest.approx(found["deep"]["metrics"]["loss"], rel=1e-3)


@pytest.mark.parametrize("name", OVERFLOWING)
def test_an_overflow_in_one_process_is_skipped_by_all(found, name):
    assert found[name]["unchanged"]
    assert set(found[name]["scales"]) == {2.0**15}  # lowered from 2 ** 16, in every process
