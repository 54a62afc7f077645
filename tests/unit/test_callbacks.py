"""A user's callback: when its hooks are called, and its state after a resume."""

from pathlib import Path

import pytest
import torch
from points import make

from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.ranking import read_state
from snaketrain.training.trainer import Trainer

WITNESS = """
from pathlib import Path

from snaketrain import Callback


class Witness(Callback):
    def __init__(self, path):
        self.path, self.steps = Path(path), 0

    def note(self, hook, step):
        with self.path.open("a") as file:
            file.write(f"{hook} {step}\\n")

    def on_train_start(self, state):
        self.note(f"train_start, knows {self.steps}", state.step)

    def on_step_end(self, state, outcome):
        self.steps += 1
        self.note("step_end", outcome.step)

    def on_log(self, state, figures):
        assert figures["loss"] > 0
        self.note("log", state.step)

    def on_evaluation_step(self, state):
        self.note("evaluation_step", state.step)

    def on_evaluation(self, state, metrics):
        assert metrics["loss"] > 0
        self.note("evaluation", state.step)

    def on_checkpoint(self, state, step):
        self.note("checkpoint", step)

    def on_train_end(self, state):
        self.note("train_end", state.step)

    def on_error(self, state, error):
        self.note(f"error {error!r}", state.step)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]

    def facts(self, trainer):
        return {"steps": self.steps, "microbatches": trainer.accumulation.number}
"""
EVALUATION = ["evaluation_step", "evaluation_step", "evaluation"]  # two batches


def watched(folder: Path, **changes) -> Trainer:
    """One epoch of five steps, evaluated before and after."""
    (folder / "own.py").write_text(WITNESS)
    callback = {"use": f"{folder}/own.py:Witness", "arguments": {"path": str(folder / "notes.txt")}}
    return make(folder / "run", epochs=1, evaluations_per_epoch=1, callbacks=[callback], **changes)


def notes(folder: Path) -> list[str]:
    lines = (folder / "notes.txt").read_text().splitlines()
    (folder / "notes.txt").unlink()
    return lines


def test_hooks_are_called_in_order(tmp_path):
    watched(tmp_path).fit()
    steps = [f"{hook} {step}" for step in range(1, 6) for hook in ("step_end", "log")]
    before, after = ([f"{hook} {step}" for hook in EVALUATION] for step in (0, 5))
    assert notes(tmp_path) == ["train_start, knows 0 0", *before, *steps, *after, "checkpoint 5", "train_end 5"]


def test_the_state_of_a_callback_survives_a_stop(tmp_path):
    watched(tmp_path, stops_at=3).fit()
    assert notes(tmp_path)[-4:] == ["step_end 3", "log 3", "checkpoint 3", "train_end 3"]
    (saved,) = (tmp_path / "run/checkpoints").glob("step-*")
    assert read_state(saved)["callbacks"] == {"Witness": {"steps": 3, "microbatches": 1}}
    watched(tmp_path).fit()
    # the checkpoint again, since an attempt may be killed before its callbacks hear of it
    assert notes(tmp_path)[:4] == ["train_start, knows 3 3", "checkpoint 3", "step_end 4", "log 4"]


def test_an_exception_is_reported_and_raised(tmp_path):
    training = watched(tmp_path)

    def fail(*_: object) -> torch.Tensor:
        raise ValueError("no third step")

    class Spoils(Callback):
        def on_step_end(self, state, outcome) -> None:
            if outcome.step == 2:
                state.task.training_step = fail

    training.callbacks.callbacks.append(Spoils())
    with pytest.raises(ValueError, match="no third step"):
        training.fit()
    assert notes(tmp_path)[-3:] == ["step_end 2", "log 2", "error ValueError('no third step') 2"]
