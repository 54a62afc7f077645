"""Averaged weights: of the best checkpoints, when one is selected; of the steps of a training, on two processes and after a resume."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from distributed.running import interrupted, losses, run_stage, start, train
from safetensors.numpy import load_file

from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import file_digest, read_manifest
from snaketrain.runtime.stages import settings_words
from snaketrain.training.checkpoints.exporting import export_weights
from snaketrain.training.checkpoints.ranking import exported_files

EMA = {"use": "snaketrain.training.weight_average.Ema", "arguments": {"decay": 0.9}}
AVERAGED = {"callbacks": [EMA], "epochs": 4, "evaluations_per_epoch": 1, "learning_rate": 3e-3}


def select(data: Path, folder: Path, average: int) -> dict:
    """The selection, whose dev metrics an evaluation has measured again."""
    given = ["--training", folder / "training/manifest.json", "--data", data]
    chosen = {"select": {"metric": "loss", "average": average}}
    stage(folder, "select_checkpoint", "selection", given, chosen)
    options = [*given, "--selection", folder / "selection/manifest.json", "--run-name", "test", "--device", "cpu"]
    stage(folder, "evaluate_model", "evaluation", options, {"evaluate": {"batch_size": 7}})
    return json.loads((folder / "selection/selection.json").read_text())


def stage(folder: Path, name: str, output: str, given: list[object], settings: dict) -> None:
    words = ["--output", folder / output / "manifest.json", *given, *settings_words(folder, name, settings)]
    run_stage(name, words, folder / "log")


def weights_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """What is exported of a checkpoint."""
    if (checkpoint / "averages").is_dir():
        export_weights(checkpoint, checkpoint)
    return load_file(exported_files(checkpoint)["model.safetensors"])


def evaluations(folder: Path) -> list[dict[str, float]]:
    return [line["metrics"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == "eval"]


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    """Trainings in one process, with an average and without."""
    folder = tmp_path_factory.mktemp("alone")
    train(data, folder / "averaged", **AVERAGED)
    train(data, folder / "plain", **AVERAGED | {"callbacks": []})
    return folder


def test_a_resumed_average_of_shards_equals_that_of_one_process(data, alone, tmp_path):
    """The metrics are the average's in the training, and of what is selected; the losses are those without an average."""
    pids = start(data, tmp_path / "training", 2, strategy="fsdp", **AVERAGED)
    assert interrupted(pids, signal.SIGTERM, lambda: len(losses(tmp_path / "training")) >= 15) == [75, 75]
    train(data, tmp_path / "training", 2, strategy="fsdp", **AVERAGED)
    assert losses(tmp_path / "training") == pytest.approx(losses(alone / "plain"), rel=1e-5)
    found, expected = evaluations(tmp_path / "training"), evaluations(alone / "averaged")
    assert found == [pytest.approx(metrics, rel=1e-5) for metrics in expected]
    assert found[-1]["loss"] != pytest.approx(evaluations(alone / "plain")[-1]["loss"], rel=1e-3)
    selection = select(data, tmp_path, average=1)
    measured = json.loads((tmp_path / "evaluation/dev_results.json").read_text())["metrics"]
    assert measured == pytest.approx(selection["winner"]["metrics"], rel=1e-5)
    check_mean(tmp_path, select(data, tmp_path, average=2))


def check_mean(folder: Path, selection: dict) -> None:
    """The selected weights are the mean of those of the two best checkpoints."""
    first, second, *_ = (entry for entry in selection["ranking"] if entry["kept"])
    assert selection["why"].endswith(
        f"; selected is the average of the weights of steps {first['step']}, {second['step']}, whose own metrics are those of its evaluation"
    )
    assert selection["averaged"] == [first["step"], second["step"]]
    selected = load_file(folder / "selection/model/model.safetensors")
    parts = [weights_of(folder / "training" / entry["path"]) for entry in (first, second)]
    assert set(selected) == set(parts[0])
    for name, tensor in selected.items():
        assert np.array_equal(tensor, ((parts[0][name].astype(np.float64) + parts[1][name]) / 2).astype(np.float32)), name
    known = read_manifest(folder / "selection/manifest.json").facts["weights"]
    assert known["model.safetensors"] == file_digest(folder / "selection/model/model.safetensors")
    found = json.loads((folder / "evaluation/dev_results.json").read_text())["metrics"]
    assert all(found["loss"] != pytest.approx(entry["metrics"]["loss"], rel=1e-6) for entry in (first, second))
