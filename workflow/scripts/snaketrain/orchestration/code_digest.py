"""Digests of code without comments and layout, so that only changes of what it does make results stale.

A stage's result depends on its script and on all project modules that the script imports, directly or not. Each of
them is digested without comments, docstrings and layout. Packages that cannot affect results are left out.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from snaketrain.own import is_beside
from snaketrain.runtime.loaded_code import digest_of_tree, without_type_checking
from snaketrain.runtime.manifests import DigestCache

SCRIPTS = Path(__file__).resolve().parents[2]
# they record, launch and report, or read the configuration, whose values are compared one by one: none of it affects results
WITHOUT_EFFECT_ON_RESULTS = (
    "snaketrain.runtime",
    "snaketrain.config",
    "snaketrain.own",
    "snaketrain.orchestration",
    "snaketrain.slurm",
    "snaketrain.training.callbacks",
    "snaketrain.training.hangs",
    "snaketrain.training.watching",
)
# Of extras: `training` takes over only steps that are equal to the bit; `preparing` counts where `Stage.adds_code` says so.
OF_EXTRAS = re.compile(r"snaketrain\.extras\.\w+\.(stages|top_level|training|preparing)")
BY_RUN = "sampling"  # this module of an extra counts for the runs of which `code(run)` in its `settings.py` names it
OF_ANY_EXTRA = "snaketrain.extras.*."  # begins the name of what the core asks each of them for
# Files that declare settings. What computes with them counts, such as the steps of a warm-up; declarations and checks do not.
SCHEMA = "snaketrain.config.schema"
SETTINGS = re.compile(r"snaketrain\.(config\.schema\.(data|model|train|evaluation|tasks)|config\.sizes|extras\.\w+\.settings)")

# a label kind is one file, and each stage uses only some of its classes: by the endings of their names
LABELS = SCRIPTS / "snaketrain/labels"
OF_EXTRAS_LABELS = "label_kind.py"
LABEL_CLASSES = ("Parser", "Tally", "Head", "Report", "Panel")


def code_digests(script: str | Path, *plugins: str | Path, label_classes: tuple[str, ...] = LABEL_CLASSES) -> dict[str, str]:
    """By module or file: a stage's script, the user's own files, and every project module they import."""
    digests: dict[str, str] = {}
    waiting = [(path, path.parent) for path in map(Path, (script, *plugins))]  # each with the folder that its imports are looked up in
    done = set()
    while waiting:
        path, world = waiting.pop()
        name = module_name(path)
        if (name, world) not in done and affects_results(name):
            done.add((name, world))
            found, imported = _cached_read(_in_its_folder(path), label_classes)
            digests |= {name: found} if found else {}
            waiting += [(file, world) for each in imported for file in _files_of(each, path, world)]
    _cached().save()
    return dict(sorted(digests.items()))


def affects_results(module: str) -> bool:
    without = module.startswith(WITHOUT_EFFECT_ON_RESULTS) or OF_EXTRAS.fullmatch(module)
    return not without or SETTINGS.fullmatch(module) is not None


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
def _cached_read(path: Path, label_classes: tuple[str, ...]) -> tuple[str, list[str]]:
    """A file's digest and the names that it imports, without the classes that the stage does not use."""
    unused = (
        tuple(ending for ending in LABEL_CLASSES if ending not in label_classes)
        if path.parent == LABELS or path.name == OF_EXTRAS_LABELS
        else ()
    )
    digest, names = _cached().of(path, partial(_read, unused=unused), name=f"{path} without {unused}" if unused else None)
    return digest, names


def _in_its_folder(path: Path) -> Path:
    """Of a link, the place of the link: that is where what it imports is looked up."""
    return path.parent.resolve() / path.name


@functools.cache
def _cached() -> DigestCache:
    own = Path(__file__).stat()  # a changed digest algorithm invalidates the cache
    return DigestCache(Path(".snakemake/snaketrain-code.json").absolute(), f"{sys.version} {own.st_mtime_ns}")


def _read(path: Path, unused: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """A file's digest and the names of everything it imports, without top-level classes whose names end in `unused`; "" where nothing counts."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    if unused:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name.endswith(unused))]
    names = sorted(set(_imports(without_type_checking(tree))))
    if SETTINGS.fullmatch(module_name(path)) and not _what_computes(tree).body:
        return "", names
    return digest_of_tree(tree), names


def _what_computes(tree: ast.Module) -> ast.Module:
    """Of a file that declares settings: not the declarations, and not what checks them."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body = [each for each in node.body if _computes(each)]
    tree.body = [node for node in tree.body if (node.body if isinstance(node, ast.ClassDef) else _computes(node))]
    return tree


def _computes(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):  # of a constant, and not of a type with its `Field`
        return not any(isinstance(each, ast.Call) for each in ast.walk(node))
    if not isinstance(node, ast.FunctionDef):
        return False
    returns = ast.unparse(node.returns) if node.returns else ""
    says_what_is_wrong = node.name == "contradictions" or returns in ("Iterator[str]", "str | None")
    return not says_what_is_wrong and not any("validator" in ast.unparse(each) for each in node.decorator_list)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Names of modules, and of what is taken from them, which may be modules too; relative ones begin with dots."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                start = "." * node.level + (node.module or "")
                if start.strip("."):
                    yield start
                yield from (f"{start}{'.' if node.module else ''}{alias.name}" for alias in node.names)
            # of config.schema.of_extras: so the core asks the extras
            case ast.Call(ast.Name("modules" | "hooks"), [ast.Constant(str(name)), *_]) if name != BY_RUN:
                yield f"{OF_ANY_EXTRA}{name}"


def _files_of(name: str, importing: Path, world: Path) -> list[Path]:
    """The project files that an import executes: the module, and for own code also the packages that it is in."""
    if name.startswith(OF_ANY_EXTRA):
        return [path for module, path in _own_modules().items() if fnmatchcase(module, name)]
    if not name.startswith("."):
        if own := _own_modules().get(name):
            return [own]
        return _below(world, name.split(".")) if _is_beside(name.partition(".")[0], world) else []
    above = len(name) - len(name.lstrip("."))
    return _below(importing.resolve().parents[above - 1], name[above:].split("."))


def _below(folder: Path, parts: list[str]) -> list[Path]:
    modules = [folder.joinpath(*parts[:number]) for number in range(1, len(parts) + 1)]
    files = [next((file for file in (each / "__init__.py", each.with_suffix(".py")) if file.is_file()), None) for each in modules]
    return [file for file in files if file]


def project_file(name: str, beside: Path) -> Path | None:
    """The file of a module of the project, or of one beside a user's own file; None for a library's."""
    files = _files_of(name, beside / "any.py", beside)
    return files[-1] if files and files[-1].with_suffix("").parts[-1] in (name.rpartition(".")[2], "__init__") else None


_is_beside = functools.cache(is_beside)


@functools.cache
def _own_modules() -> dict[str, Path]:
    found = {module_name(path): path for path in SCRIPTS.rglob("*.py")}
    for node in ast.parse(found[SCHEMA].read_text(encoding="utf-8")).body:  # which scripts import sections from
        if isinstance(node, ast.ImportFrom) and node.module in found:
            found |= {f"{SCHEMA}.{alias.name}": found[node.module] for alias in node.names}
    return found
