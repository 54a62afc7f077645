"""On one GPU, with NCCL: every strategy has the losses of a CPU in fp32, learns in the other precisions, and resumes what others saved."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed.test_strategies import ARGUMENTS, EVERYWHERE, HALF, STEP, STEPS, brief, run

ALONE = ("single", "data_parallel", *EVERYWHERE, "mesh")
MODELS = ("bert", "bart", "llama", "lm", "packed", "mixture")
PRECISIONS = ("tf32", "bf16", "fp16")
TOLERANCE = {"tf32": 2e-3, "bf16": 2e-2, "fp16": 2e-3}  # of the first loss, before rounding has grown


def job(strategy: str, model: str, device: str = "cuda", checkpoints: Path | None = None, precision: str = "fp32", **train: Any) -> dict:
    return brief(strategy, model, checkpoints, precision=precision, **train) | {"device": device}


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("cpu"), 1, {model: ("trained", job("single", model, "cpu")) for model in MODELS})


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory) -> dict[str, Any]:
    folder, jobs = tmp_path_factory.mktemp("gpu"), {}
    for strategy in ALONE:
        for model in MODELS:
            if works(strategy, model):
                saved = folder / strategy if model == "bart" else None
                jobs[f"{strategy} {model}"] = "trained", job(strategy, model, checkpoints=saved)
        model = "llama" if strategy == "mesh" else "bart"
        for precision in PRECISIONS:
            jobs[f"{strategy} {precision}"] = "trained", job(strategy, model, precision=precision)
        jobs[f"{strategy} overflow"] = "overflowed", job(strategy, model, precision="fp16")
    jobs["compiled"] = "trained", job("single", "bert", compile=True)
    return run(folder, 1, jobs) | {"folder": folder}


def works(strategy: str, model: str) -> bool:
    return strategy not in ("tensor_parallel", "mesh") or model in (
        ("llama", "lm", "packed") if strategy == "mesh" else ARGUMENTS | {"llama": {}}
    )


CASES = [(strategy, model) for strategy in ALONE for model in MODELS if works(strategy, model)]


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_losses_are_those_of_a_cpu(on_cpu, on_gpu, strategy, model):
    expected, found = on_cpu[model], on_gpu[f"{strategy} {model}"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4) and len(found["losses"]) == STEPS
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-3)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", ALONE)
def test_other_precisions_compute_nearly_the_same(on_cpu, on_gpu, strategy, precision):
    expected = on_cpu["llama" if strategy == "mesh" else "bart"]["losses"]
    found = on_gpu[f"{strategy} {precision}"]["losses"]
    assert found[0] == pytest.approx(expected[0], rel=TOLERANCE[precision])
    assert found == pytest.approx(expected, rel=30 * TOLERANCE[precision]) and len(found) == STEPS
    assert found != on_gpu[f"{strategy} {'llama' if strategy == 'mesh' else 'bart'}"]["losses"] or precision == "tf32"


@pytest.mark.parametrize("strategy", ALONE)
def test_a_step_that_overflows_is_skipped(on_gpu, strategy):
    found = on_gpu[f"{strategy} overflow"]
    assert found["unchanged"] and found["scales"] == [2.0**15]


def test_compiled_blocks_compute_the_same(on_cpu, on_gpu):
    found = on_gpu["compiled"]
    assert found["losses"] == pytest.approx(on_cpu["bert"]["losses"], rel=1e-4)
    assert found["compiled"][0] == found["compiled"][1] > 0


def test_what_one_saved_the_others_resume(on_cpu, on_gpu, tmp_path):
    """On the GPU, and on a CPU what the GPU saved."""
    pairs = [("single", other) for other in EVERYWHERE] + [(other, "single") for other in EVERYWHERE]
    for before, after in [*pairs, ("fsdp", "cpu")]:
        shutil.copytree(on_gpu["folder"] / before / STEP, tmp_path / f"{before}-{after}" / STEP)
    jobs = {f"{a} {b}": ("trained", job(b, "bart", checkpoints=tmp_path / f"{a}-{b}")) for a, b in pairs}
    found = run(tmp_path, 1, jobs) | run(
        tmp_path, 1, {"fsdp cpu": ("trained", job("single", "bart", "cpu", checkpoints=tmp_path / "fsdp-cpu"))}
    )
    for name, resumed in found.items():
        assert resumed["start"] == HALF, name
        assert resumed["losses"] == pytest.approx(on_cpu["bart"]["losses"][HALF:], rel=1e-4), name


def test_float8_learns(tmp_path):
    pytest.importorskip("torchao", reason="train.precision: fp8 needs torchao")
    found = run(tmp_path, 1, {name: ("trained", job("single", "llama", precision=name)) for name in ("bf16", "fp8")})
    assert found["fp8"]["losses"] == pytest.approx(found["bf16"]["losses"], rel=0.1)
    assert found["fp8"]["losses"] != found["bf16"]["losses"]
