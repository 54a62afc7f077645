"""The training loop, to be read from top to bottom. Its collaborators are passed in; nothing here is distributed code."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from snaketrain.config.references import load
from snaketrain.config.schema import Model, Train
from snaketrain.data.loading.examples import Splits, digest_of
from snaketrain.data.loading.loader import Loader
from snaketrain.models.adapters import describe_adapters
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.journal import Clock, Journal
from snaketrain.runtime.run_folder import deciding_settings
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.strategies.base import Strategy, norm_of
from snaketrain.tasks.base import Task
from snaketrain.training.batch_limits import BatchLimits
from snaketrain.training.building import (
    build,
    by_slices,
    check_weights,
    load_callbacks,
    make_task,
    make_train_state,
    selection_callbacks,
    selection_settings,
    start_strategy,
)
from snaketrain.training.callbacks import Callback, Callbacks
from snaketrain.training.checkpoints.formats import FormatName, make_format
from snaketrain.training.checkpoints.ranking import BY_LOSS, BestMetric, Selection
from snaketrain.training.checkpoints.store import Checkpoints
from snaketrain.training.early_stopping import EarlyStopping, evaluate_taken_over, replay_evaluations
from snaketrain.training.evaluation import evaluate
from snaketrain.training.metric_window import MetricWindow
from snaketrain.training.plan import Plan, PlannedStep, PlannedSteps, folder_name
from snaketrain.training.state import Stateful, StepOutcome, TrainState
from snaketrain.training.step import Accumulation, BadSteps, train_step
from snaketrain.training.watching import open_journals
from snaketrain.training.weight_average import averages_in_place


@dataclass(frozen=True)
class TrainerOptions:
    """How a training is watched, saved and stopped, and how its batches are loaded."""

    selection: Selection = BY_LOSS  # which metric ranks the checkpoints
    keep_best: int = 2
    checkpoint_format: FormatName = "auto"
    callbacks: Sequence[Callback] = ()
    log_every: int = 10
    reduce_batch_on_oom: bool = False
    until: int | None = None  # the last step to take now; it is saved, and another start continues from there
    resume_changed: bool = False  # continue a training that was begun with other settings, whose result is then that of neither
    loader: Loader = field(default_factory=Loader)
    stop: Callable[[], bool] = lambda: False  # asked on each rank, at each step and each batch of an evaluation
    clock: Clock = field(default_factory=lambda: Clock(time.time()))


class Trainer:
    """One training, from its last checkpoint to the end of its plan, a stop request, or the decision of a callback."""

    def __init__(
        self, state: TrainState, data: Splits, train: Train, plan: Plan, folder: Path, journals: tuple[Journal, Journal],
        options: TrainerOptions | None = None, settings: JsonObject | None = None,
    ):  # fmt: skip
        """`settings`: the sections that decide the training besides `train`."""
        self.state, self.data, self.train, self.plan = state, data, train, plan
        self.options = options = options or TrainerOptions()
        self.journal, self.rank_journal = journals
        self.callbacks, self.clock = Callbacks(options.callbacks), options.clock
        format = make_format(options.checkpoint_format, state.strategy)
        self.checkpoints = Checkpoints(
            folder / "checkpoints", options.selection, options.keep_best, format, self.journal.sync, plan.branch_steps,
            deciding_settings({"train": train.model_dump(mode="json")} | (settings or {})), options.resume_changed,
        )  # fmt: skip
        self.best = BestMetric(options.selection)
        self.accumulation = Accumulation(folder, train.accumulate, options.reduce_batch_on_oom, train.seed)
        self.planned = PlannedSteps(state, data.train, plan, self.accumulation, options.loader, options.clock, self.requests)
        self.window = MetricWindow(state.strategy)
        self.bad_steps = BadSteps(train.bad_steps_allowed, train.rollbacks_allowed)
        self.stateful: dict[str, Stateful] = {  # what checkpoints hold besides modules and optimizers
            "task": state.task, "window": self.window, "callbacks": self.callbacks, "bad_steps": self.bad_steps,
        }  # fmt: skip
        if state.spikes:
            self.stateful["spikes"] = state.spikes
        if self.planned.stream:
            self.stateful["data"] = self.planned.stream
        self.newest: StepOutcome | None = None  # the device may not know yet whether it is applied
        self.stopping = False
        self.owed = False  # whether this step is still to be evaluated: the initial weights, or where a stop request came first
        self.saved_at = time.monotonic()

    @classmethod
    def from_settings(
        cls, train: Train, model: Model, data: Splits, folder: Path, options: TrainerOptions | None = None, *,
        strategy: Strategy | None = None, task: Task | None = None, plan: Plan | None = None,
        weights: Path | None = None, initial_weights: Path | None = None, journals: tuple[Journal, Journal] | None = None,
    ) -> "Trainer":  # fmt: skip
        """The trainer of one run, from the sections `train` and `model` of its configuration.

        Journal, checkpoints and logs go to `folder`; if it has a checkpoint, `fit` resumes from there. `weights` and `initial_weights` are
        the folders of what `model.source` and `model.initial_weights` name. It is of the class that `train.trainer` names, if it names one.
        """
        check_weights(model, weights, initial_weights)
        strategy, task, options = strategy or start_strategy(train), task or make_task(train, data.facts), options or TrainerOptions()
        folder.mkdir(parents=True, exist_ok=True)
        modules = build(
            task, train, model, weights, data.facts, initial_weights, strategy.builds, trains=True, slices=by_slices(task, strategy)
        )
        if strategy.rank == 0:
            (folder / "description").mkdir(exist_ok=True)
            task.describe(modules, folder / "description")
            for module in modules.values():
                describe_adapters(module, folder / "adapter")
        made, further = trainer_class(train, cls), resolved(train.trainer.arguments) if train.trainer else {}
        callbacks = [*options.callbacks, *selection_callbacks(train, options.selection), *load_callbacks(train)]
        return made(
            make_train_state(task, train, modules, strategy), data, train, plan or Plan.of(train, data.train.lengths), folder,
            journals or open_journals(folder, strategy), replace(options, callbacks=callbacks),
            {"model": model.model_dump(mode="json"), **selection_settings(train, options.selection), "data": {"train": digest_of(data.train)}},
            **further,
        )  # fmt: skip

    def fit(self) -> TrainState:
        state, task = self.state, self.state.task
        try:
            self.resume()
            task.on_worker_start()
            self.callbacks.call("on_train_start", state)
            evaluate_taken_over(self)
            self.clock.to("steps")
            if state.step:
                self.report_checkpoint(state.step)  # the last attempt may have been killed before it did
            if self.owed and state.step in (0, *self.plan.epoch_ends, self.plan.last):
                self.evaluate(saved=True)
            with self.planned.loading():
                self.train_epochs()
            self.finish()
            self.callbacks.call("on_train_end", state)
        except BaseException as error:
            self.callbacks.call("on_error", state, error)
            raise
        return state

    def train_epochs(self) -> None:
        state, task, planned = self.state, self.state.task, self.planned
        while planned.upcoming and not self.over:
            epoch = planned.upcoming.epoch
            task.on_epoch_start(epoch, state.plain_modules())
            if self.owed:
                self.evaluate(saved=True)
            if not self.over:
                task.train_epoch(epoch, self.steps(epoch))
            while self.has_steps_in(epoch):  # steps that the task left out
                planned.take()

    def steps(self, epoch: int) -> Iterator[Callable[[], None]]:
        """The steps of an epoch, each taken when it is called; logging, evaluation and saving follow between them."""
        while self.has_steps_in(epoch):
            current = self.planned.take()
            yield partial(self.train_step, current)
            self.state.step = current.step
            if self.planned.stream:  # which a checkpoint resumes after this step
                self.planned.stream.done(current.step)
            if current.step == self.plan.epoch_ends[epoch]:  # before the checkpoint, which holds what it changes
                self.state.task.on_epoch_end(epoch, self.state.plain_modules())
            self.after_step(self.newest)

    def has_steps_in(self, epoch: int) -> bool:
        return bool(self.planned.upcoming and self.planned.upcoming.epoch == epoch and not self.over)

    def train_step(self, planned: PlannedStep) -> None:
        """Compute gradients and update, without waiting for the device or for other ranks; then settle the step before."""
        state = self.state
        rate = self.plan.learning_rate_at(planned.step) * state.rate_scale
        of_groups = {group: each * state.rate_scale for group, each in self.plan.group_rates_at(planned.step).items()}
        losses, norm = train_step(state, rate, partial(self.accumulation.forward_backward, state, planned), of_groups)
        self.settle()  # the step before, which the device has finished by now
        raw = norm_of([*state.spikes.newest.values()]) if state.spikes else None
        self.newest = StepOutcome(planned.step, planned.ids, losses, planned.denominator, planned.counted_here, norm, rate, raw)

    def after_step(self, outcome: StepOutcome | None) -> None:
        """Log, evaluate and save according to the plan. Where the task has left a step out, the outcome is an earlier one's."""
        state, saving = self.state, 0.0
        if self.planned.upcoming:
            _, stopping, saving, *exchanged = self.planned.upcoming.summed()
            self.stopping = self.stopping or stopping > 0
            self.callbacks.on_exchange(state, exchanged)
        if outcome and outcome.step == state.step:
            self.callbacks.call("on_step_end", state, outcome)
        self.report_checkpoints()
        if outcome and (state.step % self.options.log_every == 0 or state.step == self.plan.steps):
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
        return self.options.until is not None and self.state.step >= self.options.until

    @property
    def complete(self) -> bool:
        return not self.owed and (self.state.step == self.plan.last or bool(self.state.finished_early))

    def resume(self) -> None:
        """Restore the last checkpoint, if there is one, and open the journals."""
        state, plan = self.state, self.plan
        state.step = step = self.checkpoints.restore(state, self.stateful)
        self.owed = step == 0 or (plan.evaluates_at(step) and not self.checkpoints.evaluated)
        if step > plan.last:
            raise SystemExit(
                f"The last checkpoint is at step {step}, and the settings end the training at step {plan.last}. Train in another folder."
            )
        if saved := self.checkpoints.restored:
            state.finished_early = saved.get("ended", "")
        replay_evaluations(self)
        self.journal.begin(
            step, steps=plan.last, processes=state.strategy.world_size, data_parallel_size=state.strategy.data_parallel_size,
            precision=state.strategy.precision,
        )  # fmt: skip
        self.rank_journal.begin(step)
        number = len(self.data.train) if isinstance(self.data.train, Sized) else None
        examples = "a stream" if number is None else f"{number} examples"
        size = self.train.batch_size
        # a mixture repeats examples instead
        if number and plan.steps and self.train.batch_tokens is None and number < size and len(plan.batches.batch(0, 0)) < size:
            logging.warning("train.batch_size is %d, more than the training data has (%d): each batch has all of it", size, number)
        logging.info("%s parameters, %s, steps %d to %d", f"{state.parameters:,}", examples, step, plan.last)

    def settle(self) -> None:
        """Read from the device whether the newest step was applied; if not, record that, and roll back after too many.

        One step late, so that the host need not wait; but always before an evaluation or a save, which depend on it.
        """
        if (outcome := self.newest) and not outcome.settled:
            outcome.settled = True
            self.window.add(outcome)
            self.bad_steps.settle(outcome, self.state, self.checkpoints, self.journal)

    def log(self, outcome: StepOutcome) -> None:
        self.window.add(outcome)
        if not self.window.examples:
            return  # no step since the last line was applied
        counts = self.state.task.counts
        self.rank_journal.write("train", step=self.state.step, metrics=self.window.of_this_rank(counts))
        figures = self.window.close(counts) | {"learning_rate": outcome.learning_rate, "gradient_norm": outcome.gradient_norm.item()}
        figures["epoch"] = self.plan.epochs_done(self.state.step)
        self.callbacks.call("on_log", self.state, figures)
        self.journal.write("train", step=self.state.step, metrics=figures, spent=self.clock.spent())
        self.window.reopen()

    def evaluate(self, saved: bool = False) -> None:
        """Evaluate and save. On a stop request only save, since there may be half a minute left; the next attempt evaluates."""
        self.settle()
        # there is no step during which to exchange this ahead, and an evaluation synchronises the ranks anyway
        self.stopping = self.stopping or self.state.strategy.all_reduce_scalars(self.options.stop())[0] > 0
        step, metrics = self.state.step, None if self.stopping else self.measure()
        self.owed = metrics is None
        if metrics is not None:
            self.callbacks.call("on_evaluation", self.state, metrics)
            self.journal.write("eval", step=step, metrics=metrics, spent=self.clock.spent())
        best = metrics is not None and step > 0 and self.best.improved(metrics)
        if (step or self.plan.steps == 0) and (best or self.over or self.plan.saves_at(step)) and not (self.owed and saved):
            self.save(metrics)

    def measure(self) -> dict[str, float] | None:
        if not len(self.data.dev):  # nothing is trained, so that nothing is selected either
            return {}
        exchanged: Callable[[], list[float]] | None = None

        def may_continue() -> bool:
            """Each answer was all-reduced during the batch before, so that no rank waits for another."""
            nonlocal exchanged
            self.callbacks.call("on_evaluation_step", self.state)
            before, exchanged = exchanged, self.state.strategy.all_reduce_scalars_ahead(self.options.stop())
            self.stopping = before is not None and before()[0] > 0
            return not self.stopping

        with self.window.paused(), self.clock.during("evaluation"), averages_in_place(self.state):
            self.share_buffers()
            return evaluate(self.state, self.data.dev, *self.evaluation_limits(), may_continue, self.options.loader)

    def evaluation_limits(self) -> tuple[int, int | None]:
        """Where a batch is split to fit into the memory, those of an evaluation are smaller as well."""
        ranks = self.state.strategy.data_parallel_size
        return BatchLimits.of(self.train, self.accumulation.number, ranks).over(ranks)

    def share_buffers(self) -> None:
        """So that ranks evaluate the model that is saved."""
        for module in self.state.modules.values():
            self.state.strategy.share_buffers(module)

    def save(self, metrics: dict[str, float] | None) -> None:
        self.settle()
        self.share_buffers()
        self.journal.sync()  # a checkpoint must not be ahead of the journal
        with self.window.paused(), self.clock.during("saving"):
            self.checkpoints.save(self.state, metrics, self.stateful, self.ended_by_callback, self.callbacks.facts(self))
        self.saved_at = time.monotonic()

    @property
    def ended_by_callback(self) -> str:
        """Why one of the user's callbacks has ended the training; early stopping decides again when it is resumed."""
        early = any(isinstance(callback, EarlyStopping) and callback.decided for callback in self.callbacks.callbacks)
        return "" if early else self.state.finished_early

    def requests(self) -> tuple[float, ...]:
        """Whether this rank is asked to stop, and whether it is time to save; ranks exchange both a step ahead, with numbers of callbacks."""
        minutes = self.train.save_every_minutes if self.state.rank == 0 else None
        is_time_to_save = minutes is not None and time.monotonic() - self.saved_at > 60 * minutes
        return self.options.stop(), is_time_to_save, *self.callbacks.exchange(self.state)

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
            self.callbacks.call("on_checkpoint", self.state, step)


def trainer_class(train: Train, default: type[Trainer] = Trainer) -> type[Trainer]:
    """What `train.trainer` names, with the `default` where it names none."""
    if train.trainer is None:
        return default
    found = load(train.trainer.use)
    if not (isinstance(found, type) and issubclass(found, Trainer)):
        raise SystemExit(f"train.trainer.use: `{train.trainer.use}` is not a trainer. Derive it from snaketrain.Trainer.")
    return found
