"""Which statements of a module differ between two versions of it, and what a replay must execute for its results to say something about them.

Comments, docstrings and layout do not count. Where a statement was removed, its neighbours must be executed; of a function whose header was
changed, its first statement; and of a constant, an import or a class, something in a function that mentions it.
"""

import ast
import copy
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from snaketrain.runtime.loaded_code import what_runs

BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Place:
    """Where a statement stands."""

    block: tuple[str, ...] = ()  # the kinds of the blocks that it is in, from the outermost
    scope: str = field(default="", compare=False)  # the classes and functions that it is in
    in_function: bool = False

    def within(self, node: ast.AST, block: str) -> "Place":
        inner = replace(self, block=(*self.block, f"{type(node).__name__}.{block}"))
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return inner
        return replace(inner, scope=f"{self.scope}.{node.name}", in_function=self.in_function or isinstance(node, FUNCTIONS))


@dataclass(frozen=True)
class Statement:
    """Of one with blocks, such as `for` or `def`, only its header."""

    text: str
    place: Place
    lines: range = field(compare=False)
    names: frozenset[str] = field(
        compare=False
    )  # that it binds for a module or class: not those of functions, whose statements are compared
    mentions: frozenset[str] = field(compare=False)
    begins: "Statement | None" = field(compare=False, default=None)  # the first statement of a function


@dataclass
class Difference:
    changed: list[Statement] = field(default_factory=list)  # those that are there now
    removed: list[Statement] = field(default_factory=list)
    required: list[Statement] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # that mean something else in the module, or in a class of it


def statements(source: str) -> list[Statement]:
    """All of a module, in the order in which they are written."""
    return list(_statements(ast.fix_missing_locations(what_runs(ast.parse(source))).body, Place()))


def difference(then: Collection[Statement], now: list[Statement]) -> Difference:
    found, before = Difference(), list(then)
    for what, first, end, begin, until in SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        if what == "equal":
            continue
        new, old = now[begin:until], before[first:end]
        found.changed += new
        found.names |= {name for each in new for name in each.names}
        found.required += [one for each in new for one in (each, each.begins) if one]
        if not new:
            found.removed += old
            found.required += [one for each in old for one in _neighbours(each.place, now[:begin], now[begin:])]
    return found


def _neighbours(place: Place, before: list[Statement], after: list[Statement]) -> list[Statement]:
    """In a function: what stands before and after in the same block; or the header of the block that now begins there."""
    if not place.in_function:
        return []
    above = [each for each in before if each.place.scope == place.scope and each.place.block == place.block[: len(each.place.block)]]
    below = [each for each in after if each.place.scope == place.scope and each.place.block == place.block]
    return [*above[-1:], *below[:1]]


def _statements(body: Iterable[ast.stmt | ast.ExceptHandler | ast.match_case], place: Place) -> Iterator[Statement]:
    for node in body:
        blocks = {name: value for name in BLOCKS if isinstance(value := getattr(node, name, None), list)}
        header = copy.copy(node)
        for name in blocks:
            setattr(header, name, [ast.Pass()] if name == "body" else [])
        inner = [each for name, value in blocks.items() for each in _statements(value, place.within(node, name))]
        first, last = _lines(node)
        end = min((each.lines.start for each in inner), default=last + 1)
        names = frozenset[str]() if place.in_function else frozenset(_bound(header))
        begins = inner[0] if isinstance(node, FUNCTIONS) else None
        yield Statement(ast.unparse(header), place, range(first, max(end, first + 1)), names, frozenset(_mentioned(header)), begins)
        yield from inner


def _lines(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> tuple[int, int]:
    located = node.pattern if isinstance(node, ast.match_case) else node
    first = min(each.lineno for each in (located, *getattr(node, "decorator_list", [])))
    return first, located.end_lineno or first


def _bound(header: ast.AST) -> Iterator[str]:
    for node in ast.walk(header):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]


def _mentioned(header: ast.AST) -> Iterator[str]:
    for node in ast.walk(header):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
