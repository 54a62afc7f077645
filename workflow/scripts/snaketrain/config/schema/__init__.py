"""The sections of the configuration as classes: what may be set, what it means, and what it is by default.

`config/README.md` is generated from these files; a setting exists here once and nowhere else.
"""

import math
from collections.abc import Iterator

from snaketrain.config.schema.base import LARGEST, Name, Section, Use
from snaketrain.config.schema.compute import Compute
from snaketrain.config.schema.data import Data
from snaketrain.config.schema.evaluation import Evaluate, Select
from snaketrain.config.schema.model import OF_LOADING, InitialWeights, Model
from snaketrain.config.schema.sources import Examples, Source
from snaketrain.config.schema.tracking import Tracking
from snaketrain.config.schema.train import OF_THEIR_OWN, Train

__all__ = [
    "LARGEST",
    "OF_LOADING",
    "OF_THEIR_OWN",
    "Compute",
    "Data",
    "Evaluate",
    "Examples",
    "InitialWeights",
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


class Settings(Section):
    """All that one run is made of."""

    data: Data
    model: Model = Model()
    train: Train = Train()
    select: Select = Select()
    evaluate: Evaluate = Evaluate()
    compute: Compute = Compute()
    tracking: Tracking = Tracking()

    def contradictions(self) -> Iterator[str]:
        yield from self._missing_splits()
        yield from self._misfit_of_layout()
        yield from self._misfit_of_processes()
        yield from self._misfit_of_steps()

    def _missing_splits(self) -> Iterator[str]:
        for split in ("dev", "test"):
            if getattr(self.data, split) is None and getattr(self.data, f"{split}_fraction") == 0:
                yield (
                    f"data.{split} is not given and data.{split}_fraction is 0: give one of them, since a checkpoint is chosen and judged by both"
                )

    def _misfit_of_layout(self) -> Iterator[str]:
        """Texts that are cut, or share a row, can no longer be told apart by those who want an answer for each."""
        name = "packing" if self.train.packing else None if self.train.block_length is None else "block_length"
        if name and (self.data.by_class or self.data.label is not None):
            kind = "a dataset class" if self.data.by_class else f"labels (data.label: {self.data.label})"
            yield f"train.{name} is for language models, but the data has {kind}: set data.label: null, or remove train.{name}"
        if name == "block_length" and len(self.data.text) == 2:
            yield "train.block_length would part answers from their prompts (data.text names two columns): use train.packing, or one column"

    def _misfit_of_processes(self) -> Iterator[str]:
        """Of processes and their strategy; see also `strategy_errors` in orchestration/inspection."""
        compute = self.compute
        if compute.launcher in ("env", "torchrun") and compute.nodes != "1":
            where = "this machine" if compute.launcher == "torchrun" else "wherever compute.launch_command says"
            yield f"compute.launcher `{compute.launcher}` starts processes on {where}: set compute.nodes: 1, or launcher: auto"
        if self.train.precision == "tf32" and compute.device == "cpu":
            yield "train.precision is tf32, which GPUs alone compute in, and compute.device is cpu: use fp32 or bf16"

    def _misfit_of_steps(self) -> Iterator[str]:
        train, data = self.train, self.data
        if train.steps is None and train.batch_tokens is None and train.block_length is None and data.limit_train is not None:
            most = math.ceil(train.epochs * math.ceil(data.limit_train / train.batch_size))
            if train.warmup >= max(most, 2):
                yield (
                    f"train.warmup is {train.warmup:g} steps, but train.epochs ({train.epochs:g}) of data.limit_train ({data.limit_train}) examples in "
                    f"batches of {train.batch_size} are {most} at most: warm up for fewer, or give a share below 1"
                )
