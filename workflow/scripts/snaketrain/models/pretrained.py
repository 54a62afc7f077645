"""Models of transformers: from pretrained weights or a random start, and their description beside trained weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from snaketrain.loading import load


def make_model(model: dict[str, Any], folder: Path | None, always: dict[str, Any], at_random: dict[str, Any]) -> nn.Module:
    """The model of the `model` section. `always` and, for a random start, `at_random` are fields of its configuration that it need not tell."""
    cls = load(model["use"])
    if folder is not None:
        # trained in full precision, also where the weights were published in half of it: small updates would be lost
        return cls.from_pretrained(folder, local_files_only=True, **({"dtype": torch.float32} | always | model["arguments"]))
    if getattr(cls, "config_class", None) is None:
        raise SystemExit(
            f"model.use: {model['use']} cannot start at random. Name a class such as transformers.BertForSequenceClassification, or give model.source."
        )
    return cls(cls.config_class(**(at_random | always | model["arguments"])))


def describe_model(model: nn.Module, folder: Path) -> None:
    """Write its config.json, so that the trained weights load with `from_pretrained`."""
    config = getattr(model, "config", None)
    if config is not None:
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
