"""What a class says of itself or inherits, read from files: importing them would take seconds, and may fail."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from snaketrain.orchestration.code_digest import project_file

MOST_STEPS = 20  # from import to import, and from class to base: some go in circles


class Definition(NamedTuple):
    file: Path
    node: ast.ClassDef

    @property
    def place(self) -> tuple[Path, int]:
        return self.file, self.node.lineno


def class_attribute(
    file: Path, name: str, *attributes: str, find: Callable[[str, Path], Path | None] = project_file
) -> tuple[str | None, ast.expr | None]:
    """The first of the attributes that the class or else its nearest base sets, and to what; None where the files do not tell.

    `find` gives the file of a module that is imported by a file in a folder; None for one that is not looked into.
    """
    line = list(_line(file, name, find))
    places = [definition and definition.place for definition in line]
    for number, definition in enumerate(line):
        if definition is None:
            break  # of a library, which might set it
        if places[number] in places[number + 1 :]:
            continue  # as in Python, what several bases derive from comes after all of them
        for statement in reversed(definition.node.body):
            for attribute in attributes:
                if _binds(statement, attribute):
                    return attribute, _value(statement)
    return None, None


def _line(file: Path, name: str, find: Callable, before: int | None = None, steps: int = MOST_STEPS) -> Iterator[Definition | None]:
    """The class and its bases, each before its own; None for one that is not of the project or the user."""
    definition = _definition(file, name, find, before) if steps else None
    yield definition
    for base in definition.node.bases if definition else ():
        yield from _line(definition.file, ast.unparse(base), find, definition.node.lineno, steps - 1)


def _definition(file: Path, name: str, find: Callable, before: int | None = None, steps: int = MOST_STEPS) -> Definition | None:
    """The class that a name means in a file (before a line of it), be it defined or imported there."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return None
    for statement in reversed(body):
        if before and statement.lineno >= before:
            continue
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return Definition(file.resolve(), statement)
        if full_name := _imported(statement, name):
            module, _, inner = full_name.rpartition(".")
            source = find(module, file.resolve().parent)
            return _definition(source, inner, find, None, steps - 1) if source and steps else None
        if _binds(statement, name):
            return None
    return None


def _imported(statement: ast.stmt, name: str) -> str | None:
    """The full name of what a name, perhaps with dots, means by this import."""
    if isinstance(statement, ast.ImportFrom) and not statement.level:
        start = f"{statement.module}."
    elif isinstance(statement, ast.Import):
        start = ""
    else:
        return None
    for alias in statement.names:
        known_as = alias.asname or alias.name
        if f"{name}.".startswith(f"{known_as}."):
            return start + alias.name + name.removeprefix(known_as)
    return None


def _binds(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name == name
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return False  # says a type only
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return any(isinstance(node, ast.Name) and node.id == name for target in targets if target for node in ast.walk(target))


def _value(statement: ast.stmt) -> ast.expr | None:
    """The right side of a plain assignment."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value
    plain = isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets)
    return statement.value if plain else None
