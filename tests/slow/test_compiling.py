"""Trainings whose blocks are compiled by torch.compile, on the CPU: the losses and gradients of those that are not."""

from typing import Any

import pytest
from distributed.test_strategies import job, run

pytestmark = pytest.mark.slow

ALONE = ("bert", "lm")  # the second recomputes activations
TOGETHER: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ddp": ("ddp", "bert", {}),
    "fsdp": ("fsdp", "llama", {}),
    "tensor": ("mesh", "llama", {"tensor": 2}),
    "ulysses": ("mesh", "llama", {"context": 2, "context_attention": "ulysses"}),
    "pipeline": ("mesh", "deep", {"pipeline": 2}),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    jobs = {f"{name} {compiled}": ("trained", job("single", name, compile=compiled)) for name in ALONE for compiled in (False, True)}
    jobs |= {f"{name} False": ("trained", job("single", name)) for name in ("llama", "deep")}
    return run(tmp_path_factory.mktemp("compiled"), 1, jobs)


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> dict[str, Any]:
    jobs = {
        name: ("trained", job(strategy, model, None, arguments, compile=True, accumulate=arguments.get("pipeline", 1)))
        for name, (strategy, model, arguments) in TOGETHER.items()
    }
    return run(tmp_path_factory.mktemp("compiled"), 2, jobs, forked=False)


@pytest.mark.parametrize("model", ALONE)
def test_compiled_blocks_train_as_others(alone, model):
    found, expected = alone[f"{model} True"], alone[f"{model} False"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)


@pytest.mark.parametrize("name", TOGETHER)
def test_compiled_blocks_train_as_others_on_two_processes(together, alone, name):
    """Other points of a mesh are refused: see `compile_error`."""
    found, expected = together[name], alone[f"{TOGETHER[name][1]} False"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
