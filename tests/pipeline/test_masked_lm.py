"""An encoder learns masked tokens in a workflow: in one process and in two, with texts padded and in blocks, and then serves a classifier."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from pipeline.workspace import configuration, make_workspace, snakemake
from snaketrain.runtime.manifests import read_manifest

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def mask_token_for(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer/tokenizer.json"))
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.save(str(folder / "tokenizer/tokenizer.json"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    given = configuration()
    bert = given["model"]["arguments"] | WITHOUT_DROPOUT
    data = {name: value for name, value in given["data"].items() if name != "labels"} | {"label": None}
    task = {"use": "masked_lm", "arguments": {"mask_probability": 0.25}}
    two = {"compute.processes": 2, "train.strategy": {"use": "fsdp", "arguments": {"build_once": True}}}
    classifier = {
        "data.label": "label",
        "data.labels": given["data"]["labels"],
        "model.use": "transformers.BertForSequenceClassification",
        "model.source": {"run": "one"},
        "train.task": "text_classification",
        "train.steps": 0,
        "select.metric": "accuracy",
    }
    make_workspace(
        folder,
        data=data,
        model={"use": "transformers.BertForMaskedLM", "arguments": bert},
        train=given["train"] | {"task": task, "epochs": 3, "learning_rate": 3e-3},
        select={"metric": "loss"},
        runs={"one": {}, "two": two, "blocks": {"train.block_length": 12}, "classifier": classifier},
    )
    mask_token_for(folder)
    wanted = ["one/evaluation", "two/training", "blocks/training", "classifier/selection"]
    snakemake(folder, *(f"results/runs/{stage}/manifest.json" for stage in wanted))
    return folder


def journal(folder, run, kind):
    lines = (folder / f"results/runs/{run}/training/journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_two_processes_equal_one_and_the_loss_falls(workspace):
    losses = [[event["metrics"]["loss"] for event in journal(workspace, run, "train")] for run in ("one", "two")]
    assert len(losses[0]) > 10 and losses[0] == pytest.approx(losses[1], rel=1e-5)
    for run in ("one", "blocks"):
        measured = [event["metrics"]["loss"] for event in journal(workspace, run, "eval")]
        assert measured[-1] < measured[0] - 0.1, run


def test_a_classifier_starts_from_it(workspace):
    made = read_manifest(workspace / "results/runs/classifier/training/manifest.json")
    assert made.inputs["model"] == read_manifest(workspace / "results/runs/one/selection/manifest.json").content
    ours, theirs = (load_file(workspace / f"results/runs/{run}/selection/model/model.safetensors") for run in ("classifier", "one"))
    shared = [name for name in ours if name.startswith("bert.embeddings") or name.startswith("bert.encoder")]
    assert len(shared) > 15 and all(torch.equal(ours[name], theirs[name]) for name in shared)
