"""What a class or function can be called with, read from files: importing torch and its like to ask them takes seconds."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from snaketrain.config.errors import nearest, shown
from snaketrain.config.references import NotFound, module_file
from snaketrain.orchestration.code_digest import project_file

HARMLESS = ("no_grad", "inference_mode", "cache", "lru_cache", "staticmethod", "override", "torch_function")
TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str, "None": type(None), "list": list, "tuple": list, "dict": dict}

IN_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "None": "null", "list": "a list",
            "tuple": "a list", "dict": "names with their values"}  # fmt: skip


class Definition(NamedTuple):
    file: Path
    node: ast.ClassDef | ast.FunctionDef


class Signature(NamedTuple):
    takes: dict[str, ast.expr | None]  # by keyword, with the types where they are told
    needs: list[str]
    positional: list[str]


def wrong_arguments(setting: str, given: dict[str, Any], signature: Signature, needed: bool = True) -> Iterator[str]:
    """Arguments that are not taken, not of the type, or lacking where all that is `needed` must be given."""
    known = f"It takes: {', '.join(signature.takes)}." if signature.takes else "It takes none."
    for name, value in given.items():
        if name not in signature.takes:
            yield f"{setting}.{name}: no such argument{nearest(name, signature.takes)} {known}"
        elif expected := not_of_type(signature.takes[name], value):
            yield f"{setting}.{name}: expects {expected}, not {shown(value)}."
    for name in signature.needs if needed else ():
        if name not in given:
            yield f"{setting}.{name}: is missing. Give it a value."


def not_of_type(annotation: ast.expr | None, value: Any) -> str | None:
    """The type that a plain value should have and has not; None where it fits, or where that cannot be told."""
    names = _type_names(annotation) if annotation is not None else None
    if not names:
        return None
    fits = any(isinstance(value, TYPES[name]) and not (isinstance(value, bool) and name in ("int", "float")) for name in names)
    return None if fits else " or ".join(dict.fromkeys(IN_WORDS[name] for name in names))


def _type_names(annotation: ast.expr) -> list[str] | None:
    if isinstance(annotation, ast.Constant):
        if annotation.value is None:
            return ["None"]
        try:
            return _type_names(ast.parse(annotation.value, mode="eval").body) if isinstance(annotation.value, str) else None
        except SyntaxError:
            return None
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [_type_names(side) for side in (annotation.left, annotation.right)]
        return None if None in sides else [name for side in sides for name in side]
    if isinstance(annotation, ast.Subscript):
        outer = ast.unparse(annotation.value).rpartition(".")[2]
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if outer in ("Optional", "Union"):
            sides = [*map(_type_names, inner), *([["None"]] if outer == "Optional" else [])]
            return None if None in sides else [name for side in sides for name in side]
        return [outer.lower()] if outer.lower() in ("list", "tuple", "dict") else None
    return [annotation.id] if isinstance(annotation, ast.Name) and annotation.id in TYPES else None


@functools.cache
def signature_of(file: Path, name: str) -> Signature | None:
    """Of what a file means by a name; None where the files do not tell."""
    definition = definition_of(file, name)
    if definition is None:
        return None
    if isinstance(definition.node, ast.FunctionDef):
        decorated = [each for each in definition.node.decorator_list if not _harmless(each)]
        return None if decorated or definition.node.args.kwarg else _signature(definition.node)
    return _of_class(definition)


def _of_class(definition: Definition) -> Signature | None:
    takes: dict[str, ast.expr | None] = {}
    needs: list[str] = []
    positional: list[str] = []
    handed_on = False
    for each in line_of(definition):
        if each is None or each.node.decorator_list or each.node.keywords or _function(each.node, "__new__"):
            return None  # another class, or what is decorated, may take anything
        if start := _function(each.node, "__init__"):
            found = _signature(start, methods=True)
            needs += [name for name in found.needs if name not in takes]
            takes |= {name: each for name, each in found.takes.items() if name not in takes}
            positional = positional or found.positional
            if not _hands_on(start):
                return Signature(takes | dict.fromkeys(_picked(start)), needs, positional)
            handed_on = True
    return None if handed_on else Signature({}, [], [])


def _function(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((each for each in reversed(node.body) if isinstance(each, ast.FunctionDef) and each.name == name), None)


def _signature(function: ast.FunctionDef, methods: bool = False) -> Signature:
    by_place, named = function.args.args[methods:], function.args.kwonlyargs
    without_default = by_place[: max(0, len(by_place) - len(function.args.defaults))]
    without_default += [name for name, default in zip(named, function.args.kw_defaults, strict=True) if default is None]
    positional = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args][methods:]]
    return Signature({each.arg: each.annotation for each in by_place + named}, [each.arg for each in without_default], positional)


def _hands_on(start: ast.FunctionDef) -> bool:
    """Whether what else it is given goes to its base."""
    rest = start.args.kwarg
    calls = (each for each in ast.walk(start) if isinstance(each, ast.Call))
    given = (keyword.value for call in calls for keyword in call.keywords if keyword.arg is None)
    return rest is not None and (any(isinstance(each, ast.Name) and each.id == rest.arg for each in given) or not _picked(start))


def _picked(start: ast.FunctionDef) -> list[str]:
    """The names that it takes out of `**kwargs`."""
    rest = start.args.kwarg.arg if start.args.kwarg else None
    calls = (each for each in ast.walk(start) if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.args)
    picking = (call for call in calls if call.func.attr in ("pop", "get") and ast.unparse(call.func.value) == rest)
    return [call.args[0].value for call in picking if isinstance(call.args[0], ast.Constant)]


def _harmless(decorator: ast.expr) -> bool:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).rpartition(".")[2] in HARMLESS


# --- where it is defined


def line_of(definition: Definition | None, seen: frozenset[Definition] = frozenset()) -> Iterator[Definition | None]:
    """A class, and then its bases, read only when they are asked for; None for one that is not found."""
    yield definition
    if definition is None or not isinstance(definition.node, ast.ClassDef):
        return
    for base in definition.node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        if name not in ("object", "ABC", "abc.ABC", "Generic", "Protocol"):
            above = definition_of(definition.file, name, before=definition.node.lineno)
            if above not in seen:
                yield from line_of(above, seen | {definition})


@functools.cache
def definition_of(file: Path, name: str, before: int | None = None) -> Definition | None:
    """The class or function that a name, perhaps with dots, means in a file (before a line of it)."""
    return _definition(file, name, before, set())


def _definition(file: Path, name: str, before: int | None, seen: set[tuple[Path, str]]) -> Definition | None:
    """`seen`: where it was looked for already, since modules import each other in circles."""
    if (file, name) in seen and not before:
        return None
    seen.add((file, name))
    for statement in reversed(_statements(file)):
        if before and statement.lineno >= before:
            continue
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
            return Definition(file, statement)
        for module, inner in _meant(statement, name, file):
            source = _file_of(module, file)
            if source and inner and (found := _definition(source, inner, None, seen)):
                return found
    return None


def _meant(statement: ast.stmt, name: str, file: Path) -> Iterator[tuple[str | Path, str]]:
    """The modules that an import could mean by the name, and the rest of the name in them."""
    if isinstance(statement, ast.ImportFrom):
        above = file.parents[statement.level - 1] if statement.level else None
        start: str | Path = above.joinpath(*(statement.module or "").split(".")) if above else str(statement.module)
        for alias in statement.names:
            if alias.name == "*":
                yield start, name
            elif f"{name}.".startswith(f"{alias.asname or alias.name}."):
                rest = name.removeprefix(alias.asname or alias.name).removeprefix(".")
                yield (
                    (start, alias.name) if not rest else (start / alias.name if isinstance(start, Path) else f"{start}.{alias.name}", rest)
                )
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname and name.startswith(f"{alias.asname}."):
                module, _, inner = (alias.name + name.removeprefix(alias.asname)).rpartition(".")
                yield module, inner
            elif not alias.asname and name.startswith(f"{alias.name.partition('.')[0]}."):
                module, _, inner = name.rpartition(".")
                yield module, inner


def _file_of(module: str | Path, beside: Path) -> Path | None:
    if isinstance(module, Path):
        return next((file for file in (module / "__init__.py", module.with_suffix(".py")) if file.is_file()), None)
    if own := project_file(module, beside.parent):
        return own
    try:
        return module_file(module, module)
    except NotFound:
        return None


@functools.cache
def _statements(file: Path) -> list[ast.stmt]:
    """Those of a module, and those that it has only under a condition."""
    try:
        text = file.read_text(encoding="utf-8")
        # a lazy package, as transformers is, names all that it has, and following it would mean to read all
        waiting: list[ast.stmt] = [] if "_import_structure" in text else ast.parse(text).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    found: list[ast.stmt] = []
    for statement in waiting:
        inner = (
            [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")] if isinstance(statement, ast.If | ast.Try) else []
        )
        found += [statement, *(each for part in inner for each in part)]
    return found
