"""The training loop, to be read from top to bottom. Its collaborators are passed in; nothing here is distributed code."""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from snaketrain.config.schema import Model, Train
from snaketrain.data.loading.batches import MicroBatch, shard_batch
from snaketrain.data.loading.loader import Loader
from snaketrain.data.loading.opening import Splits
from snaketrain.data.loading.stream_progress import StreamProgress
from snaketrain.data.loading.streams import Stream
from snaketrain.data.loading.workers import Request, load
from snaketrain.models.adapters import describe_adapters
from snaketrain.runtime.goodput import Clock
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.gradients import LossSums, MicroBatches, Objective
from snaketrain.tasks.base import Task
from snaketrain.training.building import (
    build,
    by_slices,
    load_callbacks,
    make_task,
    make_train_state,
    selection_callbacks,
    start_strategy,
)
from snaketrain.training.callbacks.base import Callback, Callbacks
from snaketrain.training.checkpoints.best_metric import BY_LOSS, BestMetric, Selection
from snaketrain.training.checkpoints.formats import FormatName, make_format
from snaketrain.training.checkpoints.store import Checkpoints
from snaketrain.training.early_stopping import EarlyStopping
from snaketrain.training.evaluation import evaluate
from snaketrain.training.journals import Journal, open_journals
from snaketrain.training.metric_window import MetricWindow
from snaketrain.training.nonfinite import Diverged, NonfiniteSteps, nonfinite_ranks
from snaketrain.training.out_of_memory import Accumulation
from snaketrain.training.plan import Plan, folder_name
from snaketrain.training.reused_evaluations import ReusedEvaluations
from snaketrain.training.state import Stateful, StepOutcome, TrainState
from snaketrain.training.step import seed_step, train_step
from snaketrain.training.stop_agreement import NeverStop, StopAgreement, StopRequest
from snaketrain.training.trajectory import Record, Trajectory
from snaketrain.training.weight_average import averages_in_place


@dataclass(frozen=True)
class PlannedStep:
    """A step whose batch is loaded, and whose counts are all-reduced while the step before is computed."""

    step: int
    epoch: int
    ids: np.ndarray
    microbatches: MicroBatches
    counted_here: float
    summed: Callable[[], list[float]]  # over all ranks: the count, stop requests, whether it is time to save


class Trainer:
    """One training, from its last checkpoint to the end of its plan, a stop request, or the decision of a callback."""

    def __init__(
        self, state: TrainState, data: Splits, train: Train, plan: Plan, folder: Path, journal: Journal, rank_journal: Journal, *,
        selection: Selection = BY_LOSS, callbacks: Sequence[Callback] = (), keep_best: int = 2, checkpoint_format: FormatName = "auto",
        log_every: int = 10, reduce_batch_on_oom: bool = False, stop: StopRequest | None = None, clock: Clock | None = None,
        trajectory: Trajectory | None = None, loader: Loader | None = None, until: int | None = None,
    ):  # fmt: skip
        """`until`: the last step to take now, after which it is saved; another start continues from there."""
        self.until = until
        self.state, self.data, self.train, self.plan = state, data, train, plan
        self.loader = loader or Loader()
        self.journal, self.rank_journal, self.trajectory = journal, rank_journal, trajectory
        self.callbacks, self.log_every = Callbacks(callbacks), log_every
        self.stop, self.clock = stop or NeverStop(), clock or Clock(time.time())
        format = make_format(checkpoint_format, state.strategy)
        self.checkpoints = Checkpoints(folder / "checkpoints", selection, keep_best, format, journal.sync, plan.branch_steps)
        self.best, self.reused = BestMetric(selection), ReusedEvaluations(folder)
        self.accumulation = Accumulation(folder, train.accumulate, reduce_batch_on_oom, most=train.batch_size)
        self.window = MetricWindow(state.strategy)
        self.nonfinite = NonfiniteSteps(train.bad_steps_allowed, train.rollbacks_allowed)
        self.stateful: dict[str, Stateful] = {  # what checkpoints hold besides modules and optimizers
            "task": state.task, "window": self.window, "callbacks": self.callbacks, "bad_steps": self.nonfinite, "best": self.best,
        }  # fmt: skip
        self.stream = StreamProgress(data.train.name, data.train.restart) if isinstance(data.train, Stream) else None
        if self.stream:
            self.stateful["data"] = self.stream
        self.upcoming: PlannedStep | None = None
        self.newest: StepOutcome | None = None  # the device may not know yet whether it is applied
        self.stopping = False
        self.owed = False  # whether this step is still to be evaluated, because a stop request came first
        self.saved_at = time.monotonic()

    @classmethod
    def from_settings(
        cls, train: Train, model: Model, data: Splits, folder: Path, *, strategy: Strategy | None = None, task: Task | None = None,
        plan: Plan | None = None, weights: Path | None = None, initial_weights: Path | None = None, journals: tuple[Journal, Journal] | None = None,
        selection: Selection = BY_LOSS, callbacks: Sequence[Callback] = (), keep_best: int = 2,
        checkpoint_format: FormatName = "auto", log_every: int = 10, reduce_batch_on_oom: bool = False, stop: StopRequest | None = None,
        clock: Clock | None = None, trajectory: Trajectory | None = None, loader: Loader | None = None, until: int | None = None,
    ) -> "Trainer":  # fmt: skip
        """The trainer of one run, from the sections `train` and `model` of its configuration.

        Journal, checkpoints and logs go to `folder`; if it has a checkpoint, `fit` resumes from there. `weights` is the folder of the
        pretrained model that `model` names.
        """
        strategy, task = strategy or start_strategy(train), task or make_task(train, data.facts)
        plan = plan or Plan.of(train, data.train.lengths)
        folder.mkdir(parents=True, exist_ok=True)
        modules = build(
            task, train, model, weights, data.facts, initial_weights, strategy.builds, trains=True, slices=by_slices(task, strategy)
        )
        if strategy.rank == 0:
            (folder / "description").mkdir(exist_ok=True)
            task.describe(modules, folder / "description")
            for module in modules.values():
                describe_adapters(module, folder / "adapter")
        return cls(
            make_train_state(task, train, modules, strategy), data, train, plan, folder, *(journals or open_journals(folder, strategy)), selection=selection,
            callbacks=[*callbacks, *selection_callbacks(train, selection), *load_callbacks(train)], keep_best=keep_best, checkpoint_format=checkpoint_format, log_every=log_every,
            reduce_batch_on_oom=reduce_batch_on_oom, stop=stop, clock=clock, trajectory=trajectory, loader=loader, until=until,
        )  # fmt: skip

    def fit(self) -> TrainState:
        state, task = self.state, self.state.task
        try:
            self.resume()
            task.on_worker_start()
            self.callbacks.on_train_start(state)
            self.reused.measure(self)
            self.clock.to("steps")
            if state.step:
                self.report_checkpoint(state.step)  # the last attempt may have been killed before it did
            if state.step in (0, *self.plan.epoch_ends, self.plan.last):
                self.evaluate_if_owed()
            with closing(self.planned_steps()) as planned:
                self.train_epochs(planned)
            self.finish()
            self.callbacks.on_train_end(state)
        except BaseException as error:
            self.callbacks.on_error(state, error)
            raise
        return state

    def train_epochs(self, planned: Iterator[PlannedStep]) -> None:
        state, task = self.state, self.state.task
        self.upcoming = next(planned, None)
        while self.upcoming and not self.over:
            epoch = self.upcoming.epoch
            task.on_epoch_start(epoch, state.plain_modules())
            self.evaluate_if_owed()
            if not self.over:
                task.train_epoch(epoch, self.steps(epoch, planned))
            while self.upcoming and self.upcoming.epoch == epoch and not self.over:  # steps that the task left out
                self.upcoming = next(planned, None)

    def steps(self, epoch: int, planned: Iterator[PlannedStep]) -> Iterator[Callable[[], None]]:
        """The steps of an epoch, each taken when it is called; logging, evaluation and saving follow between them."""
        while self.upcoming and self.upcoming.epoch == epoch and not self.over:
            current, self.upcoming = self.upcoming, next(planned, None)
            yield partial(self.train_step, current)
            self.state.step = current.step
            if self.stream:
                self.stream.done(current.step)
            if current.step == self.plan.epoch_ends[epoch]:  # before the checkpoint, which holds what it changes
                self.state.task.on_epoch_end(epoch, self.state.plain_modules())
            self.after_step(self.newest)

    def planned_steps(self) -> Generator[PlannedStep, None, None]:
        with closing(self.loader.load(self.data.train, self.requests())) as batches:
            while True:
                with self.clock.during("data_wait"):
                    found = next(batches, None)
                if found is None:
                    return
                request, microbatches, position = found[0], found[1].microbatches, found[1].position
                assert request.epoch is not None, "of a training"
                if self.stream and position:
                    self.stream.loaded(request.step, position)
                counted = sum(self.state.task.count(batch) for microbatch, batch in microbatches if not microbatch.filler)
                numbers = counted, self.stop.requested(), self.state.rank == 0 and self.is_time_to_save()
                summed = self.state.strategy.all_reduce_scalars_ahead(*numbers)
                yield PlannedStep(request.step, request.epoch, request.ids, microbatches, counted, summed)

    def requests(self) -> Iterator[Request]:
        """Worker processes read them ahead."""
        for epoch, batches in self.plan.batches.after(self.state.step, self.plan.last):
            for step, ids in batches:
                yield Request(ids, self.share(ids), epoch, step)

    def share(self, ids: np.ndarray) -> list[MicroBatch]:
        """This rank's share of a batch."""
        strategy = self.state.strategy
        return shard_batch(ids, self.accumulation.number, strategy.data_parallel_rank, strategy.data_parallel_size)

    def load(self, ids: np.ndarray, epoch: int) -> MicroBatches:
        """Again in this process, after running out of memory."""
        return load(self.data.train, Request(ids, self.share(ids), epoch)).microbatches

    def train_step(self, planned: PlannedStep) -> None:
        """Compute gradients and update, without waiting for the device or for other ranks; then settle the step before."""
        state, count = self.state, max(1.0, planned.summed()[0])

        def forward_backward(number: int, objective: Objective) -> LossSums:
            return self.accumulation.retrying(
                state,
                seed=partial(seed_step, self.train.seed, planned.step, number, state.strategy),
                compute=lambda microbatches: state.strategy.forward_backward(objective, microbatches, count),
                load=lambda: self.load(planned.ids, planned.epoch),
                microbatches=planned.microbatches,
            )

        rate = self.plan.learning_rate_at(planned.step) * state.rate_scale
        of_groups = {group: each * state.rate_scale for group, each in self.plan.group_rates_at(planned.step).items()}
        losses, norm = train_step(state, rate, forward_backward, of_groups)
        self.settle()  # the step before, which the device has finished by now
        self.newest = StepOutcome(planned.step, planned.ids, losses, count, planned.counted_here, norm, rate)

    def after_step(self, outcome: StepOutcome | None) -> None:
        """Log, evaluate and save according to the plan. Where the task has left a step out, the outcome is an earlier one's."""
        state, saving = self.state, 0.0
        if self.upcoming:
            _, stopping, saving = self.upcoming.summed()
            self.stopping = self.stopping or stopping > 0
        if outcome and outcome.step == state.step:
            self.callbacks.on_step_end(state, outcome)
        self.report_checkpoints()
        if outcome and (state.step % self.log_every == 0 or state.step == self.plan.steps):
            self.log(outcome)
        if self.plan.evaluates_at(state.step):
            self.evaluate()
        elif self.stopping or saving or self.paused or self.plan.saves_at(state.step):
            self.save(None)

    # --- between steps

    @property
    def over(self) -> bool:
        return self.stopping or self.paused or bool(self.state.finished_early)

    @property
    def paused(self) -> bool:
        return self.until is not None and self.state.step >= self.until

    @property
    def complete(self) -> bool:
        return not self.owed and (self.state.step == self.plan.last or bool(self.state.finished_early))

    def resume(self) -> None:
        """Restore the last checkpoint, if there is one, and open the journals."""
        state, plan = self.state, self.plan
        state.step = step = self.checkpoints.restore(state, self.stateful)
        self.owed = step == 0 or (plan.evaluates_at(step) and not self.checkpoints.evaluated)
        if saved := self.checkpoints.restored:
            state.finished_early = saved.get("ended", "")
            if self.trajectory and not self.trajectory.contains(step, saved.get("trajectory")):
                self.trajectory = None  # these weights also follow from how the training was executed, so no other one has them
        self.reused.replay(self)
        measures = self.trajectory.measures if self.trajectory else None
        self.journal.begin(
            step, steps=plan.last, processes=state.strategy.world_size, precision=state.strategy.precision, measures=measures
        )
        self.rank_journal.begin(step)
        examples = f"{len(self.data.train)} examples" if isinstance(self.data.train, Sized) else "a stream"
        logging.info("%s parameters, %s, steps %d to %d", f"{state.parameters:,}", examples, step, plan.last)

    def settle(self) -> None:
        """Read from the device whether the newest step was applied; if not, record that, and roll back after too many.

        One step late, so that the host need not wait; but always before an evaluation or a save, which depend on it.
        """
        outcome = self.newest
        if outcome is None or outcome.settled:
            return
        outcome.settled = True
        self.window.add(outcome)
        if outcome.applied:
            self.nonfinite.record_finite()
        else:
            self.skip(outcome)

    def skip(self, outcome: StepOutcome) -> None:
        """Record a step whose gradients were not finite, so that the weights stayed as they were."""
        ranks, step, examples = nonfinite_ranks(self.state.strategy, outcome), outcome.step, outcome.ids.tolist()
        if ranks is None:
            return
        self.journal.write("bad_step", step=step, processes=ranks, examples=examples)
        logging.warning("step %d: losses of ranks %s, or gradients, are not finite; the update is skipped", step, ranks)
        if self.nonfinite.record_nonfinite(examples):
            self.checkpoints.finish()
            back = self.checkpoints.restore(self.state, {"task": self.state.task})
            if back == 0:
                raise Diverged(f"step {step}: too many steps are not finite, and there is no checkpoint yet. Lower train.learning_rate.")
            self.journal.write("rollback", step=step, to=back)
            logging.warning("step %d: rolled back to the weights of step %d; training continues after the skipped steps", step, back)

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
        """Evaluate and save. On a stop request only save, since there may be half a minute left; the next attempt evaluates."""
        self.settle()
        # there is no step during which to exchange this ahead, and an evaluation synchronises the ranks anyway
        self.stopping = self.stopping or self.state.strategy.all_reduce_scalars(self.stop.requested())[0] > 0
        step, metrics = self.state.step, None if self.stopping else self.measure()
        self.owed = metrics is None
        if metrics is not None:
            self.callbacks.on_evaluation(self.state, metrics)
            self.journal.write("eval", step=step, metrics=metrics, spent=self.clock.spent())
        best = metrics is not None and step > 0 and self.best.improved(metrics)
        if (step or self.plan.steps == 0) and (best or self.over or self.plan.saves_at(step)) and not (self.owed and saved):
            self.save(metrics)

    def evaluate_if_owed(self) -> None:
        """The initial weights, or the step at which the last attempt was stopped."""
        if self.owed:
            self.evaluate(saved=True)

    def measure(self) -> dict[str, float] | None:
        if not len(self.data.dev):  # nothing is trained, so that nothing is selected either
            return {}
        agreement = StopAgreement(self.state.strategy, self.stop)

        def goes_on() -> bool:
            self.callbacks.on_evaluation_step(self.state)
            self.stopping = agreement.poll()
            return not self.stopping

        with self.window.paused(), self.clock.during("evaluation"), averages_in_place(self.state):
            return evaluate(self.state, self.data.dev, self.train.batch_size * 2, self.train.batch_tokens, goes_on, self.loader)

    def save(self, metrics: dict[str, float] | None) -> None:
        self.settle()
        self.journal.sync()  # a checkpoint must not be ahead of the journal
        with self.window.paused(), self.clock.during("saving"):
            self.checkpoints.save(self.state, metrics, self.stateful, self.ended_by_callback, self.record())
        self.saved_at = time.monotonic()

    @property
    def ended_by_callback(self) -> str:
        """Why one of the user's callbacks has ended the training; early stopping decides again when it is resumed."""
        early = any(isinstance(callback, EarlyStopping) and callback.decided for callback in self.callbacks.callbacks)
        return "" if early else self.state.finished_early

    def record(self) -> Record | None:
        """None if the weights also follow from when memory ran out, or from which checkpoint there was to roll back to."""
        trajectory, nonfinite = self.trajectory, self.nonfinite
        otherwise_split = self.train.deterministic and self.accumulation.number != self.train.accumulate
        if trajectory is None or otherwise_split or nonfinite.rollbacks:
            return None
        return trajectory.record(self.state.step, nonfinite.longest)

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
        if self.state.rank == 0:  # which alone knows when a checkpoint is complete
            self.callbacks.on_checkpoint(self.state, step)
