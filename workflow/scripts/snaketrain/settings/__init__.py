"""The sections of the configuration as classes: what may be set, what it means, and what it is by default.

`config/README.md` is generated from these files; a setting exists here once and nowhere else.
"""

from pydantic import model_validator

from snaketrain.settings.base import Name, Section, Use
from snaketrain.settings.compute import Compute
from snaketrain.settings.data import Data
from snaketrain.settings.judging import Evaluate, Select
from snaketrain.settings.model import InitialWeights, Model
from snaketrain.settings.sources import Examples, Source
from snaketrain.settings.tracking import Tracking
from snaketrain.settings.train import Train
from snaketrain.strategies import misfit, shares

__all__ = [
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

    @model_validator(mode="after")
    def _all_splits_are_there(self) -> "Settings":
        for split in ("dev", "test"):
            if getattr(self.data, split) is None and getattr(self.data, f"{split}_fraction") == 0:
                raise ValueError(
                    f"data.{split} is not given and data.{split}_fraction is 0: give one of them, since a checkpoint is chosen and judged by both"
                )
        return self

    @model_validator(mode="after")
    def _layout_fits(self) -> "Settings":
        """Texts that are cut, or share a row, can no longer be told apart by those who want an answer for each."""
        name = "packing" if self.train.packing else None if self.train.block_length is None else "block_length"
        if name and (self.data.by_class or self.data.label is not None):
            kind = "a dataset class" if self.data.by_class else f"labels (data.label: {self.data.label})"
            raise ValueError(f"train.{name} is for language models, but the data has {kind}: set data.label: null, or remove train.{name}")
        if name == "block_length" and len(self.data.text) == 2:
            raise ValueError(
                "train.block_length would part answers from their prompts (data.text names two columns): use train.packing, or one column"
            )
        return self

    @model_validator(mode="after")
    def _processes_fit(self) -> "Settings":
        strategy, compute = self.train.strategy, self.compute
        for nodes in compute.node_counts:
            processes = nodes * compute.processes
            if problem := misfit(strategy.use, strategy.arguments, processes, compute.device):
                raise ValueError(problem + (f" (with {nodes} nodes)" if compute.nodes != "1" else ""))
        parts = shares(strategy.use, strategy.arguments, processes) * self.train.accumulate
        if self.train.batch_tokens is None and parts > self.train.batch_size:
            nodes = f"compute.nodes ({compute.nodes}) times " if compute.nodes != "1" else ""
            raise ValueError(
                f"{nodes}compute.processes ({compute.processes}) times train.accumulate ({self.train.accumulate}) is more than a batch has "
                f"examples (train.batch_size: {self.train.batch_size}): use fewer processes or a larger batch"
            )
        if compute.launcher in ("env", "torchrun") and compute.nodes != "1":
            where = "this machine" if compute.launcher == "torchrun" else "wherever compute.launch_command says"
            raise ValueError(f"compute.launcher `{compute.launcher}` starts processes on {where}: set compute.nodes: 1, or launcher: auto")
        return self
