"""Averaged weights: of the best checkpoints, when one is selected."""

import json
from pathlib import Path

import numpy as np
import pytest
from distributed.running import run_stage, train
from safetensors.numpy import load_file

from snaketrain.runtime.job_settings import settings_words
from snaketrain.runtime.manifests import file_digest, read_manifest
from snaketrain.training.checkpoints.exporting import export_weights


def select(data: Path, folder: Path, average: int) -> dict:
    """The selection, whose dev metrics an evaluation has measured again."""
    given = ["--training", folder / "training/manifest.json", "--data", data]
    chosen = ['select.metric="loss"', f"select.average={average}"]
    stage(folder, "select_checkpoint", "selection", given, chosen)
    options = [*given, "--selection", folder / "selection/manifest.json", "--run-name", "test", "--device", "cpu"]
    stage(folder, "evaluate_model", "evaluation", options, ["evaluate.batch_size=7"])
    return json.loads((folder / "selection/selection.json").read_text())


def stage(folder: Path, name: str, output: str, given: list[object], settings: list[str]) -> None:
    words = ["--output", folder / output / "manifest.json", *given, *settings_words(folder, name, settings)]
    run_stage(name, words, folder / "log")


def weights_of(checkpoint: Path) -> dict[str, np.ndarray]:
    if (checkpoint / "weights").is_dir():
        export_weights(checkpoint, checkpoint)
    return load_file(checkpoint / "model.safetensors")


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_the_best_checkpoints_are_averaged(data, tmp_path, strategy):
    train(data, tmp_path / "training", 1 if strategy == "single" else 2, strategy=strategy, learning_rate=5e-3)
    selection = select(data, tmp_path, average=2)
    first, second = (entry for entry in selection["ranking"] if entry["kept"])
    assert f"; its weights are averaged with those of steps {second['step']}" in selection["why"]
    selected = load_file(tmp_path / "selection/model/model.safetensors")
    parts = [weights_of(tmp_path / "training" / entry["path"]) for entry in (first, second)]
    assert set(selected) == set(parts[0])
    for name, tensor in selected.items():
        assert np.array_equal(tensor, ((parts[0][name].astype(np.float64) + parts[1][name]) / 2).astype(np.float32)), name
    manifest = read_manifest(tmp_path / "selection/manifest.json")
    assert manifest.facts["weights"]["model.safetensors"] == file_digest(tmp_path / "selection/model/model.safetensors")
    found = json.loads((tmp_path / "evaluation/dev_results.json").read_text())["metrics"]
    assert all(found["loss"] != pytest.approx(entry["metrics"]["loss"], rel=1e-6) for entry in (first, second))
