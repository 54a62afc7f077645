"""Random pairs of settings: a training that reuses the steps of others ends as one from the start, bit for bit."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed.running import losses, train
from distributed.test_reuse import attempts, evaluations_of, weights
from pipeline.workspace import prepared

pytestmark = pytest.mark.slow

PAIRS = int(os.environ.get("SNAKETRAIN_PAIRS", "16"))
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
    data, draw = prepared(tmp_path / "prepared"), random.Random(0)
    found, pairs = related(draw)
    fresh = [tmp_path / f"fresh-{number}" for number in range(len(found))]
    for folder, settings in zip(fresh, found, strict=True):
        train(data, folder, **settings)
    reused = 0
    for one, other in pairs:
        runs = tmp_path / "workspace/results/runs"
        shutil.copytree(fresh[one], runs / "first/training", copy_function=os.link)
        train(data, second := runs / "second/training", **found[other])
        assert weights_and_losses(second) == weights_and_losses(fresh[other]), (found[one], found[other])
        ours, theirs = evaluations_of(second), evaluations_of(fresh[other])
        assert all(ours[step] == metrics for step, metrics in theirs.items() if step in ours) and max(theirs) in ours
        reused += attempts(second)[0] > 0
        shutil.rmtree(tmp_path / "workspace")
    print(f"{reused} of {len(pairs)} pairs shared steps")
    assert len(pairs) == PAIRS and reused > PAIRS / 4


def related(draw: random.Random) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Settings, and pairs of these which differ in few of them, as an edit leads there and back."""
    found, pairs = [drawn(draw)], list[tuple[int, int]]()
    while len(pairs) < PAIRS:
        before = draw.randrange(len(found))
        edited = found[before] | {key: draw.choice(CHOICES[key]) for key in draw.sample(list(CHOICES), draw.choice((1, 1, 2, 3)))}
        if edited in found:
            continue
        if len(found) % 8 == 0:  # what few edits of one training would not meet
            edited = drawn(draw)
        found.append(edited)
        pairs += [(before, len(found) - 1), (len(found) - 1, before)]
    return found, pairs[:PAIRS]


def drawn(draw: random.Random) -> dict[str, Any]:
    return {key: draw.choice(choices) for key, choices in CHOICES.items()}


def weights_and_losses(training: Path) -> tuple[dict[str, bytes], dict[int, float]]:
    return {name: each.numpy().tobytes() if hasattr(each, "numpy") else each for name, each in weights(training).items()}, losses(training)
