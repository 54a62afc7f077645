"""The section `train`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from snaketrain.config.schema.base import LARGEST, Name, NotNegative, Positive, Section, Seed, Use, is_empty, is_null
from snaketrain.runtime.strict_json import Json

# --- Metrics that a configuration names, of `train.metrics`, `evaluate.metrics` and the task `module`.


class Metric(Use):
    """A metric: a short name of `tasks/metric_names.py`, a class of torchmetrics, or your own class or function."""

    mode: Literal["max", "min"] | None = Field(
        None, description="whether higher or lower is better; null: as `higher_is_better` of its class says"
    )


OF_RESULTS = ("examples", "examples_digest", "low", "high", "baseline")  # columns beside the metrics in the table of the comparison


def with_names_of_their_own(metrics: dict[str, Metric]) -> dict[str, Metric]:
    if taken := next((name for name in metrics if name in OF_RESULTS), None):
        raise ValueError(f"a metric cannot be named {taken!r}, as another column of the comparison is: give it another name")
    return metrics


def named(value: Json) -> Json:
    """Short names can be listed, `[matthews_correlation, f1]`, or be keys without a value: each is logged under its own name."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        if unnamed := next((use for use in value if "." in use or ":" in use), None):
            raise ValueError(f"{unnamed!r} needs a name to be logged by: write it as `name: {unnamed}`")
        if twice := next((name for name in value if value.count(name) > 1), None):
            raise ValueError(f"names {twice!r} twice: name it once")
        value = dict.fromkeys(value)
    return {name: {"use": name} if metric is None else metric for name, metric in value.items()} if isinstance(value, dict) else value


Metrics = Annotated[
    dict[Name, Metric],
    BeforeValidator(named, json_schema_input_type=dict[Name, Metric | None] | list[Name]),
    AfterValidator(with_names_of_their_own),
]


ARGUMENTS_WITH_SETTINGS = {"lr": "train.learning_rate", "weight_decay": "train.weight_decay"}  # arguments of optimizers that are settings
NEEDS_CLOSURE = "computes the loss several times in a step, which is not supported: a step has one gradient, of the batches of all processes. Name another."
SET_BY_LENGTH = ("total_steps", "T_max")  # arguments of torch's schedulers: the steps of the training after its warm-up, unless given
TORCH_SCHEDULERS = "torch.optim.lr_scheduler."
PLATEAU = f"{TORCH_SCHEDULERS}ReduceLROnPlateau"


class EarlyStopping(Section):
    """Ends a training whose selection metric has stopped improving."""

    patience: Positive = Field(3, description="evaluations in a row without an improvement")
    min_change: Annotated[float, Field(ge=0, le=LARGEST)] = Field(0.0, description="a smaller change than this is not an improvement")


class Group(Section):
    """Parameters that are treated differently from the rest."""

    match: str = Field(description="a pattern of full parameter names, such as `encoder.embed*`", min_length=1)
    rate_scale: Annotated[float, Field(gt=0, le=1e6)] = Field(1.0, description="factor on the schedule's learning rate")
    weight_decay: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="instead of `train.weight_decay`; of parameters of one dimension only with `train.decay: all`"
    )
    dimensions: Positive | None = Field(
        None, description="only parameters with this many dimensions: 2 for matrices, without biases and norms", exclude_if=is_null
    )
    optimizer: Use | None = Field(None, description="instead of `train.optimizer`", exclude_if=is_null)
    schedule: Use | None = Field(None, description="instead of `train.schedule`, with the same warm-up", exclude_if=is_null)


class Train(Section):
    """How the model is trained. Changing it retrains the runs whose settings changed."""

    task: Use = Field(Use(use="text_classification"), description="what is learnt: a short name from `tasks/`, or your own class")
    strategy: Use = Field(
        Use(use="auto"),
        description="how processes share the work: a short name from `strategies/`, or your own class; `auto`: `single` for one process, `ddp` for several",
    )
    trainer: Use | None = Field(
        None,
        description="your own subclass of `Trainer`, `path/to/file.py:Name`, in place of the training loop of `training/trainer.py`; `arguments` are passed to it by name",
        exclude_if=is_null,
    )
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8"] = Field(
        "auto",
        description="`auto` is bf16 on GPUs that support it, fp16 on others and fp32 on CPUs; bf16 is twice as fast on CPUs that support it (`avx512_bf16`, `amx_bf16` in /proc/cpuinfo); fp8 is bf16 with matrix products in 8 bits, on GPUs that have them, by torchao",
    )
    batch_size: Positive = Field(32, description="examples per update, over all processes together")
    batch_tokens: Positive | None = Field(
        None, description="instead of `batch_size`: batches of examples of similar length with this many tokens, padding included"
    )
    block_length: Positive | None = Field(
        None,
        description="for language models: all texts are concatenated and cut into examples of this many tokens; null: each text is an example",
    )
    packing: bool = Field(
        False, description="for language models: several texts share a row without attending to each other, instead of being padded"
    )
    accumulate: Positive = Field(1, description="microbatches that a batch is split into, to save memory; the result is the same")
    epochs: Annotated[float, Field(gt=0, le=1e6)] = Field(3.0, description="passes over the training data")
    steps: NotNegative | None = Field(None, description="updates, instead of `epochs`; 0: the model is evaluated as it is")
    optimizer: Use = Field(Use(use="torch.optim.AdamW", arguments={"eps": 1e-8}), description="an optimizer class")
    learning_rate: Annotated[float, Field(gt=0, le=100)] = Field(2e-5, description="the peak of the schedule")
    weight_decay: Annotated[float, Field(ge=0, le=100)] = Field(
        0.01, description="for all parameters but those of one dimension, such as biases and norms; see `decay`"
    )
    decay: Literal["matrices", "all"] = Field(
        "matrices",
        description="what the weight decays of: parameters of two and more dimensions, or all",
        exclude_if=lambda value: value == "matrices",
    )
    groups: list[Group] = Field(
        [], description="parameters with a learning rate or weight decay of their own; the first group that matches applies"
    )
    freeze: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="patterns of parameters that are not trained, such as `bert.embeddings.*`"
    )
    schedule: Use = Field(
        Use(use="linear"),
        description="the learning rate over time: `linear`, `constant`, `cosine`, `warmup_stable_decay`, `inverse_square_root`, a class of `torch.optim.lr_scheduler`, or your own",
    )
    warmup: Annotated[float, Field(ge=0, le=LARGEST)] = Field(
        0.01, description="steps in which the learning rate rises from 0; a value below 1 is a share of all steps"
    )
    metrics: Metrics = Field(
        {},
        description="further metrics of the development set, by name: `[matthews_correlation, f1]`, or classes with arguments; `select.metric` can name them",
        exclude_if=is_empty,
    )
    clip_norm: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        1.0, description="gradients with a larger norm are scaled down to it; null: never"
    )
    evaluations_per_epoch: Positive = Field(1, description="how often per epoch the development set is evaluated")
    evaluate_every: Positive | None = Field(None, description="instead of `evaluations_per_epoch`: steps between two evaluations")
    save_every: Positive | None = Field(
        None,
        description="steps between two checkpoints; the best evaluation so far and the last step are always saved; null: at each evaluation, unless `save_every_minutes` is set",
    )
    save_every_minutes: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(None, description="the same in minutes")
    callbacks: list[Use] = Field(
        [], description="your own `Callback` classes, `path/to/file.py:Name`, which observe the training or end it early"
    )
    bad_steps_allowed: NotNegative = Field(
        3,
        description="how many steps in a row may have a non-finite loss or gradient; they are skipped, and after one more the training returns to its last checkpoint",
    )
    spike_factor: Annotated[float, Field(gt=1, le=LARGEST)] | None = Field(
        None,
        description="steps are skipped in the same way whose gradient norm, before clipping, is above so many times the median of those of the last 20 updates; null: none",
        exclude_if=is_null,
    )
    rollbacks_allowed: NotNegative = Field(
        2, description="how often it may return to the last checkpoint and continue after the non-finite steps, before it fails"
    )
    early_stopping: EarlyStopping | None = Field(
        None, description="end the training when the selection metric has stopped improving; null: never"
    )
    recompute_activations: bool = Field(
        False, description="activation checkpointing: keep only each block's input and recompute the rest in the backward pass"
    )
    compile: bool = Field(False, description="`torch.compile` of each block: slow to start, then faster on GPUs")
    deterministic: bool = Field(False, description="only operations whose results are bitwise reproducible; slower on GPUs")
    seed: Seed = Field(42, description="seed of weights, batches and dropout")

    @field_validator("warmup")
    @classmethod
    def _share_or_steps(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(f"{value} is neither a share of the steps (below 1) nor a whole number of steps")
        return value

    @property
    def depends_on_selection(self) -> bool:
        """Whether the selection metric changes how the training goes, or when it ends."""
        return self.early_stopping is not None or self.schedule.use == PLATEAU

    def warmup_steps(self, steps: int) -> int:
        """Of a training with this many steps."""
        return round(self.warmup * steps if self.warmup < 1 else self.warmup)

    @property
    def decay_steps(self) -> float:
        """The steps of the decay, where the schedule states them; otherwise 0."""
        decay = self.schedule.arguments.get("decay") if self.schedule.use == "warmup_stable_decay" else None
        return decay if isinstance(decay, int | float) and decay > 1 else 0

    def too_long_decay(self, steps: int) -> str | None:
        """Why warm-up and decay do not fit into a training with this many steps; None if they do."""
        warmup, decay = self.warmup_steps(steps), self.decay_steps
        if decay == int(decay) and warmup + decay <= steps:
            return None
        if decay != int(decay):
            return f"`decay` ({decay:g}) is neither a share of the steps (up to 1) nor a whole number of steps"
        return f"`warmup` ({warmup} steps) and `decay` ({decay:g} steps) are more than the training has ({steps}): use fewer, or shares"

    def contradictions(self) -> Iterator[str]:
        if self.block_length == 1:
            yield "`block_length` is 1, and from a single token no other can be predicted: give 2 or more"
        if self.batch_tokens is None and self.accumulate > self.batch_size:
            yield f"`accumulate` ({self.accumulate}) splits a batch of {self.batch_size} into more microbatches than it has examples: lower it, or raise `batch_size`"
        if self.save_every is not None and self.save_every_minutes is not None:
            yield "`save_every` and `save_every_minutes` both say when a checkpoint is saved: keep one of the two"
        if self.decay == "all" and not (self.weight_decay or any(group.weight_decay for group in self.groups)):
            yield "`decay` is all, but `weight_decay` is 0: give it a value, or remove `decay`"
        if self.packing and self.block_length is not None:
            yield "`packing` keeps texts whole, and `block_length` cuts them: keep one of the two"
        if self.steps and self.warmup >= self.steps:
            yield f"`warmup` ({self.warmup:g} steps) is not shorter than the training (`steps`: {self.steps}): use fewer warm-up steps, or a share below 1"
        if self.steps and self.decay_steps and (problem := self.too_long_decay(self.steps)):
            yield f"`schedule.arguments`: {problem}"
        if self.warmup and self.schedule.use == f"{TORCH_SCHEDULERS}OneCycleLR":
            yield f"`warmup` is {self.warmup:g}, and OneCycleLR has a warm-up of its own (`pct_start`): set `warmup` to 0"
        if twice := sorted({pattern for pattern in self.freeze if self.freeze.count(pattern) > 1}):
            yield f"`freeze` names {twice[0]!r} twice: name it once"
        matches = [group.match for group in self.groups if group.dimensions is None]
        if twice := sorted({pattern for pattern in matches if matches.count(pattern) > 1}):
            yield f"`groups` has two entries with `match` {twice[0]!r}, and only the first would apply: keep one"


def stream_training_problems(train: Train) -> Iterator[str]:
    if train.steps is None:
        yield "train.steps: is missing. data.train is a stream, which has no length: say for how many steps it trains, instead of train.epochs."
    if train.batch_tokens is not None:
        yield "train.batch_tokens: needs lengths, which data.train does not have, since it is a stream. Use train.batch_size."
