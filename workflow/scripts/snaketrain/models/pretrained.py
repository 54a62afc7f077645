"""Creates transformers models, from pretrained weights or randomly initialised, and writes their configuration."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from snaketrain.config.errors import nearest
from snaketrain.config.references import load
from snaketrain.config.schema import LOADING_ARGUMENTS
from snaketrain.models.adapters import add_adapters
from snaketrain.models.unread import not_loaded, unread_pretrained
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class ModelClass(Protocol):
    """A model class of transformers; other classes have only the first method."""

    def __call__(self, *configs: object, **arguments: object) -> nn.Module: ...
    def from_pretrained(self, folder: Path, **arguments: object) -> Any: ...  # a module, and what its files lack where that is asked for
    def from_config(self, config: object) -> nn.Module: ...


def make_model(model: JsonObject, folder: Path | None, always: JsonObject, at_random: JsonObject) -> nn.Module:
    """The model of the `model` section. The task sets the fields `always` of its configuration, and `at_random` if there are no pretrained weights."""
    cls: ModelClass = load(model["use"])
    if folder is not None:
        check_fields(read_config(cls, folder), model["arguments"])
        # full precision, even if the weights were published in half precision: small updates would be lost
        given = {"local_files_only": True, "dtype": torch.float32} | always | model["arguments"]
        if model.get("unread"):
            return unread_pretrained(cls, folder, given, model.get("adapters"))
        if model.get("adapters"):
            return adapted(cls, model["adapters"], folder, given)
        pretrained: nn.Module = cls.from_pretrained(folder, **given)
        return pretrained
    config_class = getattr(cls, "config_class", None)
    if config_class is None:
        raise SystemExit(
            f"model.use: {model['use']} cannot be initialised randomly. Name a class such as transformers.BertForSequenceClassification, or give model.source."
        )
    check_fields(config_class(**always), model["arguments"])
    return cls(config_class(**(at_random | always | model["arguments"])))


def adapted(cls: ModelClass, adapters: JsonObject, folder: Path, given: JsonObject) -> nn.Module:
    """A pretrained model with adapters; parameters that its files lack, such as a new head's, are trained as well."""
    module: nn.Module
    module, found = cls.from_pretrained(folder, output_loading_info=True, **given)
    add_adapters(module, adapters, not_loaded(found))
    return module


def read_config(cls: ModelClass, folder: Path) -> "PretrainedConfig":
    """The config.json beside pretrained weights."""
    from transformers import AutoConfig  # here: tasks with other models need not wait for transformers

    config: PretrainedConfig = (getattr(cls, "config_class", None) or AutoConfig).from_pretrained(folder, local_files_only=True)
    return config


def check_fields(config: "PretrainedConfig", arguments: JsonObject) -> None:
    """Refuse unknown fields, which transformers would keep without any effect."""
    known = fields_of(config)
    for name in arguments:
        if name not in known:
            raise SystemExit(f"model.arguments.{name}: {type(config).__name__} has no such field{nearest(name, known)}")


def fields_of(config: "PretrainedConfig") -> set[str]:
    return {name for name in dir(config) if not name.startswith("_")} | {*config.attribute_map, *LOADING_ARGUMENTS}


def describe_model(model: nn.Module, folder: Path) -> None:
    """Write the model's config.json, so that `from_pretrained` can load the trained weights, and its generation_config.json."""
    config, generation = getattr(model, "config", None), getattr(model, "generation_config", None)
    if config is not None:
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    if generation is not None:
        try:
            generation.save_pretrained(folder)
        except ValueError as error:  # some published ones contradict themselves, which transformers refuses to write
            logging.warning("generation_config.json is not written, so set its options when you use the model: %s", error)
