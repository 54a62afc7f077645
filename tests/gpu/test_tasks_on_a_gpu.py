"""On one GPU, with NCCL: tasks beside classification compute what they compute on a CPU; what is timed and recorded there is right."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from pipeline.test_masked_lm import WITHOUT_DROPOUT, journal, mask_token_for
from pipeline.workspace import REPOSITORY, configuration, make_workspace
from unit.test_masked_lm import batch_of, made, text, write_tokenizer

from snaketrain.extras.slow_ranks.slow_ranks import DeviceTimer
from snaketrain.strategies import make_strategy
from snaketrain.strategies.collectives import recorded_collectives

CLOSE = 1e-3  # of losses, after steps in which rounding has grown
WHERE = {
    "gpu": {"compute.device": "cuda", "train.precision": "fp32"},
    "cpu": {"compute.device": "cpu"},
    "half": {"train.precision": "bf16"},
}


def finished(folder: Path) -> Path:
    snakemake = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "8"]
    done = subprocess.run(snakemake, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return folder


def losses(folder: Path, run: str) -> list[float]:
    return [event["metrics"]["loss"] for event in journal(folder, run, "train")]


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    given = configuration()
    data = {name: value for name, value in given["data"].items() if name != "labels"} | {"label": None}
    make_workspace(
        folder,
        data=data,
        model={"use": "transformers.BertForMaskedLM", "arguments": given["model"]["arguments"] | WITHOUT_DROPOUT},
        train=given["train"] | {"task": "masked_lm", "epochs": 3, "learning_rate": 3e-3},
        select={"metric": "loss"},
        runs=WHERE,
    )
    mask_token_for(folder)
    return finished(folder)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tagged")
    given = configuration()
    words = [sentence.split() for sentence in ("a good film", "the bad plot is dull", "it was great and warm", "this story is cold")]
    kinds = [["B-X" if word in ("good", "bad", "dull", "great", "warm", "cold") else "O" for word in each] for each in words]
    rows = [{"tokens": each, "tags": tags} for each, tags in zip(words, kinds, strict=True)] * 60
    (folder / "tagged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"train": {"path": "tagged.jsonl"}, "text": "tokens", "label": "tags", "label_kind": "tags", "labels": None}
    make_workspace(
        folder,
        data=given["data"] | data,
        model={"use": "transformers.BertForTokenClassification", "arguments": given["model"]["arguments"] | WITHOUT_DROPOUT},
        train=given["train"] | {"task": "token_classification", "epochs": 2},
        select={"metric": "f1"},
        runs=WHERE,
    )
    return finished(folder)


@pytest.mark.parametrize("task", ["masked", "tagged"])
def test_a_task_learns_the_same_on_a_gpu(request, task):
    folder = request.getfixturevalue(task)
    expected, half = losses(folder, "cpu"), losses(folder, "half")
    assert len(expected) > 3 and losses(folder, "gpu") == pytest.approx(expected, rel=CLOSE)
    assert half == pytest.approx(expected, rel=0.1) and half != expected
    results = [json.loads((folder / f"results/runs/{run}/evaluation/test_results.json").read_text()) for run in ("cpu", "gpu")]
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"], rel=0.05)


def test_masks_are_those_of_a_cpu(tmp_path):
    task, _ = made(write_tokenizer(tmp_path))
    batch = batch_of(*(text(5 + number, number) for number in range(120)))
    for epoch in range(5):
        on_cpu, on_gpu = task.masked(batch, epoch), task.masked({name: tensor.cuda() for name, tensor in batch.items()}, epoch)
        assert all(torch.equal(one, other.cpu()) for one, other in zip(on_cpu, on_gpu, strict=True))


def test_the_timer_of_slow_ranks_measures_the_device():
    layer = torch.nn.Linear(4096, 4096).cuda()
    inputs, timer, found = torch.randn(8192, 4096, device="cuda"), DeviceTimer(), []
    timer.watch(layer)
    timer.on = True
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        layer(inputs)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
        timer.end_step()
    measured = [timer.next_seconds() for _ in found]
    assert all(seconds is not None for seconds in measured)
    # what the clock adds is the launch
    assert all(0.5 * seconds < own < 1.1 * seconds for own, seconds in zip(measured[2:], found[2:], strict=True)), (measured, found)


COLLECTIVES = f"""
import sys
sys.path[:0] = [{str(REPOSITORY / "workflow/scripts")!r}, {str(REPOSITORY / "tests")!r}]
from gpu import test_tasks_on_a_gpu
test_tasks_on_a_gpu.record()
"""


def record() -> None:
    """In a process of torchrun."""
    import torch.distributed as dist

    make_strategy("ddp", {}, device="cuda", precision="fp32").start()
    for _ in range(3):
        dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    time.sleep(2)  # the watchdog retires what has ended
    found = recorded_collectives()
    print("FOUND", found.to_json(), flush=True)
    dist.destroy_process_group()


def test_the_flight_recorder_of_nccl_is_read(tmp_path):
    script = tmp_path / "record.py"
    script.write_text(COLLECTIVES)
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "1", str(script)]
    done = subprocess.run(torchrun, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    found = json.loads(line.removeprefix("FOUND "))
    assert any(group.startswith("nccl") and number >= 3 for group, number in found["last"].items()), found
    assert not found["unfinished"]
