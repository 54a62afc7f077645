"""What a class or function can be called with, read from files: importing torch and the like to ask them takes seconds."""

import ast
import functools
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.errors import nearest, shown
from snaketrain.config.references import NotFound, find, module_file
from snaketrain.orchestration.inspection.definitions import Class, class_and_bases, definition_of

# these decorators leave a function's signature as it is
TRANSPARENT_DECORATORS = ("no_grad", "inference_mode", "cache", "lru_cache", "staticmethod", "override", "torch_function")
TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "None": (type(None),), "list": (list,), "tuple": (list,), "dict": (dict,),
}  # fmt: skip
TYPE_DESCRIPTIONS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "None": "null",
                     "list": "a list", "tuple": "a list", "dict": "names with their values"}  # fmt: skip


class Signature(NamedTuple):
    parameters: dict[str, ast.expr | None]  # those that can be given by keyword, with their annotations
    required: list[str]
    positional: list[str]

    def without(self, names: Container[str]) -> "Signature":
        """The parameters that the configuration may set when the trainer passes these."""
        parameters = {name: annotation for name, annotation in self.parameters.items() if name not in names}
        return Signature(parameters, [name for name in self.required if name not in names], self.positional)


def argument_errors(setting: str, given: Mapping[str, object], signature: Signature, complete: bool = True) -> Iterator[str]:
    """Unknown arguments, those of the wrong type, and missing ones if the call must be `complete`."""
    known = f"It takes: {', '.join(signature.parameters)}." if signature.parameters else "It takes none."
    for name, value in given.items():
        if name not in signature.parameters:
            yield f"{setting}.{name}: no such argument{nearest(name, signature.parameters)} {known}"
        elif expected := type_mismatch(signature.parameters[name], value):
            yield f"{setting}.{name}: expects {expected}, not {shown(value)}."
    for name in signature.required if complete else ():
        if name not in given:
            yield f"{setting}.{name}: is missing. Give it a value."


def type_mismatch(annotation: ast.expr | None, value: object) -> str | None:
    """A description of the type that the value should have; None where it has it, or where the annotation is not understood."""
    names = _type_names(annotation) if annotation is not None else None
    if not names:
        return None
    fits = any(isinstance(value, TYPES[name]) and not (isinstance(value, bool) and name in ("int", "float")) for name in names)
    return None if fits else " or ".join(dict.fromkeys(TYPE_DESCRIPTIONS[name] for name in names))


def _type_names(annotation: ast.expr) -> list[str] | None:
    """Names in TYPES, any of which fits; None where the annotation is not understood."""
    match annotation:
        case ast.Constant(value=None):
            return ["None"]
        case ast.Constant(value=str(text)):
            try:
                return _type_names(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([left, right])
        case ast.Subscript(value=value, slice=inner):
            outer = ast.unparse(value).rpartition(".")[2]
            if outer == "Optional":
                return _union([inner, ast.Constant(None)])
            if outer == "Union":
                return _union(inner.elts if isinstance(inner, ast.Tuple) else [inner])
            return [outer.lower()] if outer.lower() in ("list", "tuple", "dict") else None
        case ast.Name(id=name) if name in TYPES:
            return [name]
    return None


def _union(members: list[ast.expr]) -> list[str] | None:
    names: list[str] = []
    for member in members:
        found = _type_names(member)
        if found is None:
            return None
        names += found
    return names


def signature_of_use(use: str, short_names_in: str | None) -> Signature | None:
    file, name = find(use, short_names_in)
    try:
        file = file or module_file(use.rpartition(".")[0], use)
    except NotFound:
        return None
    return signature_of(file.resolve(), name) if file else None


@functools.cache
def signature_of(file: Path, name: str) -> Signature | None:
    """The signature of a class or function that a file names; None if the files do not tell."""
    definition = definition_of(file, name)
    if definition is None:
        return None
    if isinstance(definition, Class):
        return _class_signature(definition)
    decorated = not all(map(_is_transparent, definition.node.decorator_list))
    return None if decorated or definition.node.args.kwarg else _signature(definition.node)


def _class_signature(definition: Class) -> Signature | None:
    parameters: dict[str, ast.expr | None] = {}
    required: list[str] = []
    positional: list[str] = []
    forwarded = False
    for each in class_and_bases(definition):
        if each is None or each.node.decorator_list or each.node.keywords or _method(each.node, "__new__"):
            return None  # may take anything
        if init := _method(each.node, "__init__"):
            found = _signature(init, is_method=True)
            required += [name for name in found.required if name not in parameters]
            parameters |= {name: annotation for name, annotation in found.parameters.items() if name not in parameters}
            positional = positional or found.positional
            if not _forwards_kwargs(init):
                return Signature(parameters | dict.fromkeys(_names_taken_from_kwargs(init)), required, positional)
            forwarded = True
    return None if forwarded else Signature({}, [], [])


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((each for each in reversed(node.body) if isinstance(each, ast.FunctionDef) and each.name == name), None)


def _signature(function: ast.FunctionDef, is_method: bool = False) -> Signature:
    arguments, keyword_only = function.args.args[is_method:], function.args.kwonlyargs
    required = arguments[: max(0, len(arguments) - len(function.args.defaults))]
    required += [name for name, default in zip(keyword_only, function.args.kw_defaults, strict=True) if default is None]
    positional = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args][is_method:]]
    return Signature({each.arg: each.annotation for each in arguments + keyword_only}, [each.arg for each in required], positional)


def _forwards_kwargs(init: ast.FunctionDef) -> bool:
    """Whether the rest of its arguments goes to its base."""
    rest = init.args.kwarg
    calls = (each for each in ast.walk(init) if isinstance(each, ast.Call))
    unpacked = (keyword.value for call in calls for keyword in call.keywords if keyword.arg is None)
    return rest is not None and (
        any(isinstance(each, ast.Name) and each.id == rest.arg for each in unpacked) or not _names_taken_from_kwargs(init)
    )


def _names_taken_from_kwargs(init: ast.FunctionDef) -> list[str]:
    """By `kwargs.pop` and `kwargs.get`."""
    return list(taken_by(init, init.args.kwarg.arg)) if init.args.kwarg else []


def taken_by(node: ast.AST, kwargs: str) -> Iterator[str]:
    """The names in `kwargs.pop("name")` and `kwargs.get("name")`."""
    for each in ast.walk(node):
        match each:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=taken_from), attr="pop" | "get"), args=[ast.Constant(value=str(name)), *_]):
                if taken_from == kwargs:
                    yield name


def _is_transparent(decorator: ast.expr) -> bool:
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name.rpartition(".")[2] in TRANSPARENT_DECORATORS
