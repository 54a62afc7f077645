"""Digests of code without comments and layout, so that only changes of what it does make results stale.

A stage's result depends on its script and on all project modules that the script imports, directly or not. Each of
them is digested without comments, docstrings and layout. Packages that cannot affect results are left out.
"""

import ast
import functools
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from snaketrain.runtime.digest_cache import DigestCache
from snaketrain.runtime.loaded_code import digest_of_tree, without_type_checking

SCRIPTS = Path(__file__).resolve().parents[2]
# they record, launch and report, or declare settings, whose values are compared one by one: none of it affects results
WITHOUT_EFFECT_ON_RESULTS = (
    "snaketrain.runtime",
    "snaketrain.config",
    "snaketrain.own",
    "snaketrain.orchestration",
    "snaketrain.slurm",
    "snaketrain.training.callbacks",
    "snaketrain.training.journals",
)

# a label kind is one file, and each stage uses only some of its classes: by the endings of their names
LABELS = SCRIPTS / "snaketrain/labels"
LABEL_CLASSES = ("Parser", "Tally", "Head", "Report", "Panel")
LABEL_CLASSES_USED = {
    "survey_shard": ("Parser", "Tally"),
    "decide_classes": ("Parser", "Tally"),
    "prepare_shard": ("Parser", "Tally"),
    "prepare_data": ("Parser", "Tally"),
    "train_model": ("Head",),
    "train_rung": ("Head", "Report", "Panel"),
    "prepare_set": ("Parser", "Tally"),
    "evaluate_model": ("Head", "Report", "Panel"),
    "evaluate_set": ("Head", "Report", "Panel"),
    "predict_inputs": ("Parser", "Tally", "Head", "Report"),
}


def code_strings(script: str | Path, *plugins: str | Path) -> list[str]:
    """`code.<module>=<digest>` for a stage's script, the user's own files, and every project module they import."""
    digests: dict[str, str] = {}
    waiting = [Path(script), *map(Path, plugins)]
    while waiting:
        path = waiting.pop()
        name = module_name(path)
        if name not in digests and not name.startswith(WITHOUT_EFFECT_ON_RESULTS):
            digests[name], imported = _cached_read(path.resolve(), Path(script).stem)
            waiting += imported
    _cached().save()
    return [f"code.{name}={digest}" for name, digest in sorted(digests.items())]


@functools.cache
def module_name(path: Path) -> str:
    if not path.is_relative_to(SCRIPTS):
        path = path.resolve()
    if path.is_relative_to(SCRIPTS):
        parts = path.relative_to(SCRIPTS).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    here = Path.cwd()  # relative if possible, so that moving a project does not make it stale
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@functools.cache
def _cached_read(path: Path, stage: str) -> tuple[str, list[Path]]:
    """A file's digest and the project files it imports, without the classes that the stage does not use."""
    used = LABEL_CLASSES_USED.get(stage, LABEL_CLASSES) if path.parent == LABELS else LABEL_CLASSES
    unused = tuple(ending for ending in LABEL_CLASSES if ending not in used)
    digest, names = _cached().of(path, partial(_read, unused=unused), name=f"{path} without {unused}" if unused else None)
    return digest, [found for name in names if (found := project_file(name, path.parent))]


@functools.cache
def _cached() -> DigestCache:
    own = Path(__file__).stat()  # a changed digest algorithm invalidates the cache
    return DigestCache(Path(".snakemake/snaketrain-code.json").absolute(), f"{sys.version} {own.st_mtime_ns}")


def _read(path: Path, unused: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """A file's digest and the names of everything it imports, without top-level classes whose names end in `unused`."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    if unused:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name.endswith(unused))]
    names = sorted(set(_imports(without_type_checking(tree), path)))
    return digest_of_tree(tree), names


def _imports(tree: ast.AST, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path).split(".") if SCRIPTS in path.parents else []
            start = ".".join([*package[: len(package) - node.level], node.module or ""]) if node.level else node.module or ""
            if start.rstrip("."):
                yield start.rstrip(".")
            yield from (f"{start.rstrip('.')}.{alias.name}" for alias in node.names)


@functools.cache
def project_file(name: str, beside: Path) -> Path | None:
    """The file of a module of the project, or of one beside a user's own file; None for a library's."""
    if own := _own_modules().get(name):
        return own
    if name.partition(".")[0] not in _importable_from(beside):
        return None
    module = beside.joinpath(*name.split("."))
    return next((file for file in (module.with_suffix(".py"), module / "__init__.py") if file.is_file()), None)


@functools.cache
def _own_modules() -> dict[str, Path]:
    return {module_name(path): path for path in SCRIPTS.rglob("*.py")}


@functools.cache
def _importable_from(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()}
