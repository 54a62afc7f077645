"""A run that starts from a part of another run's weights, through the whole workflow."""

import shutil

import pytest
from safetensors.numpy import load_file

from pipeline.workspace import read_configuration, snakemake, write_configuration

EARLIER = "results/runs/small/selection/model"


@pytest.fixture
def finished(workspace, tmp_path):
    return shutil.copytree(workspace, tmp_path / "project", symlinks=True)


def test_only_the_encoder_of_a_trained_run(finished):
    config = read_configuration(finished)
    part = {"source": {"path": EARLIER}, "part": "bert.encoder."}
    # frozen, so that it can be found unchanged after the training
    config["runs"] = {"second": {"model.initial_weights": part, "train.steps": 2, "train.freeze": ["bert.encoder.*"], "train.seed": 9}}
    write_configuration(finished, config)
    training = "results/runs/second/training"
    snakemake(finished, f"{training}/manifest.json")
    before = load_file(finished / EARLIER / "model.safetensors")
    (checkpoint,) = (finished / training / "checkpoints").glob("step-*")
    after = load_file(checkpoint / "model.safetensors")
    same = {name for name in before if (before[name] == after[name]).all()}
    inside = {name for name in before if name.startswith("bert.encoder.")}
    assert inside and inside <= same
    assert not any("embeddings.word" in name or "classifier.weight" in name for name in same)
    assert "16 tensors of bert.encoder." in (finished / training / "logs/rank-0.log").read_text()
    assert "Nothing to be done" in snakemake(finished, f"{training}/manifest.json").stderr
    # other weights there: the run that started from them is stale
    shutil.copy(checkpoint / "model.safetensors", finished / EARLIER / "model.safetensors")
    assert "rule train_model" in snakemake(finished, "--dry-run", f"{training}/manifest.json").stdout


def test_a_name_without_a_counterpart_stops_the_training(finished):
    config = read_configuration(finished)
    config["runs"] = {"second": {"model.initial_weights": {"source": {"path": EARLIER}, "part": "bert.encoder.", "into": "encoder."}}}
    write_configuration(finished, config)
    done = snakemake(finished, "results/runs/second/training/manifest.json", check=False)
    assert done.returncode and "16 not in the model: encoder.layer.0." in done.stdout + done.stderr
