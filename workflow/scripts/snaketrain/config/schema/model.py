"""The section `model`."""

from pydantic import Field

from snaketrain.config.schema.base import Arguments, Section
from snaketrain.config.schema.sources import Source

# arguments of `from_pretrained` that are not fields of a model's configuration
LOADING_ARGUMENTS = ("attn_implementation", "dtype", "torch_dtype", "ignore_mismatched_sizes", "use_safetensors", "variant", "quantization_config",
              "device_map", "low_cpu_mem_usage", "trust_remote_code", "key_mapping", "experts_implementation", "subfolder")  # fmt: skip


class InitialWeights(Section):
    """Weights of an earlier run to start from, or a part of them; optimizer and step count start fresh."""

    source: Source = Field(description="`.safetensors` files, such as the folder `selection/model` of a run")
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
