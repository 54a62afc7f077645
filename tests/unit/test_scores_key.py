"""Scores are reused only if nothing that affects them has changed."""

from argparse import Namespace
from dataclasses import replace

import pytest

from snaketrain.evaluation.scoring import ScoredSet, Scoring
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.stages import JobSettings

GIVEN = JobSettings("evaluate_model", {"evaluate": {"batch_size": 64, "bins": 10, "confidence": 0.95}}, {"a": "1"})
TRAIN = {"task": {"arguments": {"metrics": {"m": "a.py:A"}}}, "precision": "auto"}
TRAINED = {"train": TRAIN}
TRAINING = Manifest("train_model", "t", TRAINED, {}, {}, {"precision": "fp32"})
WEIGHTS = {"model.safetensors": "0123"}
DATA = Manifest("prepare_data", "d", {}, {}, {"train.arrow": "4567"})
PREPARED = Manifest("prepare_set", "p", {}, {}, {"test.arrow": "cdef"})
SET = ScoredSet("test", PREPARED, "test")
MODEL = Manifest("fetch_model", "m", {}, {}, {"config.json": "89ab"})


def scores_key(given, device, training, weights, data, scored, model) -> str:
    """The name of the folder of the scores."""
    arguments = Namespace(device=device, output="evaluation/manifest.json")
    return Scoring(arguments, given, training, data, model).folder(weights, scored).name


KEY = scores_key(GIVEN, "cpu", TRAINING, WEIGHTS, DATA, SET, MODEL)


@pytest.mark.parametrize(
    "changed",
    [
        (replace(GIVEN, settings={"evaluate": {"batch_size": 32}}), "cpu", TRAINING, WEIGHTS, DATA, SET, MODEL),
        (replace(GIVEN, settings={"evaluate": GIVEN.settings["evaluate"] | {"new": 1}}), "cpu", TRAINING, WEIGHTS, DATA, SET, MODEL),
        (replace(GIVEN, code={"a": "2"}), "cpu", TRAINING, WEIGHTS, DATA, SET, MODEL),
        (GIVEN, "cuda", TRAINING, WEIGHTS, DATA, SET, MODEL),
        *((GIVEN, "cpu", replace(TRAINING, settings={"train": TRAIN | new}), WEIGHTS, DATA, SET, MODEL)
          for new in ({"precision": "bf16"}, {"packing": True}, {"batch_tokens": 9}, {"task": {"arguments": {"metrics": {"m": "a.py:B"}}}})),
        (GIVEN, "cpu", replace(TRAINING, settings=TRAINED | {"model": {"arguments": {"a": 1}}}), WEIGHTS, DATA, SET, MODEL),
        (GIVEN, "cpu", replace(TRAINING, facts={"precision": "bf16"}), WEIGHTS, DATA, SET, MODEL),
        (GIVEN, "cpu", TRAINING, {"model.safetensors": "0124"}, DATA, SET, MODEL),
        (GIVEN, "cpu", TRAINING, WEIGHTS, replace(DATA, files={"train.arrow": "4568"}), SET, MODEL),
        (GIVEN, "cpu", TRAINING, WEIGHTS, DATA, replace(SET, prepared=replace(PREPARED, files={"test.arrow": "cdee"})), MODEL),
        (GIVEN, "cpu", TRAINING, WEIGHTS, DATA, replace(SET, split="dev"), MODEL),
        (GIVEN, "cpu", TRAINING, WEIGHTS, DATA, SET, replace(MODEL, files={"config.json": "89ac"})),
        (GIVEN, "cpu", TRAINING, WEIGHTS, DATA, SET, None),
    ],
)  # fmt: skip
def test_the_key_contains_everything_that_affects_the_scores(changed):
    assert scores_key(*changed) != KEY


def test_the_key_does_not_contain_what_affects_only_the_report():
    other = replace(GIVEN, settings={"evaluate": {"bins": 4, "batch_size": 64, "confidence": 0.5}, "set": {"checkpoints": "all"}})
    renamed = replace(SET, name="unseen", prepared=replace(PREPARED, started=5.0))
    assert scores_key(other, "cpu", TRAINING, WEIGHTS, DATA, renamed, MODEL) == KEY
