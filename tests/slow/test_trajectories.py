"""Random pairs of settings: a training that reuses the steps of others ends as one from the start, bit for bit."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed.running import losses, train
from distributed.test_reuse import attempts, weights
from pipeline.workspace import prepared

pytestmark = pytest.mark.slow

PAIRS = int(os.environ.get("SNAKETRAIN_PAIRS", "25"))
CHOICES: dict[str, list[Any]] = {
    "epochs": [1, 1.5, 2, 3],
    "schedule": ["constant", "linear", *({"use": "warmup_stable_decay", "arguments": {"decay": share}} for share in (0.1, 0.4))],
    "warmup": [0, 4, 0.1],
    "learning_rate": [1e-3, 1e-3, 1e-3, 3e-3],
    "batch_size": [16, 16, 16, 24],
    "seed": [0, 0, 0, 1],
    "clip_norm": [1.0, 1.0, 0.1],
    "evaluate_every": [None, 2, 3, 5],
    "save_every": [None, None, 2, 4],
    "early_stopping": [None, None, None, {"patience": 1, "min_change": 0.02}, {"patience": 2}],
    "rollbacks_allowed": [2, 0],
    "metrics": [{}, {"mcc": {"use": "matthews_correlation"}}],
    "groups": [
        [],
        [],
        [{"match": "*.bias", "schedule": "constant"}, {"match": "*LayerNorm*"}],
        [{"match": "*.bias"}, {"match": "*LayerNorm*", "schedule": "constant"}],
    ],
    "callbacks": [[], [], [], [{"use": "snaketrain.training.weight_average.Ema"}]],
}


def test_reused_trainings_equal_those_from_the_start(tmp_path):
    """Pairs in which steps were reused are counted: if there were few, the test would show nothing."""
    data, draw, fresh = prepared(tmp_path / "prepared"), random.Random(0), dict[str, Path]()
    reused = 0
    for number in range(PAIRS):
        runs = tmp_path / f"pair-{number}/results/runs"
        first = drawn(draw)
        second = first | {key: draw.choice(CHOICES[key]) for key in draw.sample(list(CHOICES), draw.choice((1, 1, 2, 3)))}
        train(data, runs / "first/training", **first)
        train(data, runs / "second/training", **second)
        if (key := json.dumps(second, sort_keys=True)) not in fresh:
            fresh[key] = tmp_path / f"fresh-{number}"
            train(data, fresh[key], **second)
        assert weights_and_losses(runs / "second/training") == weights_and_losses(fresh[key]), (first, second)
        reused += attempts(runs / "second/training")[0] > 0
        shutil.rmtree(tmp_path / f"pair-{number}")
    print(f"{reused} of {PAIRS} pairs shared steps")
    assert reused > PAIRS / 4


def drawn(draw: random.Random) -> dict[str, Any]:
    return {key: draw.choice(choices) for key, choices in CHOICES.items()}


def weights_and_losses(training: Path) -> tuple[dict[str, bytes], dict[int, float]]:
    return {name: each.numpy().tobytes() if hasattr(each, "numpy") else each for name, each in weights(training).items()}, losses(training)
