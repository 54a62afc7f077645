"""A task that evaluates other weights than it trains, such as averaged ones."""

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from points import Classify, bits_of, make
from torch.nn.functional import cross_entropy

from snaketrain.tasks.base import Modules


class Averaged(Classify):
    """Evaluates the mean of the weights of all steps."""

    average = None

    def on_epoch_start(self, epoch: int, modules: Modules) -> None:
        self.trained = modules["model"]
        self.average = self.average or torch.optim.swa_utils.AveragedModel(self.trained)

    def train_epoch(self, epoch: int, steps: Iterable[Callable[[], None]]) -> None:
        for step in steps:
            step()
            self.average.update_parameters(self.trained)

    def validation_epoch(self, modules: Modules, batches: Iterable[Callable[[], None]]) -> None:
        trained = copy.deepcopy(modules["model"].state_dict())
        if self.average:
            modules["model"].load_state_dict(self.average.module.state_dict())
        super().validation_epoch(modules, batches)
        modules["model"].load_state_dict(trained)


def test_averaged_weights_are_in_place_during_evaluations_only(tmp_path):
    averaged, plain = make(tmp_path / "averaged", make_task=Averaged), make(tmp_path / "plain")
    averaged.fit()
    plain.fit()
    assert bits_of(averaged) == bits_of(plain)
    points = plain.data.dev
    batch = points.batch(range(len(points)))
    for training, module in ((averaged, averaged.state.task.average), (plain, plain.state.modules["model"])):
        expected = cross_entropy(module.eval()(batch["places"]), batch["classes"]).item()
        assert training.journal.of("eval")[-1]["metrics"]["loss"] == pytest.approx(expected, rel=1e-6)
    first, last = ([training.journal.of("eval")[number] for training in (averaged, plain)] for number in (0, -1))
    assert first[0]["metrics"] == first[1]["metrics"] and last[0]["metrics"] != last[1]["metrics"]
