"""The section `model`."""

import re
from collections.abc import Iterator

from pydantic import Field, StrictStr, field_validator

from snaketrain.config.schema.base import Arguments, Fraction, Name, Positive, Section, is_null
from snaketrain.config.schema.sources import Source

# arguments of `from_pretrained` that are not fields of a model's configuration
LOADING_ARGUMENTS = ("attn_implementation", "dtype", "torch_dtype", "ignore_mismatched_sizes", "use_safetensors", "variant", "quantization_config",
              "device_map", "low_cpu_mem_usage", "trust_remote_code", "key_mapping", "experts_implementation", "subfolder")  # fmt: skip


class Adapters(Section):
    """Low-rank adapters (LoRA), with peft's names. Only the adapters, `modules_to_save`, and modules that the pretrained weights lack are trained and saved."""

    r: Positive = Field(8, description="rank of the matrices that are added")
    lora_alpha: Positive = Field(8, description="their output is scaled by `lora_alpha` / `r`")
    use_rslora: bool = Field(False, description="scale by `lora_alpha` / sqrt(`r`) instead")
    lora_dropout: Fraction = Field(0.0, description="dropout of their inputs")
    target_modules: list[Name] | StrictStr | None = Field(
        None,
        description="the layers that get adapters: suffixes of their names, a regular expression, or `all-linear`; null: peft's choice for the architecture",
    )
    modules_to_save: list[Name] = Field([], description="further modules that are trained and saved in full, by suffixes of their names")

    @field_validator("target_modules")
    @classmethod
    def _is_an_expression(cls, value: list[str] | str | None) -> list[str] | str | None:
        if isinstance(value, str):
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value


class InitialWeights(Section):
    """Weights of an earlier run to start from, or a part of them; optimizer and step count start fresh."""

    source: Source = Field(description="`.safetensors` or `.pt` files, such as the folder `selection/model` of a run")
    part: str | None = Field(None, description="load only names with this prefix in the file, such as `encoder.`; null: all", min_length=1)
    into: str | None = Field(None, description="the prefix they have in the model, such as `bert.`; null: the same")
    strict: bool = Field(True, description="refuse names and shapes without a counterpart; `false`: load what fits and log the rest")


class Model(Section):
    """The network. Changing it trains again; the data stays prepared."""

    use: str = Field(
        "transformers.AutoModelForSequenceClassification", description="the class, `package.module.Class` or `path/to/file.py:Class`"
    )
    source: Source | None = Field(None, description="pretrained weights; null: a random initialisation from `arguments`")
    arguments: Arguments = Field({}, description="arguments of the class; for transformers, fields of its configuration")
    initial_weights: InitialWeights | None = Field(
        None, description="weights of an earlier run, copied over those of `source` or the random initialisation"
    )
    adapters: Adapters | None = Field(None, exclude_if=is_null, description="adapters beside pretrained weights, which stay as they are")

    def contradictions(self) -> Iterator[str]:
        if self.adapters is None:
            return
        if self.source is None:
            yield "`adapters` need pretrained weights: name them as `source`"
        if self.initial_weights is not None:
            yield "`adapters` and `initial_weights` exclude each other: name the folder `selection/model` of the earlier run as `source`"
