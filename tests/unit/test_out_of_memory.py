"""How far batches are split when the memory runs out, and what is advised."""

from pathlib import Path
from typing import Any

import pytest
import torch
from points import Classify, make
from torch import Tensor

from snaketrain.data.loading.training_data import Batch
from snaketrain.runtime.run_folder import MICROBATCHES
from snaketrain.tasks.base import Modules
from snaketrain.training.trainer import Trainer


class Little(Classify):
    """Memory for so many examples."""

    most = 1

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        if len(batch["places"]) > self.most:
            raise torch.OutOfMemoryError("2 GiB are too much")
        return super().training_step(modules, batch)


class Nothing(Little):
    most = 0


def splitting(folder: Path, task: type[Classify], **settings: Any) -> Trainer:
    trainer = make(folder, make_task=task, **settings)
    trainer.accumulation.may_grow = True
    return trainer


def test_a_batch_is_split_up_to_one_example(tmp_path):
    """Whatever `batch_size` is, where `batch_tokens` sets the number of examples."""
    trainer = splitting(tmp_path, Little, batch_size=2, batch_tokens=40)
    trainer.fit()
    assert trainer.state.step == trainer.plan.steps
    assert len(trainer.plan.batches.batch(0, 0)) > 2


class Measured(Little):
    """Records how many examples are evaluated at a time."""

    sizes: list[int]

    def evaluation_step(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        self.sizes.append(len(batch["places"]))
        return super().evaluation_step(modules, batch)


def test_an_evaluation_takes_no_more_at_a_time_than_two_microbatches(tmp_path):
    """It took two whole batches, which did not fit where a batch fits in pieces alone."""
    Measured.sizes = []
    trainer = splitting(tmp_path, Measured, batch_size=4)
    trainer.fit()
    assert trainer.accumulation.number == 4
    assert (max(Measured.sizes), max(Measured.sizes[-4:])) == (8, 2)


class TooLarge(Classify):
    def evaluation_step(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        raise torch.OutOfMemoryError("2 GiB are too much")


def test_an_evaluation_that_does_not_fit_says_what_makes_its_batches_smaller(tmp_path):
    with pytest.raises(
        SystemExit, match=r"in an evaluation with a batch of .*places \(.*: 2 GiB are too much Make batches smaller: .*train.accumulate"
    ):
        make(tmp_path, make_task=TooLarge).fit()


def test_one_example_is_not_split(tmp_path):
    """A process of many has few examples of each batch; every further attempt would end in the same way."""
    trainer = splitting(tmp_path, Nothing, accumulate=8)
    with pytest.raises(SystemExit, match="2 GiB are too much These help, with the same result: train.recompute_activations"):
        trainer.fit()
    assert not (tmp_path / MICROBATCHES).exists()


@pytest.mark.parametrize("grows", [False, True])
def test_what_is_in_use_is_not_advised(tmp_path, grows):
    trainer = splitting(tmp_path, Nothing)
    trainer.accumulation.may_grow = grows
    with pytest.raises(SystemExit) as error:
        trainer.fit()
    assert ("reduce_batch_on_oom" in str(error.value)) != grows
