"""Every strategy has the losses of `single`, on one, two and four processes, and resumes from checkpoints of the others.

Many small trainings share one start of the processes, in the order of their number: `strategies_runner.py` runs them.
"""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import forking, running

from snaketrain.runtime.journal import read_events

RUNNER = Path(__file__).with_name("strategies_runner.py")
BERT_PLAN = {
    "*.self.[qkv]*": "colwise",
    "*.attention.output.dense": "rowwise",
    "*.intermediate.*": "colwise",
    "*.?.output.dense": "rowwise",
}
BART_PLAN = {"*.[qkv]_proj": "colwise", "*attn.out_proj": "rowwise", "*.fc1": "colwise", "*.fc2": "rowwise"}
PAIR_PLAN = {"*.blocks.0": "colwise", "*.blocks.1": "rowwise"}  # of both modules
ARGUMENTS = {
    "bert": {"plan": BERT_PLAN},
    "bart": {"plan": BART_PLAN},
    "pair": {"plan": PAIR_PLAN},
    "joint": {"plan": PAIR_PLAN},
}  # of tensor_parallel: Llama brings its own plan
NORMED = f"{Path(__file__).with_name('pair_task.py')}:Normed"
MODELS = ("bert", "bart", "llama")
SHARED_OUT = ("fairscale_oss", "fairscale_fsdp", "fsdp", "tensor_parallel")
EVERYWHERE = ("ddp", "zero1", *SHARED_OUT)
# points of a mesh: `lm` is padded and its blocks are recomputed, `packed` has several texts in a row
MESH = {
    2: [
        ("llama", {"context": 2}),
        ("packed", {"context": 2, "context_attention": "ulysses", "loss_parallel": True}),
        ("lm", {"tensor": 2, "sequence_parallel": True, "loss_parallel": True}),
    ],
    4: [("packed", {"context": 2}), ("lm", {"tensor": 2, "sequence_parallel": True, "build_once": True})],  # the other ranks shard
}
IN_PIECES = {1: {"bart"}, 2: {"llama", "packed"}, 4: {"bert", "lm"}}  # the models whose batches are split into two microbatches
# who saves half way and who resumes: strategy and processes before, strategy and processes after, model
SAVED = (
    {("single", 1, "bart"), ("single", 1, "llama"), ("single", 1, "own"), ("tensor_parallel", 2, "llama")}
    | {(strategy, 2, "bart") for strategy in EVERYWHERE}
    | {(strategy, 2, "own") for strategy in EVERYWHERE}
)
RESUMED = [
    *(("single", 1, strategy, 2, "bart") for strategy in ("zero1", "fairscale_oss", "fairscale_fsdp", "fsdp")),
    ("single", 1, "tensor_parallel", 2, "llama"),
    *((strategy, 2, "single", 4, "bart") for strategy in ("fsdp", "fairscale_fsdp", "ddp")),
    *((strategy, 2, "ddp", 4, "bart") for strategy in ("zero1", "fairscale_oss")),
    ("tensor_parallel", 2, "single", 4, "llama"),
    ("tensor_parallel", 2, "fsdp", 4, "bart"),
    *(("single", 1, strategy, 2, "own") for strategy in ("ddp", "zero1", "fairscale_oss")),
]


# sharded checkpoints of strategies that do not save them by default: who saves, and who resumes from them
SHARDED = [
    ("single", 1, "fsdp", 2),
    ("ddp", 2, "fairscale_fsdp", 4),
    ("zero1", 2, "fsdp", 4),
    ("fairscale_oss", 2, "single", 4),
    ("ddp", 2, "tensor_parallel", 4),
]


STEPS, HALF = 4, 2  # in two epochs, each with one smaller batch
BRIEF = {"batch_size": 80, "steps": STEPS, "evaluate_every": HALF}
STEP = f"checkpoints/step-{HALF:08d}"


def job(
    strategy: str, model: str, checkpoints: Path | None = None, arguments: dict | None = None, format: str = "auto",
    compile_backend: str = "inductor", **train: Any,
) -> dict:  # fmt: skip
    plan = ARGUMENTS.get(model, {}) if strategy == "tensor_parallel" else {}
    where = str(checkpoints) if checkpoints else None
    return {
        "strategy": strategy,
        "model": model,
        "arguments": plan | (arguments or {}),
        "train": train,
        "checkpoints": where,
        "format": format,
        "compile_backend": compile_backend,
    }


def brief(*given: Any, **named: Any) -> dict:
    """A `job` of few steps, of which the first half is saved; what goes wrong in the mathematics of a strategy shows in the second step."""
    return job(*given, **(BRIEF | named))


def cases(processes: int) -> list[tuple[str, str, dict]]:
    """Strategy, model and arguments of the trainings on this many processes; benchmarks/strategies.py runs all combinations."""
    if processes == 1:
        alone = [(strategy, model, {}) for strategy in ("single", "data_parallel") for model in MODELS]
        alone += [("single", model, {}) for model in ("own", "lm", "packed")]
        return [*alone, *((strategy, "bart", {}) for strategy in EVERYWHERE)]
    if processes == 2:
        found = [(strategy, model, {}) for strategy in EVERYWHERE for model in ("bert", "bart", "pair", "own")]
        # to the other strategies, llama is one more encoder
        found += [(strategy, "llama", {}) for strategy in ("fairscale_fsdp", "fsdp", "tensor_parallel")]
        found += [("fsdp", model, {"build_once": True}) for model in ("bart", "pair")]
        found += [("mesh", *case) for case in MESH[2]]
        return [*found, ("hsdp", "llama", {"shard": 2}), ("fsdp", "llama", {"cpu_offload": True, "exchange_each_piece": True})]
    found = [("fsdp", model, {}) for model in MODELS] + [("fsdp", "llama", {"build_once": True, "cpu_offload": True})]
    found += [("mesh", *case) for case in MESH[4]]
    found += [("ddp", "bert", {}), ("zero1", "bart", {}), ("fairscale_oss", "bart", {}), ("fairscale_fsdp", "bert", {})]
    found += [
        ("hsdp", "bart", {"shard": 2, "build_once": True}),
        ("tensor_parallel", "llama", {}),
        ("tensor_parallel", "bert", {"tensor": 2}),
    ]
    found += [("tensor_parallel", "llama", {"build_once": True}), ("tensor_parallel", "bart", {"build_once": True})]
    return [*found, ("tensor_parallel", "bart", {"tensor": 2, "shard": True, "build_once": True})]


def name_of(strategy: str, model: str, arguments: dict) -> str:
    return " ".join([strategy, model, *(f"{key}={value}" for key, value in arguments.items())])


def run(folder: Path, processes: int, jobs: dict[str, tuple[str, dict]], forked: bool = True) -> dict[str, Any]:
    """`forked`: several processes begin with torch loaded, but torch.compile hangs in them."""
    (folder / f"jobs-{processes}.json").write_text(json.dumps([[name, kind, job] for name, (kind, job) in jobs.items()]))
    files = [str(folder / f"{kind}-{processes}.json") for kind in ("jobs", "results")]
    if processes == 1 or not forked:
        torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(processes)]
        done = subprocess.run([*torchrun, str(RUNNER), *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    else:
        forking.preload()
        log = folder / f"log-{processes}"
        assert forking.run(files, processes, log, RUNNER) == [0] * processes, log.read_text()[-8000:]
    return json.loads(Path(files[1]).read_text())


def trainings(folder: Path, processes: int) -> dict[str, tuple[str, dict]]:
    jobs = {}
    for strategy, model, arguments in cases(processes):
        saves = (strategy, processes, model) in SAVED and not arguments
        checkpoints = folder / f"{strategy}-{processes}-{model}" if saves else None
        pieces = 2 if model in IN_PIECES[processes] and strategy != "single" else 1
        jobs[name_of(strategy, model, arguments)] = "trained", brief(strategy, model, checkpoints, arguments, accumulate=pieces)
    for before, few, after, many, model in RESUMED:
        if many == processes:
            half_way = folder / f"{before}-{few}-{model}-{after}-{many}"
            shutil.copytree(folder / f"{before}-{few}-{model}" / STEP, half_way / STEP)
            jobs[f"{before} {after} {model}"] = "trained", brief(after, model, checkpoints=half_way)
    for before, few, after, many in SHARDED:
        saved = folder / f"sharded-{before}-{few}"
        if few == processes:
            jobs[f"sharded {before}"] = "trained", brief(before, "bart", saved, format="sharded")
        if many == processes:
            half_way = folder / f"sharded-{before}-{few}-{after}-{many}"
            shutil.copytree(saved / STEP, half_way / STEP)
            jobs[f"sharded {before} {after}"] = "trained", brief(after, "bart", checkpoints=half_way)
    return jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture(scope="module")
def one(folder) -> dict[str, Any]:
    others = {f"longer {model}": ("trained", job("single", model)) for model in MODELS}
    return run(folder, 1, trainings(folder, 1) | others | {"single pair": ("trained", brief("single", "pair"))})


@pytest.fixture(scope="module")
def two(folder, one) -> dict[str, Any]:
    halves = {f"fp16 {strategy}": ("trained", brief(strategy, "bert", precision="fp16")) for strategy in EVERYWHERE}
    spoiled = {
        f"overflow {strategy} {model}": ("overflowed", job(strategy, model, precision="fp16"))
        for strategy in SHARED_OUT
        for model in ("bert", "joint")
    }
    normed = {
        f"normed {strategy} {format}": (
            "trained",
            brief(strategy, "pair", folder / f"normed-{strategy}-{format}", format=format, task=NORMED),
        )
        for strategy in ("ddp", "fsdp")
        for format in ("whole", "sharded")
    }
    return run(folder, 2, trainings(folder, 2) | halves | spoiled | normed)


@pytest.fixture(scope="module")
def four(folder, two) -> dict[str, Any]:
    return run(folder, 4, trainings(folder, 4))


ALL_CASES = [(processes, *case) for processes in (1, 2, 4) for case in cases(processes) if case[0] != "single"]


@pytest.mark.parametrize(("processes", "strategy", "model", "arguments"), ALL_CASES, ids=lambda value: str(value).replace(" ", ""))
def test_losses_norms_and_examples_equal_those_of_single(one, two, four, processes, strategy, model, arguments):
    found = {1: one, 2: two, 4: four}[processes][name_of(strategy, model, arguments)]
    expected = one[f"single {model}"]
    assert len(found["losses"]) == STEPS
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
    assert found["ids"] == expected["ids"]  # of each step, in whatever order


def test_each_epoch_contains_each_example_once(one):
    ids = one["single bert"]["ids"]
    for epoch in (ids[:HALF], ids[HALF:]):
        assert sorted(i for step in epoch for i in step) == list(range(90))
        assert sorted(len(step) for step in epoch) == [10, 80]  # one batch is smaller


def test_the_loss_falls(one):
    for model in MODELS:
        losses = one[f"longer {model}"]["losses"]
        assert sum(losses[-4:]) < 0.95 * sum(losses[:4])


@pytest.mark.parametrize(("before", "few", "after", "many", "model"), RESUMED)
def test_a_checkpoint_resumes_under_another_strategy(one, two, four, before, few, after, many, model):
    found, expected = {2: two, 4: four}[many][f"{before} {after} {model}"], one[f"single {model}"]
    assert found["start"] == HALF
    assert found["losses"] == pytest.approx(expected["losses"][HALF:], rel=1e-5)


@pytest.mark.parametrize(("before", "few", "after", "many"), SHARDED)
def test_any_strategy_resumes_from_shards(one, two, four, before, few, after, many):
    saved, found = {1: one, 2: two}[few][f"sharded {before}"], {2: two, 4: four}[many][f"sharded {before} {after}"]
    assert saved["placed"] == pytest.approx(saved["metrics"], rel=1e-5)
    assert found["start"] == HALF
    assert found["losses"] == pytest.approx(saved["losses"][HALF:], rel=1e-5)


@pytest.mark.parametrize(("strategy", "processes", "model"), sorted(SAVED))
def test_saved_weights_are_evaluated_as_in_training(one, two, strategy, processes, model):
    found = {1: one, 2: two}[processes][f"{strategy} {model}"]
    assert found["placed"] == pytest.approx(found["metrics"], rel=1e-5)


@pytest.mark.parametrize("format", ["whole", "sharded"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_are_evaluated_as_they_are_saved(two, strategy, format):
    """Each process updates the statistics of a BatchNorm by its own examples; one process's are saved."""
    found = two[f"normed {strategy} {format}"]
    assert found["placed"] == pytest.approx(found["metrics"], rel=1e-5)


def test_saved_files_have_equal_names_and_shapes(folder, four):
    """The same names, tied weights once, and complete groups of parameters, in both formats."""
    import torch

    weights, state = whole(folder / "single-1-bart" / STEP)
    decay = {name: group["weight_decay"] for group in state["param_groups"] for name in group["params"]}
    for saved in [*(f"{strategy}-2-bart" for strategy in EVERYWHERE), *{f"sharded-{before}-{few}" for before, few, *_ in SHARDED}]:
        place = folder / saved / STEP
        sharded = saved.startswith(("sharded", "fsdp", "fairscale_fsdp", "tensor_parallel"))
        assert (place / "weights/.metadata").is_file() is sharded
        their_weights, their_state = (in_shards if sharded else whole)(place)
        assert {name: tensor.shape for name, tensor in their_weights.items()} == {name: tensor.shape for name, tensor in weights.items()}
        assert their_state["state"].keys() == state["state"].keys()
        assert {name: group["weight_decay"] for group in their_state["param_groups"] for name in group["params"]} == decay
        for name, entries in state["state"].items():
            for key, value in entries.items():
                torch.testing.assert_close(their_state["state"][name][key], value, rtol=1e-3, atol=1e-6)


def whole(checkpoint: Path):
    import torch
    from safetensors.torch import load_file

    return load_file(checkpoint / "model.safetensors"), torch.load(checkpoint / "model.optimizer.pt", weights_only=True)


def in_shards(checkpoint: Path):
    import torch

    from snaketrain.training.checkpoints.rank_state import by_parameter, empty, fill, stored

    weights, moments = (fill(checkpoint / part, "model", empty(stored(checkpoint / part, "model"))) for part in ("weights", "optimizer"))
    return weights, by_parameter(moments, torch.load(checkpoint / "optimizer/model.groups.pt", weights_only=True))


@pytest.mark.parametrize("strategy", EVERYWHERE)
def test_half_precision_trains_alike(one, two, strategy):
    found, expected = two[f"fp16 {strategy}"]["losses"], one["single bert"]["losses"]
    assert found == pytest.approx(expected, rel=2e-3)
    assert found != pytest.approx(expected, rel=1e-6)  # it is half precision


@pytest.mark.parametrize("strategy", SHARED_OUT)
@pytest.mark.parametrize("model", ["bert", "joint"])
def test_an_overflow_in_one_process_is_skipped_by_all(two, strategy, model):
    """And in one of two modules, by both."""
    found = two[f"overflow {strategy} {model}"]
    assert found["unchanged"]
    assert set(found["scales"]) == {2.0**15}  # lowered from 2 ** 16, in every process


def test_an_interrupted_training_resumes_under_another_strategy(data, tmp_path):
    """With the training script. A finished training is trained again with another strategy, whose weights are equal up to rounding only."""
    folder, longer = tmp_path / "run/training", {"epochs": 6}
    whole = running.train(data, tmp_path / "whole", **longer)
    pids = running.start(data, folder, 2, strategy="fsdp", **longer)
    assert running.interrupted(pids, signal.SIGTERM, lambda: len(running.losses(folder)) >= 5) == [75, 75]
    stopped = max(running.losses(folder))
    assert 5 <= stopped < max(whole)
    found = running.train(data, folder, 2, strategy={"use": "fairscale_oss", "arguments": {"buffer_mb": 1}}, accumulate=2, **longer)
    assert found == pytest.approx(whole, rel=1e-5)
    attempts = [event for event in read_events(folder / "journal.jsonl")[0] if event["event"] == "attempt"]
    assert [event["resume_step"] for event in attempts] == [0, stopped]
    told = "resumes executed otherwise (strategy Fsdp, here FairscaleOss; arguments {}, here {'buffer_mb': 1}; accumulate 1, here 2)"
    assert attempts[1]["warning"].startswith(told) and "warning" not in attempts[0]
    assert not (tmp_path / "run/superseded").exists()
    assert running.train(data, folder, **longer) == pytest.approx(whole, rel=1e-5)
    assert [event["resume_step"] for event in read_events(folder / "journal.jsonl")[0] if event["event"] == "attempt"] == [0]
    assert len(list((tmp_path / "run/superseded").iterdir())) == 1
