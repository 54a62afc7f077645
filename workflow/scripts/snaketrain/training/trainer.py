"""The training loop, to be read from top to bottom. All that it needs is handed in; nothing here is distributed code."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from snaketrain.config.schema import Model, Train
from snaketrain.data.loading.batches import shard_batch
from snaketrain.data.loading.opening import Splits
from snaketrain.runtime import journal
from snaketrain.runtime.goodput import Clock
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.gradients import LossSums, MicroBatches, Objective
from snaketrain.training.building import build, load_callbacks, make_task, make_train_state, start_strategy
from snaketrain.training.callbacks.base import Callback, Callbacks
from snaketrain.training.checkpoints.best_metric import BestMetric
from snaketrain.training.checkpoints.store import Checkpoints
from snaketrain.training.early_stopping import EarlyStopping
from snaketrain.training.evaluation import evaluate
from snaketrain.training.metric_window import MetricWindow
from snaketrain.training.nonfinite import NonfiniteSteps
from snaketrain.training.out_of_memory import Accumulation
from snaketrain.training.plan import Plan, folder_name
from snaketrain.training.state import Stateful, StepOutcome, TrainState
from snaketrain.training.step import seed_step, train_step
from snaketrain.training.stop_agreement import NeverStop, StopAgreement, StopRequest


class Journal(Protocol):
    """What happened, line by line."""

    def begin(self, resume_step: int, **about: Any) -> None: ...

    def write(self, event: str, **content: Any) -> None: ...

    def sync(self) -> None: ...


@dataclass(frozen=True)
class Selection:
    """The metric that says which checkpoints are best, and whether more or less of it is better."""

    metric: str = "loss"
    mode: str = "min"


@dataclass(frozen=True)
class PlannedStep:
    """A step whose data are loaded, and whose counts are being added up over all ranks while the step before it is computed."""

    step: int
    epoch: int
    ids: np.ndarray
    microbatches: MicroBatches
    counted_here: float
    agreed: Callable[[], list[float]]  # what all ranks count; how many were asked to stop; whether it is time to save


class Trainer:
    """One training, from its last checkpoint to the end of its plan, to a stop request, or until a callback ends it."""

    def __init__(
        self, state: TrainState, data: Splits, train: Train, plan: Plan, folder: Path, journal: Journal, rank_journal: Journal, *,
        selection: Selection = Selection(), callbacks: Sequence[Callback] = (), keep_best: int = 2, log_every: int = 10,
        reduce_batch_on_oom: bool = False, stop: StopRequest | None = None, clock: Clock | None = None,
    ):  # fmt: skip
        self.state, self.data, self.train, self.plan = state, data, train, plan
        self.journal, self.rank_journal = journal, rank_journal  # of the training, and of this rank alone
        self.callbacks, self.log_every, self.stop, self.clock = (
            Callbacks(callbacks),
            log_every,
            stop or NeverStop(),
            clock or Clock(time.time()),
        )
        self.checkpoints = Checkpoints(folder / "checkpoints", selection.metric, selection.mode, keep_best)
        self.best = BestMetric(selection.metric, selection.mode)
        self.accumulation = Accumulation(folder, train.accumulate, reduce_batch_on_oom, most=train.batch_size)
        self.window = MetricWindow(state.strategy)
        self.nonfinite = NonfiniteSteps(train.bad_steps_allowed, train.rollbacks_allowed)
        self.memory: dict[str, Stateful] = {  # of a checkpoint, besides modules and optimizers
            "task": state.task, "window": self.window, "callbacks": self.callbacks, "bad_steps": self.nonfinite, "best": self.best,
        }  # fmt: skip
        self.parameters = 0
        self.upcoming: PlannedStep | None = None
        self.pending: StepOutcome | None = None  # the newest step, of which the device has perhaps not said yet whether it was applied
        self.stopping = False
        self.owed = False  # an evaluation of this step, which a stop request came before
        self.saved_at = time.monotonic()

    @classmethod
    def from_settings(
        cls, train: Train, model: Model, data: Splits, folder: Path, *, strategy: Strategy | None = None, weights: Path | None = None,
        initial_weights: Path | None = None, selection: Selection = Selection(), callbacks: Sequence[Callback] = (),
        journals: tuple[Journal, Journal] | None = None, **options: Any,
    ) -> "Trainer":  # fmt: skip
        """The trainer of one run, as the sections `train` and `model` of the configuration describe it.

        `folder` gets journal, checkpoints and logs; where it has a checkpoint, `fit` resumes from it. `weights` is the folder of the
        pretrained model that `model` names. All that the settings do not say has a default, so that a notebook needs no more.
        """
        strategy = strategy or start_strategy(train)
        folder.mkdir(parents=True, exist_ok=True)
        task = make_task(train)
        modules = build(task, train, model, weights, data.facts, initial_weights, strategy.builds)
        parameters = sum(p.numel() for module in modules.values() for p in module.parameters())  # before they are sharded
        if strategy.rank == 0:
            (folder / "description").mkdir(exist_ok=True)
            task.describe(modules, folder / "description")
        if early := train.early_stopping:
            callbacks = [*callbacks, EarlyStopping(selection.metric, selection.mode, early.patience, early.min_change)]
        state, plan = make_train_state(task, train, modules, strategy), Plan.of(train, data.train.lengths)
        trainer = cls(
            state, data, train, plan, folder, *(journals or open_journals(folder, strategy)),
            selection=selection, callbacks=[*callbacks, *load_callbacks(train)], **options,
        )  # fmt: skip
        trainer.parameters = parameters
        return trainer

    def fit(self) -> TrainState:
        state, task = self.state, self.state.task
        resumed = self.resume()
        self.journal.begin(state.step, steps=self.plan.steps, processes=state.strategy.world_size, precision=state.strategy.precision)
        self.rank_journal.begin(state.step)
        examples = len(self.data.train)
        logging.info("%s parameters, %d examples, steps %d to %d", f"{self.parameters:,}", examples, state.step, self.plan.steps)
        try:
            task.on_worker_start()
            self.callbacks.on_train_start(state)
            self.clock.to("steps")
            if resumed:
                self.report_checkpoint(state.step)  # perhaps the last attempt was killed before it could
            if state.step in (0, *self.plan.epoch_ends, self.plan.steps):
                self.evaluate_if_owed()
            planned = self.planned_steps()
            self.upcoming = next(planned, None)
            while self.upcoming and not self.over:
                epoch = self.upcoming.epoch
                task.on_epoch_start(epoch, state.plain_modules())
                self.evaluate_if_owed()
                if not self.over:
                    task.train_epoch(epoch, self.steps(epoch, planned))
                while self.upcoming and self.upcoming.epoch == epoch and not self.over:  # what the task did not want to take
                    self.upcoming = next(planned, None)
            self.finish()
            self.callbacks.on_train_end(state)
        except BaseException as error:
            self.callbacks.on_error(state, error)
            raise
        return state

    def steps(self, epoch: int, planned: Iterator[PlannedStep]) -> Iterator[Callable[[], None]]:
        """Each item takes one step of an epoch when it is called; after it comes what the plan says."""
        while self.upcoming and self.upcoming.epoch == epoch and not self.over:
            current, self.upcoming = self.upcoming, next(planned, None)
            yield partial(self.train_step, current)
            self.state.step = current.step
            if current.step == self.plan.epoch_ends[epoch]:  # before the checkpoint, which must know what comes of it
                self.state.task.on_epoch_end(epoch, self.state.plain_modules())
            if self.pending:  # the task may have left the step out
                self.after_step(self.pending)

    def planned_steps(self) -> Iterator[PlannedStep]:
        for epoch, batches in self.plan.batches.after(self.state.step, self.plan.steps):
            for step, ids in batches:
                with self.clock.during("data_wait"):
                    microbatches = self.load(ids, epoch)
                counted = sum(self.state.task.count(batch) for microbatch, batch in microbatches if not microbatch.filler)
                numbers = counted, self.stop.requested(), self.state.rank == 0 and self.is_time_to_save()
                yield PlannedStep(step, epoch, ids, microbatches, counted, self.state.strategy.all_reduce_scalars_ahead(*numbers))

    def load(self, ids: np.ndarray, epoch: int) -> MicroBatches:
        """This rank's share of a batch."""
        strategy = self.state.strategy
        shares = shard_batch(ids, self.accumulation.number, strategy.data_parallel_rank, strategy.data_parallel_size)
        return [(microbatch, self.data.train.batch(microbatch.ids, epoch)) for microbatch in shares]

    def train_step(self, planned: PlannedStep) -> None:
        """Gradients and an update, without waiting for the device or for other ranks; then judge the step before."""
        state, count = self.state, max(1.0, planned.agreed()[0])

        def forward_backward(number: int, objective: Objective) -> LossSums:
            return self.accumulation.retrying(
                state,
                seed=partial(seed_step, self.train.seed, planned.step, number, state.strategy),
                compute=lambda microbatches: state.strategy.forward_backward(objective, microbatches, count),
                load=lambda: self.load(planned.ids, planned.epoch),
                microbatches=planned.microbatches,
            )

        rate = self.plan.learning_rate_at(planned.step)
        losses, norm = train_step(state, rate, forward_backward)
        self.settle()  # the step before, whose gradients the device knows by now
        self.pending = StepOutcome(planned.step, planned.ids, losses, count, planned.counted_here, norm, rate)

    def after_step(self, outcome: StepOutcome) -> None:
        """Log, evaluate and save, as the plan says."""
        state, saving = self.state, 0.0
        if self.upcoming:
            _, stopping, saving = self.upcoming.agreed()
            self.stopping = self.stopping or stopping > 0
        self.callbacks.on_step_end(state, outcome)
        self.report_checkpoints()
        if state.step % self.log_every == 0 or state.step == self.plan.steps:
            self.log(outcome)
        if self.plan.evaluates_at(state.step):
            self.evaluate()
        elif self.stopping or saving or self.plan.saves_at(state.step):
            self.save(None)

    # --- what happens between two steps

    @property
    def over(self) -> bool:
        return self.stopping or bool(self.state.finished_early)

    @property
    def complete(self) -> bool:
        return not self.owed and (self.state.step == self.plan.steps or bool(self.state.finished_early))

    def resume(self) -> bool:
        """Whether there was a checkpoint to go back to."""
        self.state.step = self.checkpoints.restore(self.state, self.memory)
        evaluated = self.checkpoints.evaluated or not self.plan.evaluates_at(self.state.step)
        self.owed = self.state.step == 0 or not evaluated
        return self.state.step > 0

    def settle(self) -> None:
        """Ask the device whether the newest step was applied; where it was not, record it, and perhaps roll back.

        One step late, so that the host need not wait; but before an evaluation and a save, which depend on it.
        """
        outcome, self.pending = self.pending, None
        if outcome is None:
            return
        self.window.add(outcome)
        if outcome.applied:
            self.nonfinite.record_finite()
        else:
            self.skip(outcome)

    def skip(self, outcome: StepOutcome) -> None:
        """The weights stayed as they were, since a gradient was not finite."""
        strategy, scaler, step = self.state.strategy, self.state.strategy.scaler, outcome.step
        finite = strategy.all_gather_object(all(bool(loss.isfinite()) for loss in outcome.losses.values()))
        if all(finite) and scaler.is_enabled() and scaler.get_scale() >= 1.0:
            return  # beyond the range of fp16, as at times it is; the scaler has lowered its scale, and below 1 that is not the reason
        ranks, examples = [rank for rank, is_finite in enumerate(finite) if not is_finite], outcome.ids.tolist()
        self.journal.write("bad_step", step=step, processes=ranks, examples=examples)
        logging.warning("step %d: not a number in the losses of processes %s, or in gradients; the update is left out", step, ranks)
        if self.nonfinite.record_nonfinite(examples):
            self.checkpoints.finish()
            back = self.checkpoints.restore(self.state, {"task": self.state.task})
            if back == 0:
                raise SystemExit(
                    f"step {step}: too many steps without numbers, and no checkpoint to go back to. Lower train.learning_rate."
                )
            self.journal.write("rollback", step=step, to=back)
            logging.warning("step %d: back to the weights of step %d, and on behind the bad steps", step, back)

    def log(self, outcome: StepOutcome) -> None:
        self.window.add(outcome)
        if not self.window.examples:
            return  # no step since the last line was applied
        counts = self.state.task.counts
        self.rank_journal.write("train", step=self.state.step, metrics=self.window.of_this_rank(counts))
        figures = self.window.close(counts) | {"learning_rate": outcome.learning_rate, "gradient_norm": outcome.gradient_norm.item()}
        figures["epoch"] = self.plan.epochs_done(self.state.step)
        self.journal.write("train", step=self.state.step, metrics=figures, spent=self.clock.spent())
        self.callbacks.on_log(self.state, figures)
        self.window.reopen()

    def evaluate(self, saved: bool = False) -> None:
        """And save. Where a stop request comes first, only save, since there may be half a minute left; the next attempt evaluates."""
        self.settle()
        # no step is being computed to exchange this ahead, and ranks meet here anyway
        self.stopping = self.stopping or self.state.strategy.all_reduce_scalars(self.stop.requested())[0] > 0
        step, metrics = self.state.step, None if self.stopping else self.measure()
        self.owed = metrics is None
        if metrics is not None:
            self.callbacks.on_evaluation(self.state, metrics)
            self.journal.write("eval", step=step, metrics=metrics, spent=self.clock.spent())
        best = metrics is not None and step > 0 and self.best.improved(metrics)
        if step and (best or self.stopping or self.over or self.plan.saves_at(step)) and not (self.owed and saved):
            self.save(metrics)

    def evaluate_if_owed(self) -> None:
        """What no attempt has evaluated: the beginning, or the step at which the last one was stopped."""
        if self.owed:
            self.evaluate(saved=True)

    def measure(self) -> dict[str, float] | None:
        agreement = StopAgreement(self.state.strategy, self.stop)

        def goes_on() -> bool:
            self.callbacks.on_evaluation_step(self.state)
            self.stopping = agreement.poll()
            return not self.stopping

        with self.window.paused(), self.clock.during("evaluation"):
            return evaluate(self.state, self.data.dev, self.train.batch_size * 2, self.train.batch_tokens, goes_on)

    def save(self, metrics: dict[str, float] | None) -> None:
        self.settle()
        self.journal.sync()  # a checkpoint must not know more than the journal
        with self.window.paused(), self.clock.during("saving"):
            self.checkpoints.save(self.state, metrics, self.memory)
        self.saved_at = time.monotonic()

    def is_time_to_save(self) -> bool:
        return self.plan.save_minutes is not None and time.monotonic() - self.saved_at > 60 * self.plan.save_minutes

    def finish(self) -> None:
        self.settle()
        with self.clock.during("saving"):
            self.checkpoints.finish()
        self.report_checkpoints()

    def report_checkpoints(self) -> None:
        for step in self.checkpoints.newly_saved():
            self.report_checkpoint(step)

    def report_checkpoint(self, step: int) -> None:
        self.journal.write("checkpoint", step=step, path=f"checkpoints/{folder_name(step)}")
        self.callbacks.on_checkpoint(self.state, step)


def open_journals(
    folder: Path, strategy: Strategy, check: Callable[[], None] = lambda: None, about: Mapping[str, Any] = MappingProxyType({})
) -> tuple[journal.Journal, journal.Journal]:
    """That of the training, which the first rank writes, and that of this rank alone; `about`: more that is known of this attempt."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    whole = journal.Journal(folder / "journal.jsonl", strategy.rank == 0, check, about)
    return whole, journal.Journal(folder / f"logs/rank-{strategy.rank}.jsonl")
