"""What is taken over from the folder of another training."""

from typing import Any

from snaketrain.config.schema import Train
from snaketrain.extras.shared_steps.reuse import Beginning, source_of, valid
from snaketrain.runtime.manifests import write_json
from snaketrain.training.plan import Plan
from snaketrain.training.trajectory import Execution, Trajectory

HERE = Execution("Single", {}, 1, 1, 1, "fp32", ["a CPU, 1 threads"], {"torch": "2.13"})


def test_a_checkpoint_that_cannot_be_read_does_not_hide_the_others(tmp_path, capsys):
    trajectory = Trajectory("base", "measures", HERE, 0, lambda step: b"rate")
    for step in (2, 4, 6):
        state = {"step": step, "metrics": None, "scaler": {}, "trajectory": trajectory.record(step, 0)}
        write_json(tmp_path / f"checkpoints/step-{step:08d}/state.json", state)
    (tmp_path / "journal.jsonl").write_text('{"event": "attempt", "resume_step": 0}\n')
    torn = tmp_path / "checkpoints/step-00000006/state.json"
    torn.write_text("{")
    found = source_of(tmp_path, Beginning(tmp_path / "new", trajectory, Plan.of(Train(steps=40), [1] * 1000)))
    assert sorted(found.checkpoints) == [2, 4]
    assert f"warning: {torn.parent} is not reused: " in capsys.readouterr().out


def test_an_evaluation_of_lost_weights_is_not_taken_over():
    """It was repeated after a kill, and floating-point sums on a GPU may differ."""
    events: list[dict[str, Any]] = [{"event": "eval", "step": 4, "metrics": {"loss": loss}} for loss in (4.0, 4.1)]
    events += [{"event": "train", "step": 4, "metrics": {"loss": 1.0}}, {"event": "eval", "step": 6, "metrics": {"loss": 6.0}}]
    assert list(valid(events, 4, {4: {"loss": 4.1}})) == events[1:3]
