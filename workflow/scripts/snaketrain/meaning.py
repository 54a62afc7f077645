"""Digests of what code means, so that only a change of meaning makes results stale.

A stage's result depends on its script and on all project modules that the script imports, directly or not. Each of
them is digested without comments, docstrings and layout. Modules that only tell or start, and cannot change a result,
are left out.
"""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent
WITHOUT_EFFECT_ON_RESULTS = {
    "snaketrain.configuration",
    "snaketrain.loading",
    "snaketrain.training_folder",
    "snaketrain.window",
    "snaketrain.journal",
    "snaketrain.launching",
    "snaketrain.manifests",
    "snaketrain.meaning",
    "snaketrain.ownership",
    "snaketrain.progress",
    "snaketrain.ranks",
    "snaketrain.stopping",
    "snaketrain.settings",  # its values are compared one by one
    "snaketrain.stages",
}


def code_strings(script: str | Path, *plugins: str | Path) -> list[str]:
    """`code.<module>=<digest>` for a stage's script, the user's own files, and every project module they import."""
    modules: dict[str, Path] = {}
    waiting = [Path(script), *map(Path, plugins)]
    while waiting:
        path = waiting.pop()
        name = module_name(path)
        if name in modules or name in WITHOUT_EFFECT_ON_RESULTS:
            continue
        modules[name] = path
        waiting += _reading(path.resolve())[1]
    return [f"code.{name}={_reading(path.resolve())[0]}" for name, path in sorted(modules.items())]


def module_name(path: Path) -> str:
    path = path.resolve()
    if SCRIPTS in path.parents:
        parts = path.relative_to(SCRIPTS).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    here = Path.cwd()  # relative where it can be, so that a project that was moved is not stale
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@functools.cache
def _reading(path: Path) -> tuple[str, list[Path]]:
    """A file's digest and the project files it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    imported = [found for name in _imports(tree, path) if (found := _project_file(name, path.parent))]
    for node in ast.walk(tree):
        _drop_docstring(node)
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12], imported


def _imports(tree: ast.AST, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path).split(".") if SCRIPTS in path.parents else []
            start = ".".join([*package[: len(package) - node.level], node.module or ""]) if node.level else node.module or ""
            yield start.rstrip(".")
            yield from (f"{start.rstrip('.')}.{alias.name}" for alias in node.names)


def _project_file(name: str, beside: Path) -> Path | None:
    relative = Path(*name.split("."))
    for root in (SCRIPTS, beside):
        for candidate in ((root / relative).with_suffix(".py"), root / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _drop_docstring(node: ast.AST) -> None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:] or [ast.Pass()]
