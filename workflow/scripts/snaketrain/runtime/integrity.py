"""Verifies files by the digests in the manifest of their stage.

A digest is computed once and cached beside the manifest, in `.digests.json`, until the file's size, times or inode change. A
stage verifies what it reads; the workflow checks all results when it starts, and reruns stages whose files are missing or changed.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from snaketrain.runtime import strict_json
from snaketrain.runtime.digest_cache import OWN_FILES, DigestCache, stamp
from snaketrain.runtime.manifests import Manifest, file_digest
from snaketrain.runtime.strict_json import JsonObject

MISSING, CHANGED = "is missing", "is not what was written"


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The digests of files that a stage has just written, or linked: then the workflow has read them already."""
    cache, read_before = digest_cache(folder), DigestCache(OWN_FILES, "sha256")

    def read(path: Path) -> str:
        target = path.readlink() if path.is_symlink() else path
        return str(read_before.found[str(target)][1]) if read_before.known(target) else file_digest(path)

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
                digest = cache.of(manifest.folder / name, partial(file_digest, until=until) if until else file_digest, key)
            except OSError as error:
                found[name] = MISSING if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
                continue
            if digest != expected:
                found[name] = CHANGED
    cache.save()
    return found


def digest_cache(folder: Path) -> DigestCache:
    return DigestCache(folder / ".digests.json", "sha256")
