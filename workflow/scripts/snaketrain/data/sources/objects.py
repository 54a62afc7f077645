"""Files at an address such as s3://bucket/folder/*.jsonl, of an object store or any other file system that fsspec knows.

Credentials and further options are those of the file system: of its environment variables (AWS_ACCESS_KEY_ID, FSSPEC_S3_ENDPOINT_URL) or of
its files in the home folder. They are in no setting.
"""

import fcntl
import importlib.util
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from snaketrain.config.errors import nearest
from snaketrain.runtime.credentials import hidden, resolved
from snaketrain.runtime.file_systems import explained
from snaketrain.runtime.manifests import digest
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


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
        paths = threads.map(lambda each: download(files, each, folder), wanted)
        return {each.name: path for each, path in zip(wanted, paths, strict=True)}


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

FOLDER = "SNAKETRAIN_CACHE"  # the environment variable
LOCK = "lock"
COPY = re.compile(r"[0-9a-f]{16}(\.part)?")  # the name of a copy: the folder may have been there before, with other files


class CachedFiles:
    """The files at an address such as `s3://bucket/shards/*.jsonl`.

    `open` copies a file to this node unless another process has done so, and removes those that were used longest ago, so that all
    copies together take at most `gigabytes`. A file that is removed while it is being read is read to its end.
    """

    def __init__(self, address: str, gigabytes: float = 10.0, folder: str | Path | None = None):
        self.address, self.most_bytes = address, int(gigabytes * 1e9)
        self.folder = Path(folder or os.environ.get(FOLDER) or f"{tempfile.gettempdir()}/snaketrain-cache-{os.getuid()}")
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
        """The content of a file."""
        wanted = self.files[name]
        with suppress(FileNotFoundError):
            return self._opened(wanted)
        with self._locked():
            with suppress(FileNotFoundError):  # another process has copied it meanwhile
                return self._opened(wanted)
            self._make_room(wanted.size or 0)
            self._download(wanted)
            return self._opened(wanted)

    def _opened(self, wanted: StoredFile) -> BinaryIO:
        path = self.folder / wanted.key
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        with suppress(FileNotFoundError):
            os.utime(path)  # it is the one used last
        return file

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process of the node at a time. The lock ends with the process that holds it, however that ends."""
        self._make_folder()
        with open(self.folder / LOCK, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():  # another user could have put other files there under the names of these
            raise SystemExit(f"{self.folder}: belongs to another user. Name another folder in {FOLDER}.")

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

    def _download(self, wanted: StoredFile) -> None:
        try:
            download(open_store(self.address)[0], wanted, self.folder)
        except Unreachable as error:
            full = explained(error, self.folder)
            raise (self._error(str(error)) if full is error else full) from None

    def _error(self, problem: str) -> SystemExit:
        return SystemExit(hidden(f"{self.address}: {problem}. Check the address, the network, and the credentials in the environment."))
