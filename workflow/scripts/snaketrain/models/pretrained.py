"""Models of transformers: from pretrained weights or a random start, and their description beside trained weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from snaketrain.config.errors import nearest
from snaketrain.config.references import load
from snaketrain.config.schema import OF_LOADING


def make_model(model: dict[str, Any], folder: Path | None, always: dict[str, Any], at_random: dict[str, Any]) -> nn.Module:
    """The model of the `model` section. `always` and, for a random start, `at_random` are fields of its configuration that it need not tell."""
    cls = load(model["use"])
    if folder is not None:
        check_fields(described(cls, folder), model["arguments"])
        # trained in full precision, also where the weights were published in half of it: small updates would be lost
        return cls.from_pretrained(folder, local_files_only=True, **({"dtype": torch.float32} | always | model["arguments"]))
    if getattr(cls, "config_class", None) is None:
        raise SystemExit(
            f"model.use: {model['use']} cannot start at random. Name a class such as transformers.BertForSequenceClassification, or give model.source."
        )
    check_fields(cls.config_class(**always), model["arguments"])
    return cls(cls.config_class(**(at_random | always | model["arguments"])))


def described(cls: Any, folder: Path) -> Any:
    """The configuration beside pretrained weights."""
    from transformers import AutoConfig  # here, since tasks without such a model come by as well

    return (getattr(cls, "config_class", None) or AutoConfig).from_pretrained(folder, local_files_only=True)


def check_fields(config: Any, arguments: dict[str, Any]) -> None:
    """A field that is not known would be kept, and change nothing."""
    known = {name for name in dir(config) if not name.startswith("_")} | {*config.attribute_map, *OF_LOADING}
    for name in arguments:
        if name not in known:
            raise SystemExit(f"model.arguments.{name}: {type(config).__name__} has no such field{nearest(name, known)}")


def describe_model(model: nn.Module, folder: Path) -> None:
    """Write its config.json, so that the trained weights load with `from_pretrained`."""
    config = getattr(model, "config", None)
    if config is not None:
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
