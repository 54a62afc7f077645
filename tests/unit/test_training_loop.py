"""Training against a plain loop in PyTorch: the same steps, bitwise the same after a resume, the same metrics."""

import copy
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from points import Classify, Points, bits_of, gradients, make, module_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import get_linear_schedule_with_warmup

from snaketrain.data.loading.batches import Batches
from snaketrain.data.loading.training_data import Batch
from snaketrain.tasks.base import Modules
from snaketrain.training.callbacks import Callback
from snaketrain.training.plan import PlannedStep
from snaketrain.training.state import Spikes, StepOutcome, TrainState
from snaketrain.training.trainer import Trainer


def plain_loop(module: nn.Sequential, points: Points, batches: Batches) -> list[dict[str, float]]:
    """Trains the module; what the journal is to say of each step."""
    decaying = [{"params": [layer.weight], "lr": rate, "weight_decay": 0.3} for layer, rate in ((module[0], 0.02), (module[2], 0.01))]
    others = [{"params": [layer.bias], "lr": rate, "weight_decay": 0.0} for layer, rate in ((module[0], 0.02), (module[2], 0.01))]
    optimizer = torch.optim.AdamW([*decaying, *others])
    schedule, reported = get_linear_schedule_with_warmup(optimizer, 4, 15), []
    for ids in (ids for epoch in range(3) for ids in batches.of(epoch)):
        batch, rate = points.batch(ids), schedule.get_last_lr()[0]
        loss = cross_entropy(module(batch["places"]), batch["classes"])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.4)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        reported.append({"loss": loss.item(), "learning_rate": rate, "gradient_norm": norm.item()})
    return reported


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_equal_those_of_a_plain_loop(tmp_path, accumulate):
    training = make(tmp_path, accumulate=accumulate)
    plain = copy.deepcopy(module_of(training))
    assert training.fit().step == 15
    expected = plain_loop(plain, training.data.train, training.plan.batches)
    reported = [line["metrics"] for line in training.journal.of("train")]
    assert sum(figures["gradient_norm"] > 0.4 for figures in expected) > 5  # it had something to clip
    for name in ("loss", "learning_rate", "gradient_norm"):
        assert [figures[name] for figures in reported] == pytest.approx([figures[name] for figures in expected], rel=1e-5), name
    torch.testing.assert_close(module_of(training).state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stops_at", [1, 7, 8, 10])
def test_a_training_stopped_anywhere_resumes_bit_for_bit(tmp_path, stops_at):
    """With dropout: stopped between two planned evaluations, at one, and at the end of an epoch."""
    whole, begun = make(tmp_path / "whole", dropout=0.5), make(tmp_path / "parts", dropout=0.5, stops_at=stops_at)
    assert (whole.fit().step, begun.fit().step) == (15, stops_at)
    resumed = make(tmp_path / "parts", dropout=0.5)
    assert resumed.fit().step == 15 and resumed.journal.of("train")[0]["step"] == stops_at + 1
    for kind, count in (("train", 15), ("eval", 7)):
        reported, expected = ([(line["step"], line["metrics"]["loss"]) for each in some for line in each.journal.of(kind)]
                          for some in ((begun, resumed), (whole,)))  # fmt: skip
        assert reported == expected and len(reported) == count
    assert bits_of(resumed) == bits_of(whole)


def test_evaluations_have_no_dropout_and_count_each_example_once(tmp_path):
    training = make(tmp_path, dropout=0.5)
    training.fit()
    points, module = training.data.dev, copy.deepcopy(module_of(training)).eval()
    batch = points.batch(range(len(points.lengths)))
    expected = cross_entropy(module(batch["places"]), batch["classes"]).item()
    assert training.journal.of("eval")[-1]["metrics"]["loss"] == pytest.approx(expected, rel=1e-6)


def test_training_has_dropout_again_after_an_evaluation(tmp_path):
    training = make(tmp_path, dropout=0.5)
    training.fit()
    assert module_of(training)[1].training is False  # the last event was an evaluation
    with_it, without = (gradients(make(tmp_path / str(dropout), dropout), evaluated_before=True) for dropout in (0.5, 0.0))
    assert not torch.allclose(with_it["0.weight"], without["0.weight"])


@pytest.mark.parametrize("spoiled", ["loss", "gradients", "an infinite loss of finite gradients"])
def test_a_nonfinite_step_changes_only_the_journal(tmp_path, spoiled):
    training, task_step = make(tmp_path), Classify.training_step

    def spoiling(modules: Modules, batch: Batch) -> Tensor:
        loss = task_step(training.state.task, modules, batch)
        if training.state.step + 1 != 7:
            return loss
        if spoiled == "gradients":
            loss.register_hook(lambda gradient: gradient * math.nan)
            return loss
        return loss * math.nan if spoiled == "loss" else loss + math.inf

    training.state.task.training_step = spoiling
    before = {}
    train_step = training.train_step

    def watched(planned: PlannedStep) -> None:
        before[planned.step] = bits_of(training)
        train_step(planned)

    training.train_step = watched
    training.fit()
    assert before[7] == before[8] != before[9]
    assert [(line["step"], line["examples"]) for line in training.journal.of("bad_step")] == [(7, training.plan.batches.of(1)[1].tolist())]


def test_a_spike_changes_only_the_journal_also_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(Spikes, "UPDATES", 4)

    def run(folder: str, factor: float | None, **changes: Any) -> Trainer:
        training = make(tmp_path / folder, spike_factor=factor, **changes)
        task_step = training.state.task.training_step
        at = {2: 1000, 7: 10_000, 8: 3, 12: 10_000}  # the first is too early to be known for a spike, and the third below the factor
        training.state.task.training_step = lambda *given: task_step(*given) * at.get(training.state.step + 1, 1)
        training.fit()
        return training

    whole, unwatched = run("whole", 100), run("unwatched", None)
    bad = whole.journal.of("bad_step")
    assert [line["step"] for line in bad] == [7, 12] and re.fullmatch(
        r"its gradient norm, [\d.e+]+, is above 100 times the usual one", bad[0]["why"]
    )
    assert not unwatched.journal.of("bad_step") and bits_of(unwatched) != bits_of(whole)
    run("parts", 100, stops_at=11)
    resumed = run("parts", 100)
    assert [line["step"] for line in resumed.journal.of("bad_step")] == [12] and bits_of(resumed) == bits_of(whole)


def test_steps_that_a_task_skips_are_still_evaluated_and_saved(tmp_path):
    """The last two of five steps in an epoch, one of which ends it."""
    training, ended = make(tmp_path), []

    class Ends(Callback):
        def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
            ended.append(outcome.step)

    def train_epoch(epoch: int, steps: Iterable[Callable[[], None]]) -> None:
        for number, step in enumerate(steps):
            if number < 3:
                step()

    training.state.task.train_epoch = train_epoch
    training.callbacks.callbacks.append(Ends())
    training.fit()
    assert ended == [line["step"] for line in training.journal.of("train")] == [1, 2, 3, 6, 7, 8, 11, 12, 13]
    assert [line["step"] for line in training.journal.of("eval")] == [0, 3, 5, 8, 10, 13, 15]
    assert [line["step"] for line in training.journal.of("checkpoint")] == [3, 5, 8, 10, 13, 15]
