"""Which files of a dataset repository make up a split: as its README.md declares, or else by their names."""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from snaketrain.config.errors import nearest
from snaketrain.data.sources.formats import COMPRESSED, FORMATS
from snaketrain.runtime.strict_json import Json, JsonObject


class NoSuchSplit(Exception):
    """The message says which splits or configurations there are."""


def split_files(split: str, config: str | None, names: list[str], metadata: JsonObject) -> list[str]:
    """`names`: all files of the repository; `metadata`: the block at the beginning of its README.md."""
    declared = {str(each.get("config_name", "default")): each for each in metadata.get("configs") or [] if each.get("data_files")}
    if declared:
        return _declared(split, _chosen(config, declared), names)
    return _by_name(split, config, names)


def _chosen(config: str | None, declared: dict[str, JsonObject]) -> JsonObject:
    default = next((name for name, each in declared.items() if each.get("default")), "default" if "default" in declared else None)
    name = config or (next(iter(declared)) if len(declared) == 1 else default)
    if name is None:
        raise NoSuchSplit(f"it has several configurations: {', '.join(declared)}. Name one as `config`.")
    if name not in declared:
        raise NoSuchSplit(f"no configuration {name!r}{nearest(name, declared)} It has: {', '.join(declared)}.")
    return declared[name]


def _declared(split: str, config: JsonObject, names: list[str]) -> list[str]:
    patterns = dict(_patterns(config["data_files"]))
    if split not in patterns:
        raise NoSuchSplit(f"no such split{nearest(split, patterns)} It has: {', '.join(patterns)}.")
    folder = f"{config['data_dir'].strip('/')}/" if config.get("data_dir") else ""
    wanted = [re.compile(_expression(folder + pattern.removeprefix("./"))) for pattern in patterns[split]]
    if not (found := [name for name in names if any(pattern.fullmatch(name) for pattern in wanted)]):
        raise NoSuchSplit(
            f"its README.md names {', '.join(patterns[split])}, which it does not have. Name the files as `path` instead of `split`."
        )
    return found


def _patterns(data_files: Json) -> Iterator[tuple[str, list[str]]]:
    """The patterns of each split, however they are written; without a split they are those of `train`."""
    if isinstance(data_files, dict):
        yield from ((str(split), _listed(paths)) for split, paths in data_files.items())
    elif isinstance(data_files, list) and all(isinstance(each, dict) for each in data_files):
        yield from ((str(each["split"]), _listed(each["path"])) for each in data_files)
    else:
        yield "train", _listed(data_files)


def _listed(paths: Json) -> list[str]:
    return [str(path) for path in paths] if isinstance(paths, list) else [str(paths)]


def _expression(pattern: str) -> str:
    """A glob as a regular expression: `**/` is any folders, `*` any part of one name."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(meanings.get(part, re.escape(part)) for part in parts)


def _by_name(split: str, config: str | None, names: Iterable[str]) -> list[str]:
    """Files whose path has the split as a word, such as `data/train-00000-of-00001.parquet` or `sst2/train/0000.parquet`."""
    files = [name for name in names if _is_data(name) and (config is None or config in PurePosixPath(name).parts[:-1])]
    word = re.compile(rf"(?<![a-z0-9]){re.escape(split.lower())}(?![a-z0-9])")
    found = [name for name in files if word.search(name.lower())]
    if not found:
        some = ", ".join(files[:8]) or "no file of a known format"
        raise NoSuchSplit(
            f"no file is named after it. There is: {some}. Name files as `path`, or pin the commit of the branch refs/convert/parquet, which has all splits."
        )
    if partial := next((name for name in found if "partial-" in name), None):
        raise NoSuchSplit(
            f"{partial} is a part of the split: the hub converts only the beginning of large datasets. Pin a commit of the branch main."
        )
    folders = {word.split(str(PurePosixPath(name).parent).lower() + "/")[0] for name in found}
    if len(folders) > 1:
        raise NoSuchSplit(
            f"files of several folders are named after it: {', '.join(found[:4])}. Name one as `config`, or the files as `path`."
        )
    return found


def _is_data(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        PurePosixPath(path.stem if path.suffix in COMPRESSED else path.name).suffix.lower() in FORMATS and path.name != "dataset_infos.json"
    )
