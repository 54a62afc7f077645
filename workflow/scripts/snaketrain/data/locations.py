"""Which files there are at a path of this machine, or at an address such as s3://bucket/folder/*.jsonl.

Each entry of a local folder is a file to be read, is left out for a reason that is told, or is refused.
"""

import errno
import fcntl
import importlib.util
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from snaketrain.config.errors import nearest
from snaketrain.runtime.credentials import hidden, resolved
from snaketrain.runtime.file_systems import explained
from snaketrain.runtime.manifests import digest
from snaketrain.runtime.strict_json import JsonObject, shortened

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


EVERYTHING = ("**", "*")  # the pattern of a folder

HIDDEN = "hidden, as its name begins with a dot"
COMPILED = "compiled code"
OTHER_CASE = "meets the pattern but for upper and lower case"
FOLDER = "a folder, whose files the pattern does not name (`**` does)"
READ_ELSEWHERE = "a link to a folder that is read under its own name"
SPECIAL = {stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISBLK: "a device", stat.S_ISCHR: "a device"}


@dataclass
class FoundFiles:
    """What there is at a place."""

    files: dict[str, Path] = field(default_factory=dict)  # by the name relative to where the search begins, sorted
    left_out: dict[str, str] = field(default_factory=dict)  # the reason by name
    refused: dict[str, str] = field(default_factory=dict)  # what is wrong, by name

    @property
    def by_reason(self) -> dict[str, list[str]]:
        """The names of what was left out."""
        found: dict[str, list[str]] = {}
        for name, reason in sorted(self.left_out.items()):
            found.setdefault(reason, []).append(name)
        return found

    def told(self) -> list[str]:
        """A line for each reason, with the number of entries and the first names."""
        return [f"{len(names)} left out: {shortened(list(map(repr, names)), most=8)}: {reason}" for reason, names in self.by_reason.items()]

    def facts(self) -> JsonObject:
        """For a manifest: how many were left out, by reason."""
        return {"left_out": {reason: len(names) for reason, names in self.by_reason.items()}} if self.left_out else {}


def find(base: Path, pattern: tuple[str, ...] = EVERYTHING) -> FoundFiles:
    """What meets a pattern below `base`, an absolute path. Links are followed, also those to folders."""
    walk = _Walk(base, (*pattern, "*") if pattern[-1] == "**" else pattern)
    walk.enter(base, ())
    walk.found.files = dict(sorted(walk.found.files.items(), key=lambda item: Path(item[0])))
    return walk.found


def problem_of(path: Path) -> str | None:
    """Why a path is no file that can be read, as a complete clause; None for a file and for a folder."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if path.is_symlink() and error.errno in (errno.ENOENT, errno.ENOTDIR):
            return f"a link to {os.readlink(path)}, which does not exist"
        return "a link that leads back to itself" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
    return _special(mode) or (None if os.access(path, os.R_OK) else "you have no permission to read it")


def passed_over(name: str) -> str | None:
    """Why a name is passed over in a folder, unless a pattern spells its dot."""
    return HIDDEN if name.startswith(".") else COMPILED if name == "__pycache__" else None


class _Walk:
    def __init__(self, base: Path, pattern: tuple[str, ...]):
        self.base, self.pattern, self.found = Path(os.path.realpath(base)), pattern, FoundFiles()
        self.any_case = tuple(part.lower() for part in pattern)
        self.entered: set[Path] = set()

    def enter(self, folder: Path, above: tuple[str, ...]) -> None:
        self.entered.add(Path(os.path.realpath(folder)))
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: (entry.is_symlink(), entry.name))  # links last: own names come first
        except OSError as error:
            self.found.refused["/".join(above) or str(folder)] = f"a folder that cannot be listed: {error.strerror}"
            return
        for entry in entries:
            self._take(Path(entry.path), (*above, entry.name))

    def _take(self, path: Path, names: tuple[str, ...]) -> None:
        name, wanted = "/".join(names), _meets(self.pattern, names)
        may_be_folder = path.is_dir() or not path.exists()  # a broken link could have led to one
        leads_on = may_be_folder and _may_lead_to(self.pattern, names)
        if not wanted and not leads_on:
            lower = tuple(map(str.lower, names))
            if _meets(self.any_case, lower) or (may_be_folder and _may_lead_to(self.any_case, lower)):
                self.found.left_out[name] = OTHER_CASE
        elif reason := self._passed_over(names[-1]):
            self.found.left_out[name] = reason
        elif any("\ud800" <= character <= "\udfff" for character in name):  # what Python writes for bytes that it cannot decode
            self.found.refused[name] = "a name that is not UTF-8"
        elif path.is_dir():
            self._take_folder(path, names, leads_on)
        elif special := _special(path.stat().st_mode) if path.exists() else None:
            self.found.left_out[name] = special
        elif problem := problem_of(path):
            self.found.refused[name] = problem
        elif wanted:
            self.found.files[name] = path

    def _take_folder(self, path: Path, names: tuple[str, ...], leads_on: bool) -> None:
        target, name = Path(os.path.realpath(path)), "/".join(names)
        within = target.relative_to(self.base).parts if target.is_relative_to(self.base) else None
        entered_later = within is not None and _may_lead_to(self.pattern, within) and not any(map(self._passed_over, within))
        if not leads_on:
            self.found.left_out[name] = FOLDER
        elif target in self.entered or (path.is_symlink() and entered_later):
            self.found.left_out[name] = READ_ELSEWHERE
        elif self.base.is_relative_to(target):
            self.found.refused[name] = f"a link to {target}, which contains the folder that is read"
        else:
            self.enter(path, names)

    def _passed_over(self, name: str) -> str | None:
        spelt = any(part.startswith((".", "__")) and fnmatchcase(name, part) for part in self.pattern)
        return None if spelt else passed_over(name)


def _meets(pattern: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Whether the path of an entry, in its parts, meets a pattern, in which `**` means any folders."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_meets(pattern[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _meets(pattern[1:], names[1:])


def _may_lead_to(pattern: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Whether a folder may contain what meets a pattern."""
    for part, name in zip(pattern, names, strict=False):
        if part == "**":
            return True
        if not fnmatchcase(name, part):
            return False
    return len(names) < len(pattern)


def _special(mode: int) -> str | None:
    return next((f"{kind}, not a file" for is_kind, kind in SPECIAL.items() if is_kind(mode)), None)


# --- Files at an address, of an object store or any other file system that fsspec knows.
#
# Credentials and further options are those of the file system: of its environment variables (AWS_ACCESS_KEY_ID, FSSPEC_S3_ENDPOINT_URL) or of
# its files in the home folder. They are in no setting.

VERSION_FIELDS = ("ETag", "etag", "VersionId", "md5Hash", "crc32c", "LastModified", "last_modified", "updated", "mtime", "created")
AT_ONCE = 8  # downloads


@dataclass(frozen=True)
class StoredFile:
    name: str  # relative to the folder that the address names, or to the first wildcard in it
    path: str  # in its file system
    size: int | None
    key: str  # differs if the content does, as far as the file system says


class Unreachable(Exception):
    """An address whose files cannot be listed or read."""


def address_problems(address: str) -> Iterator[str]:
    """What is wrong with the scheme of an address; nothing is connected to."""
    from fsspec.registry import known_implementations

    scheme, separator, _ = address.partition("://")
    if not separator:
        yield "the variable holds no address such as s3://bucket/folder. Write a path of files on this machine out: it is no secret"
        return
    if scheme not in known_implementations:
        yield f"`{scheme}://` is unknown{nearest(scheme, sorted(known_implementations))}"
        return
    package = known_implementations[scheme]["class"].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        yield f"`{scheme}://` needs the Python package {package}, which is not installed. Install it into this environment."


def stored_files(address: str) -> dict[str, StoredFile]:
    """All files at the address of a file or folder, or that match a glob; by name."""
    try:
        files, root = open_store(address)
        found = _listed(files, root)
    except Exception as error:  # each file system has its own
        raise Unreachable(f"{type(error).__name__}: {error}") from error
    return {name: each for name, each in sorted(found.items()) if ".." not in PurePosixPath(name).parts}


def open_store(address: str) -> "tuple[AbstractFileSystem, str]":
    """The file system, and the path in it. Made again in each process, since connections do not survive a fork."""
    import fsspec

    files, root = fsspec.core.url_to_fs(resolved(address))
    return files, str(root).rstrip("/")


def _listed(files: "AbstractFileSystem", root: str) -> dict[str, StoredFile]:
    if files.isfile(root):
        name = PurePosixPath(root.partition("?")[0]).name
        return {name: _stored(name, root, files.info(root))}
    listed: dict[str, JsonObject] = files.glob(root, detail=True) if has_magic(root) else files.find(root, detail=True)
    parts = root.split("/")
    fixed = "/".join(parts[: next((number for number, part in enumerate(parts) if has_magic(part)), len(parts))])
    names = {path: path.removeprefix(fixed).lstrip("/") for path, info in listed.items() if info.get("type") == "file"}
    return {name: _stored(name, path, listed[path]) for path, name in names.items()}


def _stored(name: str, path: str, info: dict[str, Any]) -> StoredFile:
    version = [str(info[field]) for field in VERSION_FIELDS if info.get(field) is not None]
    return StoredFile(name, path, info.get("size"), digest(path, info.get("size"), version))


def download_all(address: str, wanted: Iterable[StoredFile], folder: Path) -> dict[str, Path]:
    """Copies by name. What an interrupted attempt has copied completely is not copied again."""
    files, _ = open_store(address)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(wanted)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return dict(zip((each.name for each in wanted), threads.map(lambda each: download(files, each, folder), wanted), strict=True))


def download(files: "AbstractFileSystem", wanted: StoredFile, folder: Path) -> Path:
    target, part = folder / wanted.key, folder / f"{wanted.key}.part"
    if target.is_file():
        return target
    try:
        files.get_file(wanted.path, str(part))
    except Exception as error:
        raise Unreachable(f"{wanted.name}: {type(error).__name__}: {error}") from error
    if wanted.size is not None and part.stat().st_size != wanted.size:
        raise Unreachable(f"{wanted.name}: {part.stat().st_size} bytes were read instead of {wanted.size}; was it replaced meanwhile?")
    os.replace(part, target)
    return target


# --- Files of an object store for a dataset class of yours, through a folder of bounded size that the processes of a node share.

CACHE_FOLDER = "SNAKETRAIN_CACHE"  # the environment variable
LOCK = "lock"
COPY = re.compile(r"[0-9a-f]{16}(\.part)?")  # the name of a copy: the folder may have been there before, with other files


class CachedFiles:
    """The files at an address such as `s3://bucket/shards/*.jsonl`.

    `open` copies a file to this node unless another process has done so, and removes those that were used longest ago, so that all
    copies together take at most `gigabytes`. A file that is removed while it is being read is read to its end.
    """

    def __init__(self, address: str, gigabytes: float = 10.0, folder: str | Path | None = None):
        self.address, self.most_bytes = address, int(gigabytes * 1e9)
        self.folder = Path(folder or os.environ.get(CACHE_FOLDER) or f"{tempfile.gettempdir()}/snaketrain-cache-{os.getuid()}")
        self._make_folder()
        try:
            self.files = stored_files(address)
        except Unreachable as error:
            raise self._error(str(error)) from None
        if not self.files:
            raise self._error("there is no file")
        if too_large := [each.name for each in self.files.values() if (each.size or 0) > self.most_bytes]:
            raise self._error(
                f"{too_large[0]} is larger than the cache may be, {gigabytes} GB. Allow more `gigabytes`, or write smaller files"
            )

    @property
    def names(self) -> list[str]:
        """Sorted, and relative to the folder that the address names, or to the first wildcard in it."""
        return list(self.files)

    def open(self, name: str) -> BinaryIO:
        wanted = self.files[name]
        with suppress(FileNotFoundError):
            return self._opened(wanted)
        self._make_folder()
        with open(self.folder / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process of the node at a time, until it closes the file or ends
            with suppress(FileNotFoundError):  # another process has copied it meanwhile
                return self._opened(wanted)
            self._make_room(wanted.size or 0)
            try:
                download(open_store(self.address)[0], wanted, self.folder)
            except Unreachable as error:
                full = explained(error, self.folder)
                raise (self._error(str(error)) if full is error else full) from None
            return self._opened(wanted)

    def _opened(self, wanted: StoredFile) -> BinaryIO:
        path = self.folder / wanted.key
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        with suppress(FileNotFoundError):
            os.utime(path)  # it is the one used last
        return file

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():  # another user could have put other files there under the names of these
            raise SystemExit(f"{self.folder}: belongs to another user. Name another folder in {CACHE_FOLDER}.")

    def _make_room(self, size: int) -> None:
        copies = [path for path in self.folder.iterdir() if COPY.fullmatch(path.name)]
        for path in copies:
            if path.suffix == ".part":  # of a process that was killed, since this one holds the lock
                path.unlink()
        used = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in copies if path.suffix != ".part")
        free = self.most_bytes - sum(length for _, length, _ in used)
        for _, length, path in used:
            if free >= size:
                break
            path.unlink()
            free += length

    def _error(self, problem: str) -> SystemExit:
        return SystemExit(hidden(f"{self.address}: {problem}. Check the address, the network, and the credentials in the environment."))
