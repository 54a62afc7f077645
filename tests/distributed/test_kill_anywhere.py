"""A training killed at any moment has the same result, and the benchmark's trials prove that."""

import os
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TRIALS = int(os.environ.get("SNAKETRAIN_TRIALS", "2"))  # of each kind, each killed up to three times; the benchmark makes a hundred
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import kill_anywhere  # noqa: E402
from distributed import forking  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def preloaded():
    forking.preload()


@pytest.mark.parametrize(
    ("processes", "settings"),
    [(1, {}), (2, {}), pytest.param(2, {"strategy": "fsdp"}, marks=pytest.mark.slow)],
    ids=["one", "two", "two in shards"],
)
def test_a_training_killed_anywhere_resumes_with_the_same_result(data, tmp_path, processes, settings):
    found = kill_anywhere.trials(tmp_path, data, TRIALS, processes, seed=processes, first=100, **settings)
    assert (found.problems, found.passed) == ([], TRIALS)


def test_a_training_that_always_starts_over_does_not_pass(data, tmp_path):
    """Although it has the same weights and the same first lines of the journal."""
    restarting = tmp_path / "restarting.py"
    restarting.write_text(f"""
import runpy
from snaketrain.training.checkpoints.store import Checkpoints  # noqa: E402

Checkpoints.restore = lambda self, learner, memory: 0
runpy.run_path({str(forking.SCRIPT)!r}, run_name="__main__")
""")
    found = kill_anywhere.trials(tmp_path, data, 1, 1, seed=1, script=restarting)
    assert found.passed == found.kinds[kill_anywhere.RESUMED] == 0 and found.kinds[kill_anywhere.RESTARTED] > 0
    assert "resumed from step 0, though step" in found.problems[0] and "came to another result" not in str(found.problems)
    assert " trainings passed, 1 were to: 0 resumed mid-way, 2 restarted from zero" in found.problems[-1]


@pytest.mark.parametrize(
    ("resumed_from", "kind"),
    [
        ([8], kill_anywhere.RESUMED),
        ([0, 8, 44], kill_anywhere.RESUMED),
        ([0, 0], kill_anywhere.RESTARTED),
        ([0, 44], kill_anywhere.RESTARTED),
        ([44], kill_anywhere.NOT_IN_TIME),
        ([], kill_anywhere.NOT_IN_TIME),
    ],
)
def test_only_what_resumed_between_start_and_end_is_a_trial(resumed_from, kind):
    assert kill_anywhere.kind_of(resumed_from, 44) == kind
