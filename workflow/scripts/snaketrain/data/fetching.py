"""Puts a source's files into a folder, and verifies them.

Local files and those of installed packages are linked; files of the Hugging Face hub and of object stores are downloaded.
"""

import fnmatch
import glob
import importlib.util
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Source
from snaketrain.data.formats import format_of
from snaketrain.data.locations import FoundFiles, Unreachable, download_all, find, passed_over, problem_of, stored_files
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.file_systems import explained, let_hub_do_without_locks
from snaketrain.runtime.manifests import file_digest
from snaketrain.runtime.secret_forms import without_secrets
from snaketrain.runtime.strict_json import Json, JsonObject, shortened

PICKLED_OR_FOREIGN_WEIGHTS = ("*.bin", "*.h5", "*.onnx", "*.ot", "*.msgpack")


def fetch(source: Source, folder: Path) -> FoundFiles:
    """Replace the folder's content with the source's files, verified."""
    building = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    cache = folder.with_name(f".{folder.name}.download")
    if source.hub:
        found = _download(source, source.hub, cache, building)
    elif source.has_address:
        found = _download_objects(source, str(source.path), cache, building)
    else:
        found = local_files(source)
    for name, file in found.files.items():
        (building / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_remote:
            os.replace(file, building / name)
        else:
            (building / name).symlink_to(file)
    shutil.rmtree(cache, ignore_errors=True)
    verify(source, {name: building / name for name in found.files})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(building, folder)
    return FoundFiles({name: folder / name for name in sorted(found.files)}, found.left_out)


def report(found: FoundFiles, what: str, source: Source) -> None:
    checked = f", {len(source.sha256)} verified" if source.sha256 else ""
    print(f"{what}: {len(found.files)} files of {describe(source)}{checked}", *found.told(), sep="\n  ", flush=True)


def source_files(source: Source) -> list[Path]:
    """The files of a local path or an installed package, as absolute paths; nothing is imported or opened."""
    return list(named_files(source).values())


def misnamed_digests(source: Source, names: Iterable[str]) -> list[str]:
    """Problems with the file names in `source.sha256`, for a source with files of these `names`."""
    names = list(names)
    known = {*names, *(PurePosixPath(name).name for name in names)}
    return [
        f"sha256 names {name!r}, but {describe(source)} has no such file{nearest(name, sorted(known))} "
        f"It has: {shortened(names, most=8)}. Correct the name in `sha256`, or the source."
        for name in source.sha256
        if not any(_means(name, file) for file in names)
    ]


def _means(name: str, file: str) -> bool:
    return name in (file, PurePosixPath(file).name)


def verify(source: Source, files: dict[str, Path]) -> None:
    """Exit with a message if a file of `source.sha256` is missing or differs."""
    if problems := misnamed_digests(source, files):
        raise SystemExit("\n".join(problems))
    for name, expected in source.sha256.items():
        same_name = [file for relative, file in files.items() if _means(name, relative)]
        for file in same_name:
            found = file_digest(file)
            if found != expected.strip().lower():
                raise SystemExit(
                    f"{file.resolve()}: not the expected file.\n  expected sha256 {expected}\n  found    sha256 {found}\n"
                    f"It came from {describe(source)}. If the change was intended, put the digest found into the "
                    "configuration; if not, restore the file."
                )


def describe(source: Source) -> str:
    """Where the files come from, for messages."""
    if source.from_run:
        return f"run {source.from_run}"
    path = source.path and without_secrets(source.path)
    path = path if path is None or len(path) <= 200 else f"{path[:100]}...{path[-50:]}"
    inside = f", path {path!r}" if path else ""
    inside += f", split {source.split!r}" if source.split else ""
    inside += f" of {source.config!r}" if source.config else ""
    if source.hub:
        return f"hub repository {source.hub!r} at {source.revision}{inside}"
    if source.package:
        return f"package {source.package!r}{inside}"
    return f"address {path!r}" if source.has_address else f"path {path!r}"


def model_config(files: dict[str, Path]) -> Path | None:
    """A model's config.json among `named_files`; folders below it may have others, of a pooling layer and the like."""
    found = sorted((name for name in files if Path(name).name == "config.json"), key=lambda name: (len(Path(name).parts), name))
    return files[found[0]] if found else None


def named_files(source: Source) -> dict[str, Path]:
    """Absolute paths by the name that each file gets in the fetched folder, sorted."""
    return local_files(source).files


def local_files(source: Source) -> FoundFiles:
    """The files of a local path or an installed package, none of which is refused, and what is left out there."""
    if source.is_remote:
        raise ValueError(f"{describe(source)}: its files are only known after the download.")
    found = FoundFiles()
    try:
        root = _package_folder(source.package) if source.package else Path.cwd()
        given = Path(os.path.normpath(Path(source.path or ".").expanduser()))
        start = Path(os.path.normpath(root / given))
        if start.is_dir():
            found = find(start)
        elif os.path.lexists(start):
            problem = problem_of(start)
            found = FoundFiles(refused={start.name: problem}) if problem else FoundFiles({start.name: start})
        elif glob.has_magic(str(given)):  # the folders above `given` are no pattern, even if they contain wildcard characters
            wild = next(number for number, part in enumerate(given.parts) if glob.has_magic(part))
            fixed = root.joinpath(*given.parts[:wild])
            found = find(fixed, given.parts[wild:]) if fixed.is_dir() else found
    except (OSError, RuntimeError) as error:  # a name that is too long, the home of an unknown user, a folder without permission
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{describe(source)}: cannot be read ({reason}). Correct the path.") from None
    if found.refused:
        some = "; ".join(f"{name!r}: {problem}" for name, problem in list(found.refused.items())[:8])
        raise ValueError(
            f"{describe(source)}: {len(found.refused)} cannot be read: {some}. Repair or remove each, or name files by a pattern that leaves it out."
        )
    if not found.files:
        reasons = "".join(f"; {line}" for line in found.told())
        raise ValueError(f"{describe(source)}: no file there ({start}){reasons}{_near_path(start)}")
    return found


def _package_folder(package: str) -> Path:
    try:
        spec = importlib.util.find_spec(package.partition(".")[0])  # only a top-level package is located without an import
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"package {package!r}: not installed. Install it into this environment, or correct its name.")
    return Path(next(iter(spec.submodule_search_locations))).resolve().joinpath(*package.split(".")[1:])


def _left_out(names: Iterable[str]) -> dict[str, str]:
    """Those of a hub or a store that are passed over as they would be in a local folder."""
    reasons = {name: next(filter(None, map(passed_over, PurePosixPath(name).parts)), None) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def _download(source: Source, repository: str, cache: Path, building: Path) -> FoundFiles:
    """The wanted files of a hub repository, and what is left out; an interrupted download resumes."""
    import huggingface_hub

    let_hub_do_without_locks(building)
    try:
        listed = huggingface_hub.HfApi().list_repo_files(repo_id=repository, repo_type=source.hub_type, revision=source.revision)
        left_out = _left_out(listed)
        names = [name for name in listed if name not in left_out]
        if source.split:
            wanted, left_out = split_files(source.split, source.config, names, _metadata(source, names, cache)), {}
        else:
            wanted, other_weights = _wanted(source, names)
            left_out = {name: reason for name, reason in left_out.items() if _is_asked_for(source, name)} | other_weights
        huggingface_hub.snapshot_download(
            repo_id=repository,
            repo_type=source.hub_type,
            revision=source.revision,
            allow_patterns=[glob.escape(name) for name in wanted],
            local_dir=str(cache),
        )
    except NoSuchSplit as error:
        raise ValueError(f"{describe(source)}: {error}") from None
    except ValueError:
        raise
    except Exception as error:
        if (explanation := explained(error, building)) is not error:
            raise explanation from None
        raise SystemExit(
            f"{describe(source)}: cannot be downloaded: {type(error).__name__}: {error}\n"
            "Check the names, the network, and HF_TOKEN for a private repository; or download the folder elsewhere and give its `path`."
        ) from None
    prefix = source.path.strip("/") + "/" if source.path and source.path.strip("/") not in wanted else ""
    return FoundFiles({name.removeprefix(prefix): cache / name for name in wanted}, left_out)


def _download_objects(source: Source, address: str, cache: Path, building: Path) -> FoundFiles:
    """The files at an address, and what is left out; an interrupted download resumes with the files that are missing."""
    try:
        stored = stored_files(address)
        left_out = _left_out(stored)
        found = {name: file for name, file in stored.items() if name not in left_out}
        if not found:
            raise ValueError(f"{describe(source)}: no file there. Correct the address.")
        return FoundFiles(download_all(address, found.values(), cache), left_out)
    except Unreachable as error:
        if isinstance(explanation := explained(error, building), SystemExit):
            raise explanation from None
        advice = "Check the address, the network, and the credentials in the environment."
        raise SystemExit(hidden(f"{describe(source)}: cannot be downloaded: {error}\n{advice}")) from None


def _metadata(source: Source, names: list[str], cache: Path) -> JsonObject:
    """The block at the beginning of a dataset's README.md, which may say which files make up which split."""
    import huggingface_hub

    if "README.md" not in names:
        return {}
    card = huggingface_hub.hf_hub_download(
        str(source.hub), "README.md", repo_type=source.hub_type, revision=source.revision, local_dir=str(cache)
    )
    return huggingface_hub.metadata_load(card) or {}


def _is_asked_for(source: Source, name: str) -> bool:
    path = (source.path or "").strip("/")
    return not path or name == path or name.startswith(path + "/") or fnmatch.fnmatch(name, path)


def _wanted(source: Source, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """The files that are downloaded, and those left out: the same weights in larger or unsafe formats."""
    path = (source.path or "").strip("/")
    wanted = [name for name in names if _is_asked_for(source, name)]
    if not wanted:
        raise ValueError(f"{describe(source)}: no such file{nearest(path, names)} The repository has: {shortened(names, most=8)}.")
    left_out: dict[str, str] = {}
    if source.hub_type == "model" and any(name.endswith(".safetensors") for name in wanted):
        others = [name for name in wanted if name != path and any(fnmatch.fnmatch(name, p) for p in PICKLED_OR_FOREIGN_WEIGHTS)]
        left_out = dict.fromkeys(others, "weights in another format, which the .safetensors have too")
    return [name for name in wanted if name not in left_out], left_out


def _near_path(path: Path) -> str:
    """A suggestion for the first part of the path that does not exist."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    if glob.has_magic(missing.name) or missing.exists() or not missing.parent.is_dir():
        return ". Correct the path."
    return nearest(missing.name, os.listdir(missing.parent)) + " Correct the path."


# --- Which files of a dataset repository make up a split: as its README.md declares, or else by their names.


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
    files = [
        name
        for name in names
        if format_of(path := Path(name), "auto") and path.name != "dataset_infos.json" and (config is None or config in path.parts[:-1])
    ]
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
