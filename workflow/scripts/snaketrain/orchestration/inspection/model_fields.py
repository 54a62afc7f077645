"""The fields of a configuration of transformers, read from its files: a misspelt one would be kept and change nothing."""

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snaketrain.config.errors import nearest, shown
from snaketrain.config.references import NotFound, likely_files, module_file
from snaketrain.config.schema.model import OF_LOADING
from snaketrain.orchestration.inspection.signatures import Definition, definition_of, line_of, not_of_type

OF_ROPE = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
MAKING = ("__init__", "__post_init__", "convert_rope_params_to_dict")
OF_SIZE = re.compile(r"(num_|n_|.*_num_).*|.*(_size|_layers|_heads|_dim|_positions|_embeddings)|d_model|d_ff")


def wrong_fields(setting: str, given: dict[str, Any], fields: dict[str, ast.expr | None], told_by: dict[str, str]) -> Iterator[str]:
    """What is no field, is told by something else already, or cannot be its value."""
    for name, value in given.items():
        if name in told_by:
            yield f"{setting}.{name}: is told by {told_by[name]}. Remove it."
        elif name not in fields:
            yield f"{setting}.{name}: the model's configuration has no such field{nearest(name, fields)} See the documentation of the model for them all."
        elif expected := not_of_type(fields[name], value):
            yield f"{setting}.{name}: expects {expected}, not {shown(value)}."
        elif OF_SIZE.fullmatch(name) and isinstance(value, int | float) and value < 1:
            yield f"{setting}.{name}: expects a number greater than 0, not {shown(value)}."
    width, heads = (given.get(name) for name in ("hidden_size", "num_attention_heads"))
    whole = all(isinstance(each, int) and each > 0 for each in (width, heads))
    if whole and "head_dim" not in fields and width % heads:
        yield f"{setting}.hidden_size: {width} cannot be shared by num_attention_heads ({heads}): make one a multiple of the other."


@functools.cache
def fields_of(use: str, weights: Path | None) -> dict[str, ast.expr | None] | None:
    """By name, with their types; None where the files do not tell. `weights`: the folder of pretrained ones."""
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
    fields: dict[str, ast.expr | None] = dict.fromkeys((*described, *OF_LOADING, *OF_ROPE))
    for each in line_of(config):
        fields |= _fields(each.node) if each else {}
        if each and each.node.name == "PreTrainedConfig":  # what it is made of adds OF_ROPE alone
            break
    return fields


def _description(weights: Path | None) -> dict[str, Any]:
    try:
        found = json.loads((weights / "config.json").read_text(encoding="utf-8")) if weights else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _config_of_class(package: Path, name: str) -> Definition | None:
    """That of a model, `config: BertConfig` in it or in what it derives from; its file, of thousands of lines, is not parsed for that."""
    for file in likely_files(package, name):
        text = file.read_text(encoding="utf-8")
        beside = file.with_name(file.name.replace("modeling_", "configuration_"))
        if f"class {name}(" in text and beside != file and beside.is_file():
            config = _config_name(text, name)
            return definition_of(beside, config) if config else None
    return None


def _config_name(text: str, name: str, steps: int = 10) -> str | None:
    found = re.search(rf"^class {re.escape(name)}\((.*?)\):\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    if not found or not steps:
        return None
    if told := re.search(r"^    config(?:_class = |: \"?)(\w+)", found[2], re.MULTILINE):
        return told[1]
    return next((config for base in found[1].split(",") if (config := _config_name(text, base.strip(), steps - 1))), None)


def _config_of_type(package: Path, model_type: Any) -> Definition | None:
    """That of a `model_type`, as transformers' own table has it."""
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
            if definition := definition_of(file, name):
                return definition
    return None


def _fields(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    """What a class of configurations knows: its annotations, other names for them, and what it sets or takes by itself."""
    found: dict[str, ast.expr | None] = {}
    for each in _walk(node):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each.annotation):
            found[each.target.id] = each.annotation
        elif isinstance(each, ast.Assign):
            if isinstance(each.targets[0], ast.Name) and each.targets[0].id == "attribute_map" and isinstance(each.value, ast.Dict):
                found |= {
                    key.value: found.get(getattr(value, "value", None))
                    for key, value in zip(each.value.keys, each.value.values, strict=True)
                }
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            found.setdefault(each.attr, None)
        elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
            found |= {
                argument.arg: argument.annotation for argument in [*each.args.args[1:], *each.args.kwonlyargs] if argument.arg not in found
            }
        elif isinstance(each, ast.FunctionDef) and any("setter" in ast.unparse(decorator) for decorator in each.decorator_list):
            found.setdefault(each.name, None)
        elif (
            isinstance(each, ast.Call) and ast.unparse(each.func) in ("kwargs.pop", "kwargs.get") and isinstance(each.args[0], ast.Constant)
        ):
            found.setdefault(each.args[0].value, None)
    return {name: annotation for name, annotation in found.items() if isinstance(name, str) and not name.startswith("_")}


def _walk(node: ast.ClassDef) -> Iterator[ast.AST]:
    """All in the class, and of its methods what is done while an object is made."""
    for statement in node.body:
        made = not isinstance(statement, ast.FunctionDef) or statement.name in MAKING
        yield from ast.walk(statement) if made else [statement]
