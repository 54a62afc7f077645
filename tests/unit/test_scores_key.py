"""Scores are reused only if nothing that affects them has changed."""

from dataclasses import replace

import pytest

from evaluate_model import scores_key
from snaketrain.runtime.job_settings import JobSettings
from snaketrain.runtime.manifests import Manifest

GIVEN = JobSettings("evaluate_model", ["evaluate.batch_size=64", "evaluate.bins=10", "evaluate.confidence=0.95"], ["code.a=1"])
TRAINED = ['train.task.arguments={"metrics": {"m": "a.py:A"}}', 'train.precision="auto"']
TRAINING = Manifest("train_model", "t", TRAINED, {}, {}, {"precision": "fp32"})
SELECTION = Manifest("select_checkpoint", "s", [], {}, {}, {"weights": {"model.safetensors": "0123"}})
DATA = Manifest("prepare_data", "d", [], {}, {"dev.arrow": "4567"})
MODEL = Manifest("fetch_model", "m", [], {}, {"config.json": "89ab"})
KEY = scores_key(GIVEN, "cpu", TRAINING, SELECTION, DATA, MODEL)


@pytest.mark.parametrize(
    "changed",
    [
        (replace(GIVEN, settings=["evaluate.batch_size=32"]), "cpu", TRAINING, SELECTION, DATA, MODEL),
        (replace(GIVEN, settings=[*GIVEN.settings, "evaluate.new=1"]), "cpu", TRAINING, SELECTION, DATA, MODEL),
        (replace(GIVEN, code=["code.a=2"]), "cpu", TRAINING, SELECTION, DATA, MODEL),
        (GIVEN, "cuda", TRAINING, SELECTION, DATA, MODEL),
        *((GIVEN, "cpu", replace(TRAINING, settings=[TRAINING.settings[0], new]), SELECTION, DATA, MODEL)
          for new in ('train.precision="bf16"', "train.packing=true", "train.batch_tokens=9", 'model.arguments={"a": 1}')),
        (GIVEN, "cpu", replace(TRAINING, settings=['train.task.arguments={"metrics": {"m": "a.py:B"}}']), SELECTION, DATA, MODEL),
        (GIVEN, "cpu", replace(TRAINING, facts={"precision": "bf16"}), SELECTION, DATA, MODEL),
        (GIVEN, "cpu", TRAINING, replace(SELECTION, facts={"weights": {"model.safetensors": "0124"}}), DATA, MODEL),
        (GIVEN, "cpu", TRAINING, SELECTION, replace(DATA, files={"dev.arrow": "4568"}), MODEL),
        (GIVEN, "cpu", TRAINING, SELECTION, DATA, replace(MODEL, files={"config.json": "89ac"})),
        (GIVEN, "cpu", TRAINING, SELECTION, DATA, None),
    ],
)  # fmt: skip
def test_the_key_contains_everything_that_affects_the_scores(changed):
    assert scores_key(*changed) != KEY


def test_the_key_does_not_contain_what_affects_only_the_report():
    other = replace(GIVEN, settings=["evaluate.bins=4", "evaluate.batch_size=64", "evaluate.confidence=0.5"])
    later = replace(SELECTION, facts=SELECTION.facts | {"step": 9}, started=5.0)
    assert scores_key(other, "cpu", TRAINING, later, DATA, MODEL) == KEY
