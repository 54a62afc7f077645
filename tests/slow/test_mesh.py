"""More points of a mesh on four processes, with the losses of `single`; and checkpoints that move between them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed.test_strategies import BART_PLAN, HALF, STEP, brief, name_of, run

pytestmark = pytest.mark.slow

ULYSSES, SEQUENCE, CUT = {"context_attention": "ulysses"}, {"tensor": 2, "sequence_parallel": True}, {"loss_parallel": True}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("bart", {}, {}),
    ("bart", {"replicate": 2}, {"accumulate": 2}),
    ("bart", {"tensor": 2, "plan": BART_PLAN}, {}),
    ("llama", {"context": 4}, {}),
    ("lm", {"context": 4, **ULYSSES, **CUT}, {"accumulate": 2}),
    ("packed", {"context": 2, "replicate": 2, **CUT}, {"accumulate": 2}),
    ("packed", {"context": 2, **ULYSSES, "exchange_each_piece": True}, {"accumulate": 2}),
    ("llama", {"context": 2, "tensor": 2, **ULYSSES, "build_once": True}, {}),
    ("llama", {"context": 2, **SEQUENCE}, {"accumulate": 2}),
    ("packed", {"context": 2, **SEQUENCE, **CUT}, {}),
    ("lm", {**SEQUENCE, "replicate": 2, **CUT}, {"accumulate": 2}),
]
ALL, CONTEXT = {"context": 2, **SEQUENCE, **CUT}, {"context": 4}
RESUMED = [("mesh", ALL, "single", {}), ("single", {}, "mesh", ALL), ("mesh", ALL, "mesh", CONTEXT), ("mesh", CONTEXT, "fsdp", {})]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("mesh")
    saving = {("single", ""): brief("single", "lm", folder / "single")}
    saving |= {("mesh", str(each)): brief("mesh", "lm", folder / name, each) for name, each in (("all", ALL), ("context", CONTEXT))}
    saved = {key: Path(each["checkpoints"]) for key, each in saving.items()}
    jobs = {f"single {model}": ("trained", brief("single", model)) for model in ("bart", "llama", "packed")}
    jobs |= {f"{use} saves {arguments}": ("trained", each) for (use, arguments), each in saving.items()}
    jobs |= {
        name_of("mesh", model, arguments): ("trained", brief("mesh", model, None, arguments, **train)) for model, arguments, train in CASES
    }
    found = run(folder, 4, jobs)
    resuming = {}
    for number, (before, given, after, arguments) in enumerate(RESUMED):
        half_way = folder / f"half-way-{number}"
        shutil.copytree(saved[before, str(given or "")] / STEP, half_way / STEP)
        resuming[f"resumed {number}"] = "trained", brief(after, "lm", half_way, arguments)
    return found | run(folder, 4, resuming)


@pytest.mark.parametrize(("model", "arguments", "train"), CASES, ids=str)
def test_losses_norms_and_examples_equal_those_of_single(done, model, arguments, train):
    found, expected = done[name_of("mesh", model, arguments)], done["single saves " if model == "lm" else f"single {model}"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
    assert found["ids"] == expected["ids"]


@pytest.mark.parametrize("number", range(len(RESUMED)), ids=lambda number: str(RESUMED[number]))
def test_a_checkpoint_resumes_at_another_point(done, number):
    found, expected = done[f"resumed {number}"], done["single saves "]
    assert found["start"] == HALF
    assert found["losses"] == pytest.approx(expected["losses"][HALF:], rel=1e-5)
    assert found["placed"] == pytest.approx(expected["placed"], rel=1e-5)


THREE = [{"context": 2, **SEQUENCE}, {"context": 2, **ULYSSES, "replicate": 2}, {**SEQUENCE, **CUT, "replicate": 2}]  # the other two shard


def test_products_of_three_dimensions_on_eight_processes(tmp_path):
    jobs = {"single": ("trained", brief("single", "lm"))} | {str(each): ("trained", brief("mesh", "lm", None, each)) for each in THREE}
    found = run(tmp_path, 8, jobs)
    expected = found["single"]
    for each in map(str, THREE):
        assert found[each]["losses"] == pytest.approx(expected["losses"], rel=1e-5), each
        assert found[each]["norms"] == pytest.approx(expected["norms"], rel=1e-4), each
        assert found[each]["metrics"] == pytest.approx(expected["metrics"], rel=1e-5), each
        assert found[each]["ids"] == expected["ids"], each
