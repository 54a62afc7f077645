"""The interface between stages: every stage ends by writing one `manifest.json`, atomically, with the digests of its files.

A digest is computed once and cached beside the manifest, in `.digests.json`, until the file's size, times or inode change. A
stage verifies what it reads; the workflow checks all results when it starts, and reruns stages whose files are missing or changed.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from snaketrain.runtime import strict_json
from snaketrain.runtime.strict_json import Json, JsonObject

BLOCK = 1 << 20
SECONDS_BETWEEN_LINES = 5.0
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Manifest:
    """A stage's settings, inputs, files, and facts for later stages and readers."""

    stage: str
    identity: str  # digest of settings, code and inputs: the same identity means the same result
    settings: JsonObject  # the sections of the configuration that Snakemake compares
    inputs: dict[str, str]  # role -> content digest of the manifest that was read
    files: dict[str, str]  # path relative to the manifest -> sha256
    facts: JsonObject = field(default_factory=dict)
    started: float = 0.0
    finished: float = 0.0
    logs: dict[str, tuple[int, str]] = field(default_factory=dict)  # files that grow: the bytes that they had, and their sha256; no result
    loaded: dict[str, str] = field(default_factory=dict)  # own code, the files and the variables that it read -> digest; see loaded_code.py
    recorded: dict[str, str] = field(default_factory=dict)  # part of the identity: what had changed of it since the result before
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that it was computed with, as far as they are recorded
    path: str = field(default="", compare=False)  # where it was read from; not written

    @property
    def folder(self) -> Path:
        return Path(self.path).parent

    @property
    def content(self) -> str:
        """Digest of what the stage made, independent of when and where."""
        return digest(self.files, self.facts)

    @property
    def model_files(self) -> Path:
        """The folder of a fetched model, or of the one that a run has selected."""
        return self.folder / ("model" if self.stage == "select_checkpoint" else "files")

    def file(self, name: str) -> Path:
        return (self.folder / name).resolve()


def digest(*parts: object) -> str:
    """A short digest of anything that JSON can express."""
    text = strict_json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: str | Path, until: int | None = None) -> str:
    """The sha256 of a file, or of its first bytes `until` there; prints the progress if it takes long."""
    with open(path, "rb") as file:
        size, last_line = os.fstat(file.fileno()).st_size, time.monotonic()
        found = hashlib.sha256()
        while block := file.read(BLOCK if until is None else min(BLOCK, until - file.tell())):
            found.update(block)
            if time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                print(f"{path}: {file.tell() / 1e9:.1f} of {size / 1e9:.1f} GB read for its digest", file=sys.stderr, flush=True)
        return found.hexdigest()


def content_digest(path: Path) -> str:
    """Of a tokenizer the digest of its JSON, whose layout means nothing: a newline that an editor adds must rerun nothing."""
    if path.name == TOKENIZER:
        with suppress(ValueError):  # a damaged file has a digest, too
            pairs = json.loads(path.read_bytes(), object_pairs_hook=list)  # keeps the order, and keys that stand there twice
            return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    return file_digest(path)


def write_text(path: str | Path, text: str, mode: int = 0o666) -> None:
    """Write a file atomically: a reader finds the old or the new one, never half of it. The umask applies to `mode`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: str | Path, content: Json) -> None:
    write_text(path, strict_json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_checked(path: str | Path, content: JsonObject, *, indent: int | None = 2, mode: int = 0o666) -> None:
    """Write what is read back by `read_checked`, which notices if it was changed in between."""
    write_text(path, strict_json.with_checksum(content, indent), mode)


def read_checked(path: str | Path) -> JsonObject:
    """An OSError or a ValueError if it is missing or damaged."""
    return strict_json.checked(Path(path).read_text(encoding="utf-8"), strict_json.loads)


def read_if_intact(path: str | Path, instead: str, of: str | None = None) -> JsonObject | None:
    """A file that can be made again; None if it is missing, damaged, or a copy of one that is about something else.

    `of`: what it is about, as it says itself; `instead`: what happens without it, for the message.
    """
    try:
        content = read_checked(path)
        if content.get("of") != of:
            raise ValueError("it is a copy of another one")
        return content
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        print(f"warning: {path}: cannot be used ({error}); {instead}", file=sys.stderr, flush=True)
        return None


def read_manifest(path: str | Path) -> Manifest:
    try:
        made = Manifest(**strict_json.checked(Path(path).read_text(encoding="utf-8")), path=str(path))
        if not isinstance(made.settings, dict):
            raise ValueError("it is of an earlier version of snaketrain")
        return made
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"{path}: not a readable manifest ({error}). Run the stage that writes it again.") from None


def write_manifest(path: str | Path, manifest: Manifest) -> None:
    content = asdict(manifest) | {"finished": time.time()}
    del content["path"]
    write_checked(path, content)


OWN_FILES = Path(".snakemake/snaketrain-files.json")  # digests of the user's own files, which each start of the workflow compares
SECONDS_UNTIL_TRUSTED = 2.0  # a file can change twice within the resolution of its timestamp, and keep its size


class DigestCache:
    """A file is read again if its size, times or inode have changed, and every file if `version` has."""

    def __init__(self, store: Path, version: str):
        self.store, self.version, self.changed = store, version, False
        self.found: dict[str, list[Json]] = {}  # a file's stamp, and the result of reading it
        kept = read_if_intact(store, "the files beside it are read again")
        if kept and kept["version"] == version:
            self.found = kept["found"]

    def known(self, path: Path, name: str | None = None) -> bool:
        """Whether the file need not be read again; its key is its path unless a name is given."""
        entry = self.found.get(name or str(path))
        return entry is not None and entry[0] == stamp(path.stat())

    def of(self, path: Path, read: Callable[[Path], Json], name: str | None = None, ours: bool = False) -> Json:
        """What `read` returns for the file, a JSON value; `ours`: no other process writes to it now."""
        before = path.stat()
        if self.known(path, name):
            return self.found[name or str(path)][1]
        found = read(path)
        settled = ours or time.time() - before.st_mtime > SECONDS_UNTIL_TRUSTED
        if settled and stamp(path.stat()) == stamp(before):
            self.found[name or str(path)] = [stamp(before), found]
            self.changed = True
        return found

    def save(self) -> None:
        if self.changed and self.store.parent.is_dir():
            try:
                write_checked(self.store, {"version": self.version, "found": self.found}, indent=None)
            except OSError:  # a read-only folder or a full disk
                return
            self.changed = False


def stamp(status: os.stat_result) -> list[int]:
    """Differs after every write: a program can reset a file's modification time, but not `st_ctime`."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def stamp_of(path: str | Path) -> list[int] | None:
    """None if there is no such file, or it cannot be reached."""
    try:
        return stamp(os.stat(path))
    except OSError:
        return None


MISSING, CHANGED = "is missing", "is not what was written"


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The digests of files that a stage has just written, or linked: then the workflow has read them already."""
    cache, read_before = digest_cache(folder), DigestCache(OWN_FILES, "sha256")

    def read(path: Path) -> str:
        target = path.readlink() if path.is_symlink() else path
        return str(read_before.found[str(target)][1]) if read_before.known(target) else content_digest(path)

    found = {name: str(cache.of(folder / name, read, name, ours=True)) for name in names}
    cache.found = {name: entry for name, entry in cache.found.items() if name in found}
    cache.save()
    return found


def log_digests(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Of files that only grow: how long they are, and the digest of that."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    return {name: (size, file_digest(folder / name, size)) for name, size in sizes.items()}


def read_result(manifest: Manifest, name: str) -> JsonObject:
    """A JSON file of a stage's results, whose digest is checked as it is read."""
    path = manifest.folder / name
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.files.get(name):
            raise ValueError(CHANGED)
        found: JsonObject = strict_json.loads(content)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}. Start snakemake again: it reruns {manifest.stage} first, which restores it.") from None
    return found


def adopt(folder: Path, known: Mapping[str, str]) -> None:
    """Cache digests of files that were just copied from verified ones, so that the copies are not read again."""
    cache = digest_cache(folder)
    cache.found.update({name: [stamp((folder / name).stat()), digest] for name, digest in known.items()})
    cache.changed = True
    cache.save()


def verify(*manifests: Manifest, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Exit with a message if a file that is about to be read is missing or changed."""
    for manifest in manifests:
        if found := damage(manifest, wanted):
            raise SystemExit(f"{described(manifest, found)} Start snakemake again: it reruns {manifest.stage} first, which restores it.")


def described(manifest: Manifest, found: dict[str, str]) -> str:
    """The first of the damaged files and the number of others."""
    name, what = next(iter(found.items()))
    more = f" (and {len(found) - 1} more files)" if len(found) > 1 else ""
    return f"{manifest.folder / name}: {what}{more}."


def damage(manifest: Manifest, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, str]:
    """The problem of each damaged file; empty if all exist and are unchanged."""
    cache, found = digest_cache(manifest.folder), {}
    logs = {name: (f"{name} until {size}", sha256, size) for name, (size, sha256) in manifest.logs.items()}
    files = {name: (name, sha256, None) for name, sha256 in manifest.files.items()}
    for name, (key, expected, until) in (logs | files).items():
        if wanted(name):
            try:
                digest = cache.of(manifest.folder / name, partial(file_digest, until=until) if until else content_digest, key)
            except OSError as error:
                found[name] = MISSING if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
                continue
            if digest != expected:
                found[name] = CHANGED
    cache.save()
    return found


MODEL = "model/"  # in the folder of a selection


def selected_model(results: Path, run: str) -> tuple[Manifest, list[str]]:
    """The selection of a run, and its files of the model; exits if one of them is missing or changed."""
    path = results / "runs" / run / "selection/manifest.json"
    if not path.exists():
        there = ", ".join(sorted(each.parents[1].name for each in results.glob("runs/*/selection/manifest.json"))) or "none"
        raise SystemExit(f"{path}: is not there, so {run!r} has selected no model. Runs that have: {there}.")
    manifest = read_manifest(path)
    if found := damage(manifest, lambda name: name.startswith(MODEL)):
        raise SystemExit(f"{described(manifest, found)} Start snakemake again, which restores it.")
    card = f"{MODEL}README.md"  # with the results of later stages, so it is not one of selection's files
    return manifest, [name for name in manifest.files if name.startswith(MODEL)] + [card] * (manifest.folder / card).exists()


def digest_cache(folder: Path) -> DigestCache:
    return DigestCache(folder / ".digests.json", "sha256")


PRIVATE_FILE, PRIVATE_FOLDER = 0o640, 0o750


def private(path: str, flags: int) -> int:
    """An `opener` for `open`."""
    return os.open(path, flags, PRIVATE_FILE)


def make_private_folder(path: str | Path) -> None:
    Path(path).mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
