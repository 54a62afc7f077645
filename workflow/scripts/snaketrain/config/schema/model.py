"""The section `model`."""

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, StrictStr, field_validator, model_validator

from snaketrain.config.schema.base import Arguments, Fraction, Name, Positive, Section, from_here, is_null
from snaketrain.runtime.strict_json import Json

# --- Where files and examples come from.

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|\$\{")  # of an object store, or a variable with one
HUB_DEFAULTS = {"revision": None, "hub_type": "model", "config": None, "split": None}


class Source(Section):
    """Where files come from: a `path`, or a `package` or `hub` repository, within which `path` may name a part."""

    path: str | None = Field(
        None,
        description="a file, a folder or a glob such as `raw/*.jsonl`; relative to the package or hub repository if one is named; or an address "
        "in an object store such as `s3://bucket/raw/*.jsonl`, whose files are copied once; `${NAME}` in an address stands for an environment variable",
    )
    package: str | None = Field(None, description="an installed Python package that contains the files")
    hub: str | None = Field(None, description="a repository of the Hugging Face hub, `owner/name`")
    revision: str | None = Field(None, description="the commit of the hub repository, so that a run can be repeated")
    hub_type: Literal["model", "dataset"] = Field("model", description="which kind of hub repository")
    config: str | None = Field(
        None,
        exclude_if=is_null,
        description="of a hub dataset: its configuration, such as `sst2` of `nyu-mll/glue`; null: the only or default one",
    )
    split: str | None = Field(
        None,
        exclude_if=is_null,
        description="of a hub dataset: the split whose files are fetched, such as `validation`; null: the files that `path` names, or all",
    )
    sha256: dict[str, str] = Field({}, description="expected digests by file name; a file with another digest stops the run")

    @model_validator(mode="before")
    @classmethod
    def _path_from_here(cls, value: Json) -> Json:
        if not isinstance(value, dict) or value.get("package") or value.get("hub"):
            return value
        path = value.get("path")
        return value if not isinstance(path, str) or ADDRESS.match(path) else value | {"path": from_here(path)}

    @property
    def is_local(self) -> bool:
        """Whether these are the user's own files, which may change at any time."""
        return bool(self.path) and not (self.package or self.is_remote)

    @property
    def has_address(self) -> bool:
        """Whether `path` is in an object store."""
        return bool(self.path and ADDRESS.match(self.path))

    @property
    def is_remote(self) -> bool:
        """Whether the files are only known once they are fetched."""
        return bool(self.hub) or self.has_address

    @property
    def from_run(self) -> str | None:
        """The run whose selected model it is."""
        return None

    @property
    def source(self) -> "Source":
        """Just where the files are, without the settings of a derived class."""
        return Source.model_construct(**{name: getattr(self, name) for name in Source.model_fields})

    @field_validator("sha256")
    @classmethod
    def _digests_in_order(cls, value: dict[str, str]) -> dict[str, str]:
        for name, digest in value.items():
            if not re.fullmatch(r"\s*[0-9a-fA-F]{64}\s*", digest):
                raise ValueError(f"{digest!r} of {name!r} is not a SHA-256 digest: 64 hexadecimal digits, as `sha256sum FILE` prints them")
        return dict(sorted(value.items()))  # the order in the file does not matter

    def contradictions(self) -> Iterator[str]:
        if not (self.path or self.package or self.hub):
            yield "names nothing: give `path`, `package` or `hub`"
        yield from self._address_problems()
        yield from self._hub_problems()

    def _address_problems(self) -> Iterator[str]:
        if self.has_address and (others := [name for name in ("package", "hub") if getattr(self, name)]):
            yield f"`path` is an address in an object store, but `{others[0]}` names another place: keep one"

    def _hub_problems(self) -> Iterator[str]:
        if self.package and self.hub:
            yield "names a package and a hub repository: keep one"
        if self.hub and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.hub):
            yield f"`hub` is {self.hub!r}, which is not the name of a repository: write `owner/name`"
        if self.hub and not self.revision:
            yield "`revision` is missing: pin the commit of the hub repository, so that the run can be repeated"
        elif self.hub and not re.fullmatch(r"[0-9a-f]{40}", str(self.revision)):
            yield (
                f"`revision` is {self.revision!r}, which may be another commit tomorrow: pin a commit by its full hash of 40 characters, "
                "which the hub shows under `Files and versions`, `History`"
            )
        if self.hub and self.hub_type == "model" and (self.split or self.config):
            yield "`split` and `config` are for datasets, but `hub_type` is model: set it to dataset, or remove them"
        if self.split and self.path:
            yield "`split` and `path` both name files of the dataset: keep one"
        if self.config and not self.split:
            yield "`config` needs a `split`: name one, such as train"
        if not self.hub and (given := [name for name, default in HUB_DEFAULTS.items() if getattr(self, name) != default]):
            yield f"`{given[0]}` is for a hub repository, but `hub` is not set: remove it, or give `hub`"


class Examples(Source):
    """Where examples come from: text files, as in a [Source](#source), or a dataset class."""

    use: str | None = Field(None, description="instead of files: a dataset class, `package.module.Class` or `path/to/file.py:Class`")
    arguments: Arguments = Field({}, description="keyword arguments for the class")

    def contradictions(self) -> Iterator[str]:
        files = [name for name in ("path", "package", "hub") if getattr(self, name)]
        if self.use is not None and files:
            yield f"names a dataset class and a {files[0]}: keep one; what the class needs goes into its `arguments`"
        if self.use is not None and self.sha256:
            yield "names a dataset class and `sha256` digests, which are for files: keep one"
        if self.arguments and self.use is None:
            yield "`arguments` are for a dataset class: name it in `use`"
        if self.use is None and not files:
            yield "names nothing: give `path`, `package` or `hub`, or a dataset class in `use`"
        yield from self._address_problems()
        yield from self._hub_problems()


class Weights(Source):
    """Where weights come from: files, as in a [Source](#source), or another run of this configuration."""

    run: Name | None = Field(
        None, exclude_if=is_null, description="another run of this configuration, which is trained first: its selected model"
    )

    @property
    def from_run(self) -> str | None:
        return self.run

    @property
    def is_remote(self) -> bool:
        return self.run is not None or super().is_remote

    def contradictions(self) -> Iterator[str]:
        if self.run is None:
            yield from super().contradictions()
        elif given := [name for name in Source.model_fields if getattr(self, name) != Source.model_fields[name].default]:
            yield f"names a run and `{given[0]}`: keep one"


# arguments of `from_pretrained` that are not fields of a model's configuration
LOADING_ARGUMENTS = ("attn_implementation", "dtype", "torch_dtype", "ignore_mismatched_sizes", "use_safetensors", "variant", "quantization_config",
              "device_map", "low_cpu_mem_usage", "trust_remote_code", "key_mapping", "experts_implementation", "subfolder")  # fmt: skip


class Adapters(Section):
    """Low-rank adapters (LoRA), with peft's names. Only the adapters, `modules_to_save`, and modules that the pretrained weights lack are trained and saved."""

    r: Positive = Field(8, description="rank of the matrices that are added")
    lora_alpha: Positive = Field(8, description="their output is scaled by `lora_alpha` / `r`")
    use_rslora: bool = Field(False, description="scale by `lora_alpha` / sqrt(`r`) instead")
    use_dora: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="also train the norm of each row of the adapted matrices (DoRA); in one process, or with `ddp`",
    )
    quantize: Literal["nf4"] | None = Field(
        None,
        exclude_if=is_null,
        description="keep the linear layers that are not trained in 4 bits, in place of 32 (QLoRA); in one process, or with `ddp`",
    )
    lora_dropout: Fraction = Field(0.0, description="dropout of their inputs")
    target_modules: list[Name] | StrictStr | None = Field(
        None,
        description="the layers that get adapters: suffixes of their names, a regular expression, or `all-linear`; null: peft's choice for the architecture",
    )
    modules_to_save: list[Name] = Field([], description="further modules that are trained and saved in full, by suffixes of their names")

    def contradictions(self) -> Iterator[str]:
        if self.use_dora and self.quantize:
            yield "`use_dora` needs the adapted matrices in full, which `quantize` does not keep: remove one of the two"

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

    source: Weights = Field(description="`.safetensors` or `.pt` files, or the selected model of another run")
    part: str | None = Field(None, description="load only names with this prefix in the file, such as `encoder.`; null: all", min_length=1)
    into: str | None = Field(None, description="the prefix they have in the model, such as `bert.`; null: the same")
    strict: bool = Field(True, description="refuse names and shapes without a counterpart; `false`: load what fits and log the rest")


class Model(Section):
    """The network. Changing it trains again; the data stays prepared."""

    use: str = Field(
        "transformers.AutoModelForSequenceClassification", description="the class, `package.module.Class` or `path/to/file.py:Class`"
    )
    source: Weights | None = Field(
        None, description="pretrained weights, or the selected model of another run; null: a random initialisation from `arguments`"
    )
    arguments: Arguments = Field({}, description="arguments of the class; for transformers, fields of its configuration")
    initial_weights: InitialWeights | None = Field(
        None, description="weights of an earlier run, copied over those of `source` or the random initialisation"
    )
    adapters: Adapters | None = Field(None, exclude_if=is_null, description="adapters beside pretrained weights, which stay as they are")

    @property
    def bases(self) -> dict[str, str]:
        """The runs that it starts from, by the settings that name them."""
        initial = self.initial_weights.source if self.initial_weights else None
        named = {"model.source.run": self.source, "model.initial_weights.source.run": initial}
        return {setting: source.run for setting, source in named.items() if source and source.run}

    def contradictions(self) -> Iterator[str]:
        if self.adapters is None:
            return
        if self.source is None:
            yield "`adapters` need pretrained weights: name them as `source`"
        if self.initial_weights is not None:
            yield "`adapters` and `initial_weights` exclude each other: name the earlier run or its folder `selection/model` as `source`"
