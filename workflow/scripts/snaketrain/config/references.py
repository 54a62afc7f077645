"""Turns a name in the configuration into the object it names, or reports what is wrong with the name.

`find` imports nothing: it locates packages and reads the user's own files. What a library has, `load` tells, which is called before any job starts.
"""

import ast
import functools
import importlib
import importlib.util
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snaketrain.config.errors import near
from snaketrain.own import import_file
from snaketrain.runtime.loaded_code import watch

PACKAGE = Path(__file__).resolve().parents[1]


# files of these folders that share code, and are no task or strategy by themselves
HELPERS = ("distributed", "collectives")
IN_FILE = {  # the files of short names that stand in a file of another name
    "single": "ddp", "data_parallel": "ddp", "zero1": "ddp", "hsdp": "fsdp", "tensor_parallel": "mesh",
    "fairscale_oss": "fairscale", "fairscale_fsdp": "fairscale",
}  # fmt: skip


class NotFound(Exception):
    """A name in the configuration that refers to nothing; the message says which part is unknown, and what is similar."""


def load(name: str, short_names_in: str | None = None) -> Any:  # only the caller knows what it is
    """The class or function behind `short_name`, `package.module.Class` or `path/to/file.py:Class`."""
    file, attribute = find(name, short_names_in)
    try:
        if ".py:" in name:
            watch()
            module = import_file(Path(name.rpartition(":")[0]))
        elif "." not in name:
            assert file is not None, "short names are those of files"
            module = import_file(file)
        else:
            watch(name.partition(".")[0])
            module = importlib.import_module(name.rpartition(".")[0])
        if not hasattr(module, attribute) and attribute not in dir(module):  # `dir` of transformers takes a fifth of a second
            raise NotFound(f"`{name.rpartition('.')[0]}` has no `{attribute}`{_nearest(attribute, dir(module))}")
        return getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        if ".py:" in name:
            raise
        raise NotFound(f"cannot load `{name}`: {error}. Correct the name, or install what is missing") from error


@functools.cache
def find(name: str, short_names_in: str | None = None) -> tuple[Path | None, str]:
    """The file that defines the name (None: unknown without importing a library) and the attribute in it."""
    if ":" in name or name.endswith(".py"):
        path, _, attribute = name.rpartition(":") if ":" in name else (name, "", "")
        if not path or not attribute:
            raise NotFound(f"`{name}` is not complete: write `path/to/file.py:Name`, with the name of the class or function in the file")
        return _attribute_in(Path(path), attribute, name)
    if "." not in name:
        if short_names_in is None:
            raise NotFound(f"`{name}` is not complete: write `package.module.Class` or `path/to/file.py:Class`")
        return _short_name(name, short_names_in)
    module, _, attribute = name.rpartition(".")
    module_file(module, name)
    return None, attribute


def _short_name(name: str, place: str) -> tuple[Path, str]:
    folder = PACKAGE.joinpath(*place.split("."))
    file = folder.with_suffix(".py")
    if file.is_file():  # short names are the functions of one file
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = sorted(n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_"))
        if name in names:
            return file, name
    else:  # or the files of a folder, each with the class of that name, or with several
        stems = {path.stem for path in folder.glob("[a-z]*.py")} - {"base", *HELPERS}
        files = {each: folder / f"{each}.py" for each in stems}
        files |= {each: folder / f"{file}.py" for each, file in IN_FILE.items() if file in stems}
        files |= {path.parent.name: path for path in (PACKAGE / "extras").glob("*/task.py") if place == "tasks"}
        classes = {each: "".join(map(str.capitalize, each.split("_"))) for each in files}
        names = sorted(
            each for each, file in files.items() if re.search(rf"^class {classes[each]}\b", file.read_text(encoding="utf-8"), re.M)
        )
        if name in names:
            return files[name], classes[name]
    raise NotFound(f"`{name}` is not one of {', '.join(names)}{_nearest(name, names)} (your own: `path/to/file.py:Name`)")


def _attribute_in(path: Path, attribute: str, name: str) -> tuple[Path, str]:
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        raise NotFound(f"`{name}`: there is no file {path} (from {Path.cwd()}). Correct the path")
    if path.suffix != ".py" or "." in path.stem:
        raise NotFound(f"`{name}`: Python cannot import a file of the name {path.name}. Rename it, such as to my_code.py")
    if (path.with_suffix("") / "__init__.py").is_file():
        raise NotFound(f"`{name}`: {path} and {path.with_suffix('')}/ are modules of one name. Rename one of them")
    try:
        names = _names_in(ast.parse(path.read_text(encoding="utf-8")))
    except SyntaxError as error:
        raise NotFound(f"`{name}`: {path}, line {error.lineno}: {error.msg}. Correct the file") from None
    except ValueError as error:  # not a text
        raise NotFound(f"`{name}`: {path} cannot be read as Python: {error}. Correct the file") from None
    if names is not None and attribute not in names:
        raise NotFound(f"`{name}`: {path} has no `{attribute}`{_nearest(attribute, names, '. Correct the name, or define it there')}")
    return path, attribute


@functools.cache
def module_file(module: str, name: str) -> Path | None:
    """The file of an installed module; `name` is the full name, for messages."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)  # only locates a top-level package, never imports it
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise NotFound(f"`{name}`: no package `{top}` is installed. Install it into this environment, or correct its name")
    if not spec.submodule_search_locations:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    places = [Path(place).joinpath(*rest) for place in spec.submodule_search_locations]
    for place in places:
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                return file
    if rest and not any(place.is_dir() or list(place.parent.glob(f"{place.name}.*")) for place in places):
        beside = {file.name.partition(".")[0] for place in places for file in place.parent.glob("[a-z]*")}
        raise NotFound(f"`{name}`: there is no module `{module}`{_nearest(rest[-1], beside, '. Correct the name')}")
    return None


def _names_in(module: ast.Module) -> set[str] | None:
    """Names that a module defines or imports; None if its source does not tell."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if {"*", "__getattr__"} & names else names


def _nearest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    found = near(name, names)
    return f". Did you mean `{found[0]}`?" if found else otherwise
