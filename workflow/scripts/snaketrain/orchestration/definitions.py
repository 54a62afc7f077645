"""Finds the classes that files define, and what they set or inherit, without importing them.

Importing torch and the like takes seconds, and a user's own file may fail or do anything.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.references import NotFound, module_file
from snaketrain.orchestration.code_digest import project_file

WITHOUT_EFFECT = ("object", "ABC", "abc.ABC", "Generic", "Protocol")  # as bases

Libraries = tuple[str, ...] | None  # packages to look into, besides the project and the user's files; None: any


class Class(NamedTuple):
    file: Path
    node: ast.ClassDef


def class_attribute(file: Path, name: str, *attributes: str, libraries: Libraries = ()) -> tuple[str | None, ast.expr | None]:
    """The first of the attributes that the class, or else its nearest base, sets, and its value.

    No attribute where the files do not say; no value where it is not a plain assignment.
    """
    classes = list(class_and_bases(definition_of(file.resolve(), name, libraries=libraries), libraries))
    for number, each in enumerate(classes):
        if each is None:
            break  # of a library, which might set it
        if each in classes[number + 1 :]:
            continue  # as in Python, what several bases derive from comes after all of them
        for statement in reversed(each.node.body):
            for attribute in attributes:
                if _binds(statement, attribute):
                    return attribute, _assigned(statement)
    return None, None


def class_and_bases(definition: Class | None, libraries: Libraries = None, below: frozenset[Class] = frozenset()) -> Iterator[Class | None]:
    """A class, then its bases, each before its own and read only when asked for; None for one that is not found.

    `below`: the classes whose bases these are, since files may import each other in circles.
    """
    if definition is None:
        yield None
        return
    yield definition
    for base in definition.node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        if name not in WITHOUT_EFFECT:
            found = definition_of(definition.file, name, definition.node.lineno, libraries)
            if found not in below:
                yield from class_and_bases(found, libraries, below | {definition})


@functools.cache
def definition_of(file: Path, name: str, before: int | None = None, libraries: Libraries = None) -> Class | None:
    """The class that a name, perhaps with dots, stands for in a file (before a line of it)."""
    return _definition(file, name, before, libraries, set())


def _definition(file: Path, name: str, before: int | None, libraries: Libraries, seen: set[tuple[Path, str]]) -> Class | None:
    """`seen`: where it was looked for already, since modules import each other in circles."""
    if (file, name) in seen and not before:
        return None
    seen.add((file, name))
    for statement in reversed(_statements(file)):
        if before and statement.lineno >= before:
            continue
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return Class(file, statement)
        for module, inner in _imported(statement, name, file):
            source = _module_file(module, file, libraries)
            if source and inner and (found := _definition(source, inner, None, libraries, seen)):
                return found
        if statement.col_offset == 0 and _binds(statement, name):
            return None  # computed or out of reach, whatever the name stood for before
    return None


def _imported(statement: ast.stmt, name: str, file: Path) -> Iterator[tuple[str | Path, str]]:
    """The modules that an import could take the name from, and the rest of the name in them."""
    if isinstance(statement, ast.ImportFrom):
        above = file.parents[statement.level - 1] if statement.level else None
        start: str | Path = above.joinpath(*(statement.module or "").split(".")) if above else str(statement.module)
        for alias in statement.names:
            if alias.name == "*":
                yield start, name
            elif f"{name}.".startswith(f"{alias.asname or alias.name}."):
                rest = name.removeprefix(alias.asname or alias.name).removeprefix(".")
                inside = start / alias.name if isinstance(start, Path) else f"{start}.{alias.name}"
                yield (inside, rest) if rest else (start, alias.name)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname and name.startswith(f"{alias.asname}."):
                module, _, inner = (alias.name + name.removeprefix(alias.asname)).rpartition(".")
                yield module, inner
            elif not alias.asname and name.startswith(f"{alias.name.partition('.')[0]}."):
                module, _, inner = name.rpartition(".")
                yield module, inner


def _module_file(module: str | Path, importing: Path, libraries: Libraries) -> Path | None:
    if isinstance(module, Path):  # of a relative import
        return next((file for file in (module / "__init__.py", module.with_suffix(".py")) if file.is_file()), None)
    if own := project_file(module, importing.parent):
        return own
    if libraries is not None and module.partition(".")[0] not in libraries:
        return None
    try:
        return module_file(module, module)
    except NotFound:
        return None


@functools.cache
def _statements(file: Path) -> list[ast.stmt]:
    """The statements of a module, followed by those under a condition, for each."""
    try:
        text = file.read_text(encoding="utf-8")
        # a lazy package, such as transformers, lists all its names: following them would mean reading everything
        top_level: list[ast.stmt] = [] if "_import_structure" in text else ast.parse(text).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    found: list[ast.stmt] = []
    for statement in top_level:
        found.append(statement)
        if isinstance(statement, ast.If):
            found += [*statement.body, *statement.orelse]
        elif isinstance(statement, ast.Try):
            found += [*statement.body, *statement.orelse, *statement.finalbody]
    return found


def _binds(statement: ast.stmt, name: str) -> bool:
    """Whether the statement gives the name, or the part of it before the first dot, a value."""
    name = name.partition(".")[0]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name).partition(".")[0] == name for alias in statement.names)
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name == name
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return False  # an annotation only
    targets: list[ast.expr] = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [statement.target]
    names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return any(node.id == name for node in names)


def _assigned(statement: ast.stmt) -> ast.expr | None:
    """The right side of a plain assignment."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value
    if isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
        return statement.value
    return None
