"""The fields of a transformers configuration, read from its files: a misspelt one would be kept and change nothing."""

import ast
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from snaketrain.config.errors import nearest, shown
from snaketrain.config.references import NotFound, likely_files, module_file
from snaketrain.config.schema.model import LOADING_ARGUMENTS
from snaketrain.orchestration.inspection.definitions import Class, class_and_bases, definition_of
from snaketrain.orchestration.inspection.signatures import taken_by, type_mismatch
from snaketrain.runtime.strict_json import JsonObject

ROPE_FIELDS = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
INITIALIZERS = ("__init__", "__post_init__", "convert_rope_params_to_dict")
SIZE_FIELD = re.compile(r"(num_|n_|.*_num_).*|.*(_size|_layers|_heads|_dim|_positions|_embeddings)|d_model|d_ff")

Fields = dict[str, ast.expr | None]  # by name, with their annotations where there are any


def field_errors(setting: str, given: Mapping[str, object], fields: Fields, set_by: Mapping[str, str]) -> Iterator[str]:
    """Fields that do not exist, that another setting decides (`set_by`), or that cannot have the value."""
    for name, value in given.items():
        if name in set_by:
            yield f"{setting}.{name}: is set by {set_by[name]}. Remove it."
        elif name not in fields:
            yield f"{setting}.{name}: the model's configuration has no such field{nearest(name, fields)} See the model's documentation for all fields."
        elif expected := type_mismatch(fields[name], value):
            yield f"{setting}.{name}: expects {expected}, not {shown(value)}."
        elif SIZE_FIELD.fullmatch(name) and isinstance(value, int | float) and value < 1:
            yield f"{setting}.{name}: expects a number greater than 0, not {shown(value)}."
    width, heads = given.get("hidden_size"), given.get("num_attention_heads")
    if isinstance(width, int) and isinstance(heads, int) and width > 0 and heads > 0 and "head_dim" not in fields and width % heads:
        yield f"{setting}.hidden_size: {width} is not divisible by num_attention_heads ({heads}): make it a multiple."


@functools.cache
def config_fields(use: str, weights: Path | None) -> Fields | None:
    """The fields of a model's configuration; None where the files do not say. `weights`: the folder of pretrained ones."""
    try:
        package = module_file("transformers", use)
    except NotFound:
        return None
    if package is None or not use.startswith("transformers."):
        return None
    described = _description(weights)
    name = use.rpartition(".")[2]
    config = _config_of_type(package.parent, described.get("model_type")) if weights else _config_of_class(package.parent, name)
    if config is None:
        return None
    fields: Fields = dict.fromkeys((*described, *LOADING_ARGUMENTS, *ROPE_FIELDS))
    for each in class_and_bases(config):
        fields |= _own_fields(each.node) if each else {}
        if each and each.node.name == "PreTrainedConfig":  # its own bases add only ROPE_FIELDS
            break
    return fields


def _description(weights: Path | None) -> JsonObject:
    try:
        found = json.loads((weights / "config.json").read_text(encoding="utf-8")) if weights else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _config_of_class(package: Path, name: str) -> Class | None:
    """The configuration class of a model: `config: BertConfig` in its class or a base. The file has thousands of lines, too slow to parse."""
    for file in likely_files(package, name):
        text = file.read_text(encoding="utf-8")
        beside = file.with_name(file.name.replace("modeling_", "configuration_"))
        if f"class {name}(" in text and beside != file and beside.is_file():
            config = _config_name(text, name)
            return _class(beside, config) if config else None
    return None


def _config_name(text: str, name: str, steps: int = 10) -> str | None:
    found = re.search(rf"^class {re.escape(name)}\((.*?)\):\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    if not found or not steps:
        return None
    if annotated := re.search(r"^    config(?:_class = |: \"?)(\w+)", found[2], re.MULTILINE):
        return annotated[1]
    return next((config for base in found[1].split(",") if (config := _config_name(text, base.strip(), steps - 1))), None)


def _config_of_type(package: Path, model_type: object) -> Class | None:
    """The configuration class of a `model_type`, by transformers' own table."""
    try:
        table = (package / "models/auto/auto_mappings.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(rf'\("{re.escape(str(model_type))}", "(\w+Config)"\)', table)
    if not found:
        return None
    name = found[1]
    folders = (package / "models" / str(model_type).replace("-", "_"), *(file.parent for file in likely_files(package, name)))
    for folder in folders:
        for file in folder.glob("configuration_*.py"):
            if definition := _class(file, name):
                return definition
    return None


def _class(file: Path, name: str) -> Class | None:
    found = definition_of(file, name)
    return found if isinstance(found, Class) else None


def _own_fields(node: ast.ClassDef) -> Fields:
    """The fields of a configuration class: annotations, aliases, properties with setters, and what its initialiser sets or takes."""
    found: Fields = {}
    for each in _executed_at_creation(node):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if "ClassVar" not in ast.unparse(annotation):
                found[name] = annotation
            case ast.Assign(targets=[ast.Name(id="attribute_map"), *_], value=ast.Dict() as aliases):
                found |= _aliased(aliases, found)
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                found.setdefault(name, None)
            case ast.FunctionDef(name="__init__", args=arguments):
                found = {argument.arg: argument.annotation for argument in [*arguments.args[1:], *arguments.kwonlyargs]} | found
            case ast.FunctionDef(name=name, decorator_list=decorators) if any("setter" in ast.unparse(one) for one in decorators):
                found.setdefault(name, None)
    for name in (name for each in node.body if _is_executed(each) for name in taken_by(each, "kwargs")):
        found.setdefault(name, None)
    return {name: annotation for name, annotation in found.items() if not name.startswith("_")}


def _aliased(aliases: ast.Dict, fields: Fields) -> Fields:
    """Other names of fields, each with the annotation of the field that it stands for."""
    found: Fields = {}
    for alias, name in zip(aliases.keys, aliases.values, strict=True):
        if isinstance(alias, ast.Constant) and isinstance(alias.value, str):
            found[alias.value] = fields.get(str(name.value)) if isinstance(name, ast.Constant) else None
    return found


def _executed_at_creation(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Everything in the class except the bodies of methods that do not run when an object is created."""
    for statement in node.body:
        yield from ast.walk(statement) if _is_executed(statement) else [statement]


def _is_executed(statement: ast.stmt) -> bool:
    return not isinstance(statement, ast.FunctionDef) or statement.name in INITIALIZERS
