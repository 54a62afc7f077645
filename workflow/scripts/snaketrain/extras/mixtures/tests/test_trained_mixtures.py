"""Whole workflows with mixtures: two processes equal one, a killed training resumes bit for bit, and runs with another last phase share the earlier steps."""

import csv
from pathlib import Path
from typing import Any

import pytest
from pipeline.workspace import configuration, make_workspace, sentences, snakemake

from snaketrain.config.schema import Train
from snaketrain.data.loading.examples import TextExamples, open_training
from snaketrain.extras.mixtures.sampling import MixedBatches, MixedBlocks
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import read_manifest
from snaketrain.training.plan import Plan

pytestmark = pytest.mark.lengthy

PHASES = [{"until": 30, "sets": {"train": 0.5, "more": 0.5}}]
KILL = """
import os, signal
from pathlib import Path
from snaketrain.training.callbacks import Callback

class Kill(Callback):
    observes_only = True

    def on_step_end(self, state, outcome):
        if state.step == 25 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
TRAIN = {"batch_size": 16, "steps": 40, "learning_rate": 1e-3, "evaluate_every": 10, "save_every": 10, "schedule": "constant", "warmup": 2}


def workspace(folder: Path, runs: dict[str, Any], **sections: Any) -> Path:
    """Three training sets, a development and a test set."""
    config = configuration()
    rows = sentences(600)
    parts = {"train": rows[:240], "more": rows[240:330], "clean": rows[330:400], "dev": rows[400:500], "test": rows[500:]}
    data = {key: value for key, value in config["data"].items() if not key.endswith("_fraction")}
    data |= {"train_sets": {name: {"path": f"{name}.csv"} for name in ("more", "clean")}}
    data |= {split: {"path": f"{split}.csv"} for split in ("train", "dev", "test")}
    arguments = config["model"]["arguments"] | {"hidden_dropout_prob": 0.1}
    make_workspace(folder, data=data, runs=runs, train=TRAIN, model={**config["model"], "arguments": arguments}, **sections)
    for name, part in parts.items():
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    return folder


def last(sets: dict[str, float], **others: Any) -> dict[str, Any]:
    return {"train.mixture": {"phases": [*PHASES, {"sets": sets}]}, **others}


def events(folder: Path, run: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in read_events(folder / f"results/runs/{run}/training/journal.jsonl")[0] if each["event"] == kind]


def losses(folder: Path, run: str) -> dict[int, float]:
    return {event["step"]: event["metrics"]["loss"] for event in events(folder, run, "train")}


def weights(folder: Path, run: str, step: int, kind: str = "runs") -> bytes:
    return (folder / f"results/{kind}/{run}/training/checkpoints/step-{step:08d}/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Two runs that share a trunk, one that trains alone, and one on two processes."""
    alone = {"shared_steps.at_least": None}
    runs = {"clean": last({"clean": 1}), "more": last({"clean": 1, "more": 1})}
    folder = workspace(tmp_path_factory.mktemp("mixtures"), runs, shared_steps={"at_least": 20})
    snakemake(folder, tried=True)
    by_itself = workspace(tmp_path_factory.mktemp("alone"), {"more": last({"clean": 1, "more": 1}, **alone)})
    snakemake(by_itself)
    (folder / "alone").symlink_to(by_itself)
    return folder


def test_runs_with_another_last_phase_share_the_earlier_steps_bit_for_bit(finished):
    (trunk,) = (finished / "results/trunks").iterdir()
    assert trunk.name.startswith("30-steps-")
    for run in ("clean", "more"):
        assert [event["resume_step"] for event in events(finished, run, "attempt")] == [30]
    assert losses(finished, "more") == losses(finished / "alone", "more") and len(losses(finished, "more")) == 20
    assert weights(finished, "more", 40) == weights(finished / "alone", "more", 40) != weights(finished, "clean", 40)


def test_the_sets_are_prepared_as_the_training_data_is_and_what_was_seen_is_recorded(finished):
    prepared = read_manifest(next((finished / "results/data").glob("*/manifest.json")))
    assert {split: facts["examples"] for split, facts in prepared.facts["splits"].items()} == {
        "train": 240, "dev": 100, "test": 0, "train_sets.clean": 70, "train_sets.more": 90,
    }  # fmt: skip
    figures = events(finished / "alone", "more", "train")[-1]["metrics"]
    assert figures["times_seen_train"] == 1.0 and figures["times_seen_clean"] == pytest.approx(80 / 70)
    assert figures["times_seen_more"] == pytest.approx((240 + 80) / 90)
    log = (finished / "alone/results/runs/more/training/logs/rank-0.log").read_text()
    assert "train.mixture: steps 31 to 40: of the examples 50.0% clean, 50.0% more" in log and "more 3.56" in log


@pytest.mark.slow
def test_two_processes_equal_one_and_a_killed_training_resumes_bit_for_bit(finished, tmp_path):
    without_dropout = {
        "model.arguments": configuration()["model"]["arguments"] | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    }
    runs = {"one": last({"clean": 1}, **without_dropout)}
    runs["two"] = runs["one"] | {"compute.processes": 2, "train.strategy": "ddp"}
    runs["killed"] = last({"clean": 1, "more": 1}, **{"train.callbacks": [{"use": "kill.py:Kill"}]})
    folder = workspace(tmp_path, runs, shared_steps={"at_least": None})
    (folder / "kill.py").write_text(KILL)
    assert snakemake(folder, "--keep-going", check=False).returncode
    snakemake(folder)
    assert losses(folder, "two") == pytest.approx(losses(folder, "one"), rel=1e-5) and len(losses(folder, "two")) == 20
    assert [event["resume_step"] for event in events(folder, "killed", "attempt")] == [0, 20]
    assert losses(folder, "killed") == losses(finished / "alone", "more")
    assert weights(folder, "killed", 40) == weights(finished / "alone", "more", 40)


def test_blocks_of_a_language_model_hold_text_of_one_set(finished):
    prepared = read_manifest(next((finished / "results/data").glob("*/manifest.json")))
    train = Train.model_validate(TRAIN | {"block_length": 12, "mixture": {"by": "tokens", "phases": [*PHASES, {"sets": {"clean": 1}}]}})
    opened = open_training(prepared, train)
    assert isinstance(opened, MixedBlocks)
    plan = Plan.of(train, opened.lengths)
    assert isinstance(plan.batches, MixedBatches)
    starts = plan.batches.starts
    sets = {name: TextExamples(prepared.file(f"{split}.arrow"), 0) for name, split in (("train", "train"), ("more", "train_sets.more"))}
    for name, texts in sets.items():
        tokens = [int(each) for row in range(len(texts)) for each in texts.lists["input_ids"][row]]
        first, second = opened.batch([starts[name], starts[name] + 1])["input_ids"].tolist()
        assert first == tokens[:13] and second == tokens[12:25]
    ids = plan.batches.batch(0, 0)
    assert opened.batch(ids)["input_ids"].shape == (16, 13) and len(plan.batches.batch(0, 35)) == 16
