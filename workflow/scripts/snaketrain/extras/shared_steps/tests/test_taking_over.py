"""What is taken over from the folder of another training."""

from pathlib import Path
from typing import Any

from snaketrain.config.schema import Train
from snaketrain.extras.shared_steps.reuse import Beginning, source_of, valid
from snaketrain.extras.shared_steps.trajectory import Trajectory
from snaketrain.runtime.journal import as_line
from snaketrain.runtime.manifests import write_json
from snaketrain.training.early_stopping import evaluations
from snaketrain.training.plan import Plan

HERE = {"strategy": "Single", "processes": 1}


def beginning(folder: Path) -> Beginning:
    trajectory = Trajectory("base", "measures", HERE, 0, lambda step: b"rate")
    return Beginning(folder / "new", trajectory, Plan.of(Train(steps=40), [1] * 1000))


def test_a_checkpoint_that_cannot_be_read_does_not_hide_the_others(tmp_path, capsys):
    begun = beginning(tmp_path)
    for step in (2, 4, 6):
        state = {"step": step, "metrics": None, "scaler": {}, "callbacks": {"Fingerprints": begun.trajectory.record(step, 0)}}
        write_json(tmp_path / f"checkpoints/step-{step:08d}/state.json", state)
    (tmp_path / "journal.jsonl").write_text('{"event": "attempt", "resume_step": 0}\n')
    torn = tmp_path / "checkpoints/step-00000006/state.json"
    torn.write_text("{")
    found = source_of(tmp_path, begun)
    assert sorted(found.checkpoints) == [2, 4]
    assert f"warning: {torn.parent} is not reused: " in capsys.readouterr().out


def test_an_evaluation_of_lost_weights_is_not_taken_over():
    """It was repeated after a kill, and floating-point sums on a GPU may differ."""
    events: list[dict[str, Any]] = [{"event": "eval", "step": 4, "metrics": {"loss": loss}} for loss in (4.0, 4.1)]
    events += [{"event": "train", "step": 4, "metrics": {"loss": 1.0}}, {"event": "eval", "step": 6, "metrics": {"loss": 6.0}}]
    assert list(valid(events, 4, {4: {"loss": 4.1}})) == events[1:3]


def test_evaluations_that_were_computed_otherwise_are_not_taken_over(tmp_path):
    """A training may resume with other code, or elsewhere."""
    events: list[dict[str, Any]] = [
        {"event": "eval", "step": 2, "metrics": {"loss": 2.0}, "attempt": -1},  # which it has itself taken over
        {"event": "attempt", "resume_step": 2, "execution": HERE},
        {"event": "eval", "step": 4, "metrics": {"loss": 4.0}},
        {"event": "attempt", "resume_step": 4, "execution": HERE | {"processes": 2}},
        {"event": "eval", "step": 6, "metrics": {"loss": 6.0}},
        {"event": "attempt", "resume_step": 6, "execution": HERE, "mixed": [{"step": 6, "changed": ["code.mine.py"]}]},
        {"event": "eval", "step": 8, "metrics": {"loss": 8.0}},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(map(as_line, events)))
    assert sorted(evaluations(tmp_path)) == [2, 4, 6, 8]
    assert sorted(evaluations(tmp_path, beginning(tmp_path).would_compute)) == [2, 4]
