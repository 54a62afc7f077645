"""The interface between stages: every stage ends by writing one `manifest.json`, atomically."""

import hashlib
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from snaketrain.runtime import strict_json
from snaketrain.runtime.strict_json import Json, JsonObject

BLOCK = 1 << 20
SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class Manifest:
    """A stage's settings, inputs, files, and facts for later stages and readers."""

    stage: str
    identity: str  # digest of settings, code and inputs: the same identity means the same result
    settings: list[str]  # `key=json`, the strings that Snakemake compares
    inputs: dict[str, str]  # role -> content digest of the manifest that was read
    files: dict[str, str]  # path relative to the manifest -> sha256
    facts: JsonObject = field(default_factory=dict)
    started: float = 0.0
    finished: float = 0.0
    logs: dict[str, tuple[int, str]] = field(default_factory=dict)  # files that grow: the bytes that they had, and their sha256; no result
    loaded: dict[str, str] = field(default_factory=dict)  # own code, the files and the variables that it read -> digest; see loaded_code.py
    recorded: list[str] = field(default_factory=list)  # part of the identity: what had changed of it since the result before
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that it was computed with, as far as they are recorded
    path: str = field(default="", compare=False)  # where it was read from; not written

    @property
    def folder(self) -> Path:
        return Path(self.path).parent

    @property
    def content(self) -> str:
        """Digest of what the stage made, independent of when and where."""
        return digest(self.files, self.facts)

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


def write_json(path: str | Path, content: Json, mode: int = 0o666) -> None:
    write_text(path, strict_json.dumps(content, indent=2, ensure_ascii=False) + "\n", mode)


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
        return Manifest(**strict_json.checked(Path(path).read_text(encoding="utf-8")), path=str(path))
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"{path}: not a readable manifest ({error}). Run the stage that writes it again.") from None


def write_manifest(path: str | Path, manifest: Manifest) -> None:
    content = asdict(manifest) | {"finished": time.time()}
    del content["path"]
    write_checked(path, content)
