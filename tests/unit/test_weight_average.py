"""Averages of the weights: those of torch's AveragedModel; they are evaluated and saved, and a resumed training continues them."""

import copy
from pathlib import Path

import pytest
import torch
from points import Classify, bits_of, make, module_of
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from snaketrain.config.schema import Train
from snaketrain.training.building import load_callbacks
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.exporting import average_checkpoints
from snaketrain.training.evaluation import evaluate
from snaketrain.training.trainer import Trainer

MODULE = "snaketrain.training.weight_average"
EMA = {"use": f"{MODULE}.Ema", "arguments": {"decay": 0.8}}
SWA = {"use": f"{MODULE}.Swa", "arguments": {"first_step": 4, "every": 2}}


class WithStatistics(Classify):
    """A buffer that training changes, and a counter."""

    def build(self, *given: object) -> dict[str, nn.Module]:
        modules = super().build(*given)
        modules["model"].append(nn.BatchNorm1d(3))
        return modules


class Reference(Callback):
    """torch's own average of the same weights."""

    def __init__(self, model: nn.Module, kind: dict):
        self.model, self.kind = model, kind
        averaging = get_ema_multi_avg_fn(0.8) if kind is EMA else None
        self.average = AveragedModel(copy.deepcopy(model), multi_avg_fn=averaging, use_buffers=True)

    def on_step_end(self, state, outcome) -> None:
        if self.kind is EMA or (state.step >= 4 and state.step % 2 == 0):
            self.average.update_parameters(self.model)


def averaging(folder: Path, kind: dict, **changes) -> Trainer:
    return make(folder, callbacks=[kind], make_task=WithStatistics, **changes)


@pytest.mark.parametrize("kind", [EMA, SWA], ids=["ema", "swa"])
def test_the_average_equals_that_of_torch_and_is_evaluated_and_saved(tmp_path, kind):
    trainer, plain = averaging(tmp_path / "run", kind), make(tmp_path / "plain", make_task=WithStatistics)
    reference = Reference(module_of(trainer), kind)
    trainer.callbacks.callbacks = [*trainer.callbacks.callbacks, reference]
    trainer.fit()
    plain.fit()
    assert bits_of(trainer) == bits_of(plain), "training must not see the average"
    expected = reference.average.module.state_dict()
    for name, tensor in trainer.state.averages["model"].items():
        torch.testing.assert_close(tensor, expected[name])
    saved = load_file(max((tmp_path / "run/checkpoints").glob("step-*")) / "model.averaged.safetensors")
    assert set(saved) == set(expected)
    assert all(torch.equal(tensor, trainer.state.averages["model"][name]) for name, tensor in saved.items() if tensor.is_floating_point())
    assert trainer.journal.of("eval")[-1]["metrics"] != plain.journal.of("eval")[-1]["metrics"]
    plain.state.modules["model"].load_state_dict(saved)
    found = evaluate(plain.state, plain.data.dev, plain.train.batch_size * 2)
    assert found == pytest.approx(trainer.journal.of("eval")[-1]["metrics"], rel=1e-5)


@pytest.mark.parametrize("format", ["whole", "sharded"])
@pytest.mark.parametrize("stops_at", [2, 9])
def test_a_resumed_training_continues_the_average_bit_for_bit(tmp_path, format, stops_at):
    """Also if it stopped before there was an average."""
    whole = averaging(tmp_path / "whole", SWA)
    whole.fit()
    for stop in (stops_at, 10**9):
        parts = averaging(tmp_path / "parts", SWA, stops_at=stop, format=format)
        parts.fit()
    assert bits_of(parts) == bits_of(whole)
    for name, tensor in whole.state.averages["model"].items():
        assert torch.equal(tensor, parts.state.averages["model"][name]), name
    assert parts.journal.of("eval")[-1]["metrics"] == whole.journal.of("eval")[-1]["metrics"]


@pytest.mark.parametrize("format", ["whole", "sharded"])
def test_a_rollback_to_before_the_average_ends_it(tmp_path, format):
    """It would be one of weights that were given up."""
    trainer = averaging(tmp_path, SWA, stops_at=2, format=format)
    trainer.fit()
    assert not trainer.state.averages
    trainer.state.averages["model"] = {"0.weight": torch.ones(16, 2)}
    assert trainer.checkpoints.restore(trainer.state, trainer.stateful) == trainer.state.step
    assert not trainer.state.averages


def test_checkpoints_are_averaged_but_not_their_counters(tmp_path):
    for number, name in enumerate(("a", "b"), start=1):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((2,), 1.0 / number), "count": torch.tensor(number)}, tmp_path / name / "model.safetensors")
    save_file({"w": torch.tensor([0.0, 1.0]), "count": torch.tensor(7)}, tmp_path / "a/model.averaged.safetensors")
    (tmp_path / "mean").mkdir()
    average_checkpoints([tmp_path / "a", tmp_path / "b"], tmp_path / "mean")
    found = load_file(tmp_path / "mean/model.safetensors")
    assert found["w"].tolist() == [0.25, 0.75] and found["count"] == 7
    assert [path.name for path in (tmp_path / "mean").iterdir()] == ["model.safetensors"]


def test_two_averages_are_refused():
    with pytest.raises(SystemExit, match="two of them average the weights"):
        load_callbacks(Train(callbacks=[EMA, SWA]))


@pytest.mark.parametrize("arguments", [{"decay": 1.5}, {"first_step": 0}, {"every": 0}])
def test_meaningless_arguments_are_refused(arguments):
    with pytest.raises(SystemExit, match=r"train.callbacks: .*(must be)"):
        load_callbacks(Train(callbacks=[{"use": EMA["use"], "arguments": arguments}]))
