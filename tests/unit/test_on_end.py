"""The user's command for the end of a run: its environment, how often it runs, and that its failure has no consequences."""

import json
import math
import time

import pytest
from workspace import START, make_workspace

from snaketrain.tracking import loop
from snaketrain.tracking.following import RunEnd
from snaketrain.tracking.loop import OnEnd

TELL = 'printf "%s|%s|%s|%s|%s\\n" "$SNAKETRAIN_RUN" "$SNAKETRAIN_STATE" "$SNAKETRAIN_REASON" "$SNAKETRAIN_TEST_ACCURACY" "$SNAKETRAIN_FIGURES" >> told'


@pytest.fixture
def results(tmp_path):
    return make_workspace(tmp_path, {"first": {}})


def end(results, state="finished", reason="", attempts=1, ended=START + 1, awaited_since=0.0) -> RunEnd:
    figures = {"test/accuracy": 0.9} if state == "finished" else {}
    return RunEnd(results / "runs/first/training", "first", state, reason, ended, attempts, "0123", awaited_since, lambda: figures)


def test_the_command_runs_once_for_each_end(results):
    for _ in range(2):
        teller = OnEnd(TELL, START, results)
        teller.notify(end(results), last=False)
        assert teller.finish() == []
    teller.notify(end(results, "failed", "failed: $(touch PWNED) `touch PWNED`", 2), last=False)
    assert teller.finish() == []
    finished, failed = (results.parent / "told").read_text().splitlines()
    assert finished == f"first|finished||0.9|{json.dumps({'test/accuracy': 0.9})}"
    assert failed == "first|failed|failed: $(touch PWNED) `touch PWNED`||{}" and not (results.parent / "PWNED").exists()


def test_undefined_figures_are_json_too(results):
    ended = RunEnd(results / "runs/first/training", "first", "finished", "", START, 1, "0123", figures=lambda: {"test/pearson": math.nan})
    found = ended.environment()
    assert found["SNAKETRAIN_FIGURES"] == '{"test/pearson": null}' and found["SNAKETRAIN_TEST_PEARSON"] == "nan"


def test_earlier_ends_and_resumed_stops_are_not_announced(results):
    teller = OnEnd(TELL, START + 10, results)
    teller.notify(end(results), last=True)
    teller.notify(end(results, "stopped", ended=START + 20), last=False)
    assert teller.running == [] and not (results.parent / "told").exists()
    teller.notify(end(results, "stopped", "stopped by SIGTERM", ended=START + 20), last=True)
    assert teller.finish() == [] and (results.parent / "told").read_text().startswith("first|stopped|stopped by SIGTERM")


def test_a_run_with_a_pending_evaluation_is_announced_after_it_or_at_the_workflows_end(results):
    teller = OnEnd(TELL, START, results)
    teller.notify(end(results, awaited_since=START + 0.5), last=False)
    assert teller.running == []
    teller.notify(end(results, awaited_since=START - 9), last=False)  # planned by an earlier workflow
    assert len(teller.running) == 1 and teller.finish() == []
    other = OnEnd(TELL, START, results)
    other.notify(end(results, ended=START + 2, awaited_since=START + 0.5), last=True)
    assert len(other.running) == 1 and other.finish() == []


def test_a_command_that_fails_or_hangs_is_a_warning(results, monkeypatch):
    monkeypatch.setattr(loop, "LONGEST_SECONDS", 0.5)
    teller = OnEnd("echo no such user; exit 3", START, results)
    teller.notify(end(results), last=False)
    assert teller.finish() == [
        f"tracking.on_end: the command for first failed with exit code 3. Its output is in {results / '.on_end.log'}"
    ]
    assert (results / ".on_end.log").read_text() == "no such user\n"
    began, teller = time.monotonic(), OnEnd("sleep 600", START, results)
    teller.notify(end(results, attempts=2), last=False)
    (warning,) = teller.finish()
    assert "was killed after 0.5 seconds" in warning and time.monotonic() - began < 60
