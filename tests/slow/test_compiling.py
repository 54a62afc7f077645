"""Trainings whose blocks are compiled by torch.compile, on the CPU: the losses and weights of those that are not."""

from typing import Any

import pytest
from distributed.test_strategies import job, run

pytestmark = pytest.mark.slow

MODELS = ("bert", "lm")  # the second recomputes activations


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> dict[str, Any]:
    jobs = {f"{name} {compiled}": ("trained", job("single", name, compile=compiled)) for name in MODELS for compiled in (False, True)}
    return run(tmp_path_factory.mktemp("compiled"), 1, jobs)


@pytest.mark.parametrize("model", MODELS)
def test_compiled_blocks_train_as_others(done, model):
    found, expected = done[f"{model} True"], done[f"{model} False"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
