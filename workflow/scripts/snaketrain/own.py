"""Imports the user's own files, each folder's as a world of its own, so that two folders may each have a `helper.py`.

A file that the configuration names, `a/code_a.py:Task`, becomes the module `snaketrain.own.a.code_a`, and what it imports from beside
it `snaketrain.own.a.helper`: the imports in own code are rewritten to these names when it is compiled. So no folder joins `sys.path`,
imports inside functions find the same files as those at the top, and pickle and torch.compile see ordinary modules. The names tell where
the files are, so that a process which only unpickles (a loader's worker) imports them by themselves.
"""

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

__path__: list[str] = []  # this module is the parent package of all own files
LIBRARY = Path(__file__).resolve().parents[1]
HERE = "_"  # the name of the working directory, which no other folder's name is encoded as
NEVER_BESIDE = {*sys.builtin_module_names, "__future__", "snaketrain"}

sources: dict[str, bytes] = {}  # of each own file as it was compiled in this process, by absolute path


def import_file(file: Path) -> ModuleType:
    """The module of a file that the configuration names; imported once in a process, like any module."""
    file = file.parent.resolve() / file.name  # of a link, the folder that it is in
    if file.is_relative_to(LIBRARY):
        return importlib.import_module(".".join(file.relative_to(LIBRARY).with_suffix("").parts))
    world = f"{__name__}.{_encoded(file.parent)}"
    loaded = sys.modules.get(world)
    if loaded is not None and [str(file.parent)] != list(loaded.__path__):  # the working directory has changed since
        _forget(world)
    return importlib.import_module(f"{world}.{file.stem}")


def is_beside(name: str, folder: Path) -> bool:
    """Whether own code means a file of its folder by a top-level module's name. Installed packages come before a folder without `__init__.py`."""
    if name in NEVER_BESIDE:
        return False
    endings = (".py", "/__init__.py", *EXTENSION_SUFFIXES)
    if any((folder / f"{name}{ending}").is_file() for ending in endings):
        return True
    return (folder / name).is_dir() and name not in sys.stdlib_module_names and PathFinder.find_spec(name) is None


def _encoded(folder: Path) -> str:
    """A folder as one part of a module's name: relative if possible, so that moving a project changes no name."""
    here = Path.cwd().resolve()
    if folder == here:
        return HERE
    text = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
    return re.sub(r"[^a-zA-Z0-9]", lambda found: "__" if found[0] == "_" else "".join(f"_{byte:02x}" for byte in found[0].encode()), text)


def _decoded(name: str) -> Path:
    if name == HERE:
        return Path.cwd().resolve()
    text = re.sub(rb"__|(?:_[0-9a-f]{2})", lambda found: b"_" if found[0] == b"__" else bytes.fromhex(found[0][1:].decode()), name.encode())
    return Path.cwd().resolve() / text.decode()


def _forget(world: str) -> None:
    for name in [name for name in sys.modules if name == world or name.startswith(f"{world}.")]:
        del sys.modules[name]


class OwnFinder:
    """Finds `snaketrain.own.<folder>` and all below it."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        below = name.removeprefix(f"{__name__}.")
        if "." not in below:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(_decoded(below))]
            return spec
        found = PathFinder.find_spec(name, path)
        if found and isinstance(found.loader, SourceFileLoader):
            found.loader = OwnLoader(name, str(found.origin))
            found.cached = None
        return found


class OwnLoader(SourceFileLoader):
    """Compiles an own file, from its source each time, with its imports rewritten."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        sources[path] = self.get_data(path)
        tree = ast.parse(sources[path], filename=path)
        world = ".".join(self.name.split(".")[:3])
        rewritten = ast.fix_missing_locations(_Imports(world, _decoded(world.rpartition(".")[2])).visit(tree))
        return compile(rewritten, path, "exec", dont_inherit=True)


class _Imports(ast.NodeTransformer):
    """Names what is imported from the own folder in full."""

    def __init__(self, world: str, folder: Path):
        self.world, self.folder = world, folder

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [ast.copy_location(each, node) for alias in node.names for each in self._named(alias)]

    def _named(self, alias: ast.alias) -> list[ast.stmt]:
        top = alias.name.partition(".")[0]
        if not is_beside(top, self.folder):
            return [ast.Import([alias])]
        full = ast.Import([ast.alias(f"{self.world}.{alias.name}", alias.asname or top)])
        if alias.asname or alias.name == top:
            return [full]
        return [full, ast.Import([ast.alias(f"{self.world}.{top}", top)])]  # `import a.b` binds `a`

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if node.module and not node.level and is_beside(node.module.partition(".")[0], self.folder):
            node.module = f"{self.world}.{node.module}"
        return node


sys.meta_path.insert(0, OwnFinder)
