"""The sections of the configuration as classes: every setting with its meaning and default.

`config/README.md` is generated from these files; each setting is declared here and nowhere else.
"""

import math
from collections.abc import Iterator

from pydantic import Field

from snaketrain.config.schema.base import LARGEST, Name, Positive, Section, Use, sections_in
from snaketrain.config.schema.compute import Compute
from snaketrain.config.schema.data import Data
from snaketrain.config.schema.evaluation import Evaluate, Select
from snaketrain.config.schema.model import LOADING_ARGUMENTS, Examples, InitialWeights, Model, Source
from snaketrain.config.schema.of_extras import with_settings_of_extras
from snaketrain.config.schema.train import ARGUMENTS_WITH_SETTINGS, Metric, Train

__all__ = [
    "ARGUMENTS_WITH_SETTINGS",
    "LARGEST",
    "LOADING_ARGUMENTS",
    "Compute",
    "Data",
    "Evaluate",
    "Examples",
    "InitialWeights",
    "Metric",
    "Model",
    "Name",
    "Section",
    "Select",
    "Settings",
    "Source",
    "Tracking",
    "Train",
    "Use",
]


class Tracking(Section):
    """What MLflow and the progress bar show, and where. Changing it makes nothing stale."""

    uri: str | None = Field(
        None,
        description="an MLflow server or database, in which `${NAME}` stands for an environment variable; null: `mlflow.db` beside the results",
    )
    experiment: str = Field("snaketrain", description="the MLflow experiment", min_length=1)
    notes: str = Field("", description="free text, shown with the run in MLflow")
    on_end: str | None = Field(
        None,
        description="a shell command that is run when a run ends, such as one that sends a mail; its environment has the run, its state and its metrics: "
        "`SNAKETRAIN_RUN`, `SNAKETRAIN_STATE`, ... (docs/mlflow.md)",
        min_length=1,
    )
    wait_seconds: float = Field(
        120,
        ge=0,
        le=LARGEST,
        description="how long a finished workflow waits at most for MLflow to be up to date; after that, it prints the command that completes the update",
    )
    log_every_steps: Positive = Field(10, description="steps between two records of the training metrics")


@with_settings_of_extras
class Settings(Section):
    """All settings of one run."""

    data: Data
    model: Model = Model()
    train: Train = Train()
    select: Select = Select()
    evaluate: Evaluate = Evaluate()
    compute: Compute = Compute()
    tracking: Tracking = Tracking()

    def contradictions(self) -> Iterator[str]:
        yield from self._missing_splits()
        yield from self._layout_problems()
        yield from self._target_problems()
        yield from self._device_problems()
        yield from self._step_problems()
        yield from self._weight_problems()
        if twice := sorted(self.train.metrics.keys() & self.evaluate.metrics.keys()):
            yield f"evaluate.metrics has {twice[0]!r}, which train.metrics has too and which is evaluated anyway: remove it from evaluate.metrics"

    def _missing_splits(self) -> Iterator[str]:
        if not any(isinstance(each, Examples) for _, each in sections_in(self)):  # an extra may name some
            yield "data names no examples: give data.train, or data.test alone to evaluate a model as it is"
            return
        if self.train.steps == 0:
            return
        if self.data.train is None:
            yield "train.steps is not 0, but there is no data.train: name the training data, or set train.steps to 0 to evaluate the model as it is"
        elif self.data.dev is None and self.data.dev_fraction == 0:
            yield "data.dev is not given and data.dev_fraction is 0: give one of them, since a checkpoint is selected on it"

    def _layout_problems(self) -> Iterator[str]:
        """Blocks and packed rows mix several texts, so they have no labels, and a dataset class cannot provide them."""
        name = "packing" if self.train.packing else None if self.train.block_length is None else "block_length"
        if name and (self.data.by_class or self.data.label is not None):
            kind = "a dataset class" if self.data.by_class else f"labels (data.label: {self.data.label})"
            yield f"train.{name} is for language models, but the data has {kind}: set data.label: null, or remove train.{name}"
        if name == "block_length" and self.data.has_token_types:
            which = "data.messages" if self.data.messages else "data.text names two columns"
            yield f"train.block_length would separate answers from their prompts ({which}): use train.packing, or one column"

    def _target_problems(self) -> Iterator[str]:
        """A task of the user's own may read targets, or write from other data."""
        task, target = self.train.task.use, self.data.target
        if target is None and task == "seq2seq" and not self.data.by_class:
            yield "data.target is missing, and train.task seq2seq needs it: name the column of the text to generate, and set data.label: null"
        if target is not None and task in ("text_classification", "causal_lm", "masked_lm"):
            yield f"data.target ({target}) is not read by train.task {task}: use seq2seq, or remove data.target"
        if self.data.messages is not None and task in ("text_classification", "masked_lm", "seq2seq"):
            yield f"data.messages ({self.data.messages}) is not read by train.task {task}: use causal_lm, or remove data.messages"
        if target is not None and (self.train.packing or self.train.block_length):
            yield "data.target is for sequence to sequence, but train.packing and train.block_length are for language models: remove one of them"

    def _device_problems(self) -> Iterator[str]:
        """See also `strategy_errors` in orchestration/strategy_declarations.py."""
        precision = self.train.precision
        if precision in ("tf32", "fp8") and self.compute.device == "cpu":
            yield f"train.precision is {precision}, which only GPUs support, but compute.device is cpu: use fp32 or bf16"
        if precision == "fp8" and self.model.adapters:
            yield "train.precision is fp8, in which frozen weights beside model.adapters were not tried: use bf16"

    def _step_problems(self) -> Iterator[str]:
        train, data = self.train, self.data
        if train.steps is None and train.batch_tokens is None and train.block_length is None and data.limit_train is not None:
            most = math.ceil(train.epochs * math.ceil(data.limit_train / train.batch_size))
            if train.warmup >= max(most, 2):
                yield (
                    f"train.warmup is {train.warmup:g} steps, but train.epochs ({train.epochs:g}) of data.limit_train ({data.limit_train}) examples in "
                    f"batches of {train.batch_size} are at most {most} steps: use fewer warm-up steps, or a share below 1"
                )

    def _weight_problems(self) -> Iterator[str]:
        adapters, average, kept = self.model.adapters, self.select.average, self.compute.keep_checkpoints
        if adapters and self.train.freeze:
            yield "model.adapters freezes all weights but the adapters and `modules_to_save`: remove train.freeze"
        if adapters and average > 1:
            yield f"select.average ({average}) would average adapters, whose product is not the average of the merged weights: remove it"
        if average > kept:
            yield f"select.average ({average}) is more than the checkpoints that are kept (compute.keep_checkpoints: {kept}): keep as many"
