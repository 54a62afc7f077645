"""The tasks that YAML files in a folder define, found as the harness finds them, but without it: names, and the files that each consists of."""

import functools
import glob
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from snaketrain.runtime.strict_json import Json, JsonObject


class OwnFunction(str):
    """What `!function module.name` refers to: the path of the module beside the YAML file, or of no file if the module is an installed one."""


class TaskFile(NamedTuple):
    path: Path
    content: JsonObject  # with what it includes
    read: list[Path]  # itself, and what it includes

    @property
    def code(self) -> list[Path]:
        """The Python files beside it whose functions it names."""
        return sorted({Path(each) for each in leaves(self.content) if isinstance(each, OwnFunction) and Path(each).is_file()})

    @property
    def data(self) -> dict[str, list[Path]]:
        """The local files by each name of them; none where there is no such file. Relative names are looked up in the working directory."""
        arguments = self.content.get("dataset_kwargs") or {}
        named = [*leaves(arguments.get("data_files")), *leaves(arguments.get("data_dir"))]
        if (source := self.content.get("dataset_path")) and Path(source).exists():
            named.append(source)
        return {name: files_of(name) for name in named}

    @property
    def files(self) -> list[Path]:
        """All that it consists of, but for code."""
        return sorted({*self.read, *(file for found in self.data.values() for file in found)})


class Tasks(NamedTuple):
    by_name: dict[str, TaskFile]
    unreadable: dict[Path, str]  # why


@functools.cache
def tasks_in(folder: str) -> Tasks:
    found = Tasks({}, {})
    for path in sorted(Path(folder).rglob("*.yaml")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        try:
            content, read = read_task(path)
        except (OSError, ValueError, yaml.YAMLError) as error:
            found.unreadable[path] = " ".join(str(error).split())
            continue
        name = content.get("group") or content.get("task")
        if isinstance(name, str):  # otherwise it is there to be included
            found.by_name.setdefault(name, TaskFile(path, content, read))
    return found


def read_task(path: Path, includes_it: tuple[Path, ...] = ()) -> tuple[JsonObject, list[Path]]:
    """With what it includes, whose keys give way to its own; and all files read."""
    if path in includes_it:
        raise ValueError(f"{path} includes itself")
    with open(path, encoding="utf-8") as file:
        content = yaml.load(file, Loader=TaskLoader)  # derived from SafeLoader
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    merged: JsonObject = {}
    read = [path]
    for name in leaves(content.pop("include", None)):
        included, files = read_task(path.parent / name, (*includes_it, path))
        merged |= included
        read += files
    return merged | content, read


class TaskLoader(yaml.SafeLoader): ...


def own_function(loader: TaskLoader, node: yaml.ScalarNode) -> OwnFunction:
    module = str(loader.construct_scalar(node)).rpartition(".")[0]
    return OwnFunction(Path(loader.name).parent / f"{module.replace('.', '/')}.py")


TaskLoader.add_constructor("!function", own_function)


def leaves(content: Json) -> Iterator[Json]:
    """What nested lists and mappings have in the end."""
    if isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            yield from leaves(each)
    elif content is not None:
        yield content


def files_of(name: str) -> list[Path]:
    """Of a file, a folder or a pattern."""
    if Path(name).is_dir():
        return sorted(path for path in Path(name).rglob("*") if path.is_file())
    return [path for path in map(Path, sorted(glob.glob(name, recursive=True))) if path.is_file()]
