"""What a plan and a trial are made for: prepared data, or texts as long as the settings allow; and the model, built from its configuration without its weights."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import torch
from safetensors import safe_open
from torch import nn

from snaketrain.config.references import load
from snaketrain.config.schema import LOADING_ARGUMENTS, Data, Model, Settings, Source
from snaketrain.data.fetching import describe, named_files
from snaketrain.data.loading.examples import facts_of, open_split, open_training
from snaketrain.data.loading.streams import Stream
from snaketrain.data.loading.training_data import TrainingData
from snaketrain.data.split_files import SplitWriter
from snaketrain.data.tokenizer_files import copy_tokenizer, end_token_id, make_tokenizer, pad_token_id, tokenizer_folder, vocabulary
from snaketrain.labels import label_kind
from snaketrain.models.adapters import add_adapters
from snaketrain.orchestration.names import data_name, source_name
from snaketrain.runtime.manifests import Manifest, read_manifest
from snaketrain.runtime.strict_json import JsonObject

NOT_FIELDS = ("model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path", "auto_map")
SET_BY_DATA = ("id2label", "label2id", "num_labels", "problem_type")
ALLOCATED = ("dtype", "torch_dtype")  # loading arguments by which parameters take other memory
UNKNOWN_LENGTH = 1024  # tokens, where nothing is truncated
CLASSES = ["0", "1"]  # where the labels are not named


class NotPlannable(Exception):
    """Why there is no plan of a run, and what to do."""


@dataclass(frozen=True)
class PlannedData:
    train: TrainingData | Stream
    dev: TrainingData
    facts: JsonObject
    assumed: str = ""  # what was assumed of data that is not prepared yet


def planned_data(run: Settings, results: Path, scratch: Path) -> PlannedData:
    """`scratch`: where files may be written."""
    manifest = results / "data" / data_name(run.data) / "manifest.json"
    if manifest.is_file():
        return _opened(run, read_manifest(manifest))
    if run.data.by_class:
        raise NotPlannable(
            f"data: {run.data.name} is not prepared yet, and only its dataset class knows its items: use the target `plan`, which prepares it"
        )
    return _opened(run, *_assumed(run, results, scratch))


def fetched_or_local(source: Source, results: Path, setting: str) -> Path:
    """The folder of a source's files, which an earlier start has fetched, or which are on this machine."""
    folder = f"runs/{source.from_run}/selection" if source.from_run else f"models/{source_name(source)}"
    made = results / folder / "manifest.json"
    if made.is_file():
        return read_manifest(made).model_files
    if source.from_run:
        raise NotPlannable(f"{setting}: {describe(source)} has not selected its model yet: train it first")
    if source.is_remote:
        raise NotPlannable(f"{setting}: {describe(source)} is not fetched yet: use the target `plan`, which fetches it")
    try:
        files = named_files(source)
    except ValueError as error:
        raise NotPlannable(f"{setting}: {error}") from None
    name, file = min(files.items(), key=lambda item: len(Path(item[0]).parts))
    return file.parents[len(Path(name).parts) - 1]


def _opened(run: Settings, manifest: Manifest, assumed: str = "") -> PlannedData:
    return PlannedData(open_training(manifest, run.train), open_split(manifest, "dev", run.train), facts_of(manifest), assumed)


def _assumed(run: Settings, results: Path, scratch: Path) -> tuple[Manifest, str]:
    """Enough texts for the largest batch, each as long as allowed, written as `prepare_data` writes them."""
    data, train = run.data, run.train
    assert data.tokenizer, "which text needs"
    copy_tokenizer(tokenizer_folder(fetched_or_local(data.tokenizer, results, "data.tokenizer")), scratch / "tokenizer", data.pair)
    make_tokenizer(scratch / "tokenizer", data, plain=True)  # which refuses a length without room for text
    longest = data.max_length or UNKNOWN_LENGTH
    row = train.block_length or longest + (data.max_target_length or 0 if data.target else 0)
    rows = max(2 * train.batch_size, (train.batch_tokens or 0) // row + 1)
    texts = rows if train.block_length is None else rows * train.block_length // longest + 2
    names = [*dict.fromkeys((data.labels or {}).values())] or (CLASSES if label_kind(data.label_kind).has_classes and data.label else [])
    for split in ("train", "dev"):
        _write(data, names, texts, longest, scratch / f"{split}.arrow")
    facts_of_split = {"examples": texts, "tokens": texts * longest, "labelled": True, "label_counts": [1] * len(names), "label_mean": 0.0}
    splits = {split: facts_of_split for split in ("train", "dev")}
    folder = scratch / "tokenizer"
    facts: JsonObject = {
        "name": data.name, "label_names": names, "label_kind": data.label_kind, "splits": splits, "pad_token_id": pad_token_id(folder),
        "end_token_id": end_token_id(folder, data), "vocab_size": max(vocabulary(folder).values()) + 1, "max_length": data.max_length,
    }  # fmt: skip
    words, sequence = [f"the data is not prepared yet: every text has {longest} tokens"], label_kind(data.label_kind).parser.sequence
    words += [f"every example has one {sequence}, and each further one takes as much again"] if sequence else []
    words += [f"labels are {len(names)} classes"] if data.labels is None and names else []
    return Manifest("prepare_data", "assumed", {}, {}, {}, facts, path=str(scratch / "manifest.json")), "; ".join(words)


def _write(data: Data, names: list[str], texts: int, longest: int, path: Path) -> None:
    """One split, by the schema of `prepare_data`."""
    writer = SplitWriter(data, names, {name: number for number, name in enumerate(names)}, labelled=False)
    lengths = {"input_ids": longest, "token_type_ids": longest, "target_ids": data.max_target_length or UNKNOWN_LENGTH}
    columns = []
    for field in writer.schema:
        if field.name in lengths:
            tokens, offsets = np.zeros(texts * lengths[field.name], np.int8), np.arange(texts + 1) * lengths[field.name]
            columns.append(
                pyarrow.ListArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), pyarrow.array(tokens, field.type.value_type))
            )
        elif field.name == "label":
            label: list[int] | int = [] if pyarrow.types.is_list(field.type) else 0
            columns.append(pyarrow.array([label] * texts, field.type))
        else:
            columns.append(pyarrow.nulls(texts, field.type))
    with pyarrow.ipc.new_file(str(path), writer.schema) as file:
        file.write_batch(pyarrow.record_batch(columns, schema=writer.schema))


# --- the model


@dataclass(frozen=True)
class PlannedModel:
    settings: Model  # without weights
    weights: Path | None = None  # where their files are
    dtype: torch.dtype | None = None  # in which they are loaded


def planned_model(run: Settings, folder: Path | None) -> PlannedModel:
    """`folder`: of the pretrained weights, of which only the configuration and names are read."""
    model = run.model
    if model.source is None or folder is None:
        return PlannedModel(model.model_copy(update={"initial_weights": None}))
    if "quantization_config" in model.arguments:
        raise NotPlannable("model.arguments.quantization_config: quantized weights cannot be planned")
    described = next(iter(sorted(folder.rglob("config.json"), key=lambda path: len(path.parts))), None)
    if described is None:
        raise NotPlannable(f"model.source: {folder} has no config.json")
    given = {
        name: value
        for name, value in model.arguments.items()
        if name not in (*ALLOCATED, *LOADING_ARGUMENTS) or name == "attn_implementation"
    }
    use, fields = _published(model.use, described.parent)
    dtype = next((getattr(torch, str(model.arguments[name])) for name in ALLOCATED if name in model.arguments), None)
    return PlannedModel(Model(use=use, arguments=fields | given), described.parent, dtype)


def _published(use: str, folder: Path) -> tuple[str, JsonObject]:
    """The class that loads the weights in a folder, and the fields in which their configuration differs from its defaults."""
    from transformers import AutoConfig

    cls = load(use)
    config = (getattr(cls, "config_class", None) or AutoConfig).from_pretrained(folder, local_files_only=True)
    if mapping := getattr(cls, "_model_mapping", None):  # of an Auto class
        if type(config) not in mapping:
            raise NotPlannable(f"model.use: {use} has no class for {type(config).__name__}")
        found = mapping[type(config)]
        cls = found[0] if isinstance(found, tuple) else found
        use = f"transformers.{cls.__name__}"
    known = {name for name in dir(type(config)()) if not name.startswith("_")}  # old files have fields that there are no longer
    fields = {name: value for name, value in config.to_diff_dict().items() if name in known and name not in (*NOT_FIELDS, *SET_BY_DATA)}
    return use, fields


def adapt(module: nn.Module, run: Settings, planned: PlannedModel) -> nn.Module:
    """What `from_pretrained` would do besides building: adapters, and the precision of the weights."""
    if planned.dtype is not None:
        module = module.to(planned.dtype)
    if run.model.adapters:
        add_adapters(module, run.model.adapters.model_dump(), _not_in_files(module, planned.weights))
    return module


def _not_in_files(module: nn.Module, folder: Path | None) -> list[str]:
    """Parameters that the weights lack, such as those of a new head. Files may leave out the name of the base model."""
    names: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")) if folder else ():
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    prefix = f"{getattr(module, 'base_model_prefix', '')}."
    known = names | {prefix + name for name in names} | {name.removeprefix(prefix) for name in names}
    held = {parameter for name, parameter in module.named_parameters(remove_duplicate=False) if name in known}  # of tied ones any name
    return [name for name, parameter in module.named_parameters() if parameter not in held] if names else []
