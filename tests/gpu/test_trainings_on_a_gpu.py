"""Real trainings on one GPU: killed and resumed to the same bits, out of memory, and the whole workflow."""

import json
import subprocess
import sys
from pathlib import Path

import limits
import psutil
import pytest
from distributed import forking, running
from pipeline.workspace import REPOSITORY, configuration, make_workspace, prepared

from snaketrain.config.schema import Model
from snaketrain.runtime.journal import events_named
from snaketrain.training.watching import gpus

BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
SMALL = Model(use="transformers.BertForSequenceClassification", arguments=BERT)  # with dropout
LARGE = Model(
    use="transformers.BertForSequenceClassification",
    arguments=BERT | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6},
)
TRAIN = {"batch_size": 16, "epochs": 12, "learning_rate": 1e-3, "evaluations_per_epoch": 2}


@pytest.fixture(scope="module")
def data(made_once) -> Path:
    (manifest,) = made_once("prepared", prepared).glob("results/data/*/manifest.json")
    return manifest


def command(
    data: Path, folder: Path, model: Model = SMALL, script: Path = forking.SCRIPT, more: tuple[str, ...] = (), **train
) -> list[str]:
    start = [sys.executable]
    if train.get("strategy", "single") != "single":
        start = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "1"]
    return [
        *start,
        str(script),
        *running.arguments(data, folder, model, **(TRAIN | train)),
        "--device",
        "cuda",
        *more,
    ]  # the last device counts


def finished(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=limits.seconds(300))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def weights(folder: Path) -> dict:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import kill_anywhere

    return kill_anywhere.result(folder)[0]


@pytest.mark.parametrize(
    ("precision", "strategy", "format"),
    [
        ("fp32", "single", "auto"),
        ("bf16", "single", "auto"),
        ("fp16", "ddp", "auto"),
        ("bf16", "fsdp", "auto"),
        ("bf16", "fsdp", "sharded"),
        ("fp16", "fsdp", "sharded"),
        ("bf16", "fairscale_oss", "auto"),
        ("fp32", "zero1", "auto"),
    ],
)
def test_a_killed_training_has_the_same_weights_in_the_end(data, tmp_path, precision, strategy, format):
    settings = {"precision": precision, "strategy": strategy, "deterministic": True, "more": ("--checkpoint-format", format)}
    finished(command(data, tmp_path / "alone", **settings))
    words, folder = command(data, tmp_path / "killed", **settings), tmp_path / "killed"
    steps = max(running.losses(tmp_path / "alone"))
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reached = lambda: (folder / "journal.jsonl").exists() and max(running.losses(folder), default=0) >= steps // 2  # noqa: E731
    limits.until(reached, 120, process)
    started = psutil.Process(process.pid)
    for each in [*started.children(recursive=True), started]:  # the workers of torchrun would outlive it
        each.kill()
    process.wait()
    finished(words)
    resumed = [event["resume_step"] for event in events_named(folder / "journal.jsonl", "attempt")]
    assert len(resumed) == 2 and 0 < resumed[1] < steps
    alone, killed = weights(tmp_path / "alone"), weights(folder)
    assert alone.keys() == killed.keys() and all((alone[name] == killed[name]).all() for name in alone)
    assert running.losses(tmp_path / "alone") == running.losses(folder)


def test_a_signal_saves(data, tmp_path):
    words, folder = command(data, tmp_path / "run", epochs=200), tmp_path / "run"
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    limits.until(lambda: (folder / "journal.jsonl").exists() and max(running.losses(folder), default=0) >= 3, 120, process)
    process.terminate()
    _, said = process.communicate(timeout=limits.seconds(120))
    (end,) = events_named(folder / "journal.jsonl", "end")
    assert end["status"] == "STOPPED" and end["step"] >= 3 and f"at step {end['step']}" in said
    assert (folder / f"checkpoints/step-{end['step']:08d}").is_dir()


OUT_OF_MEMORY = f"""
import runpy
import torch

torch.cuda.set_per_process_memory_fraction({{megabytes}} * 2**20 / torch.cuda.get_device_properties(0).total_memory)
runpy.run_path({str(forking.SCRIPT)!r}, run_name="__main__")
"""


def test_batches_shrink_where_memory_runs_out(data, tmp_path):
    """To microbatches that fit, with the same losses; without the setting the message names it."""
    large = {"batch_size": 160, "model": LARGE, "epochs": 2, "precision": "fp32"}
    finished(command(data, tmp_path / "alone", **large))
    peaks = [event["peak_memory_mb"] for event in events_named(tmp_path / "alone/journal.jsonl", "end")]
    script = tmp_path / "little.py"
    script.write_text(OUT_OF_MEMORY.format(megabytes=int(peaks[0] * 0.93)))
    said = finished(command(data, tmp_path / "little", script=script, more=("--reduce-batch-on-oom",), **large))
    assert "from now on each batch is computed in 2 microbatches" in said
    expected = running.losses(tmp_path / "alone")
    assert running.losses(tmp_path / "little") == pytest.approx(expected, rel=0.2) and expected
    refused = subprocess.run(command(data, tmp_path / "refused", script=script, **large), capture_output=True, text=True)
    assert (
        refused.returncode
        and "Out of memory with a microbatch of" in refused.stderr
        and "compute.reduce_batch_on_oom: true" in refused.stderr
    )


def test_the_whole_workflow_on_a_gpu(tmp_path):
    """`auto` finds the GPU and computes in bf16; a prediction runs there too."""
    config = configuration()
    config["compute"] = {"threads": 1}
    config["runs"] = {"small": {}, "sharded": {"train.strategy": "fsdp"}, "half": {"train.precision": "fp16"}}
    make_workspace(tmp_path, **config)
    snakemake = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "4"]
    done = subprocess.run(snakemake, cwd=tmp_path, capture_output=True, text=True, timeout=limits.seconds(400))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    for name, precision in (("small", "bf16"), ("sharded", "bf16"), ("half", "fp16")):
        journal = tmp_path / f"results/runs/{name}/training/journal.jsonl"
        assert json.loads((journal.parent / "manifest.json").read_text())["facts"]["precision"] == precision
        (log,) = (tmp_path / f"results/runs/{name}/training/logs").glob("rank-0.log")
        assert ", cuda" in log.read_text()
    table = (tmp_path / "results/comparison/runs.csv").read_text()
    assert table.count("\n") == 4, table
    again = subprocess.run([*snakemake, "-n"], cwd=tmp_path, capture_output=True, text=True, timeout=limits.seconds(100))
    assert "Nothing to be done" in again.stdout + again.stderr
    (tmp_path / "texts.txt").write_text("a good and warm film\nthe plot was very boring\n")
    predict = [str(Path(sys.executable).with_name("snaketrain")), "predict", "--model", "results/runs/small/selection/model"]
    predict += ["--input", "texts.txt", "--device", "cuda"]
    answered = subprocess.run(predict, cwd=tmp_path, capture_output=True, text=True)
    assert answered.returncode == 0, answered.stderr
    assert (tmp_path / "texts-predictions.csv").read_text().count("\n") == 3


def test_the_load_of_the_gpu_is_recorded():
    assert {"gpu_0_percent", "gpu_0_memory_mb"} <= gpus().keys()
