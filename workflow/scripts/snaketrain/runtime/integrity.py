"""Whether files are what the manifest of their stage promises, by digest.

A digest is taken once and kept beside the manifest, in `.digests.json`, until the file's size, times or inode change. A stage
verifies what it reads; the workflow looks at all results when it starts, and makes again what is missing or was changed.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from snaketrain.runtime.digest_cache import Remembered, stamp
from snaketrain.runtime.manifests import Manifest, file_digest

MISSING, CHANGED = "is missing", "is not what was written"


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Of files that a stage has just made."""
    remembered = kept_in(folder)
    found = {name: remembered.of(folder / name, file_digest, name, ours=True) for name in names}
    remembered.found = {name: entry for name, entry in remembered.found.items() if name in found}
    remembered.save()
    return found


def adopt(folder: Path, known: Mapping[str, str]) -> None:
    """Remember digests of files that were just copied from verified ones, so that nobody reads the copies again."""
    remembered = kept_in(folder)
    remembered.found.update({name: [stamp((folder / name).stat()), digest] for name, digest in known.items()})
    remembered.changed = True
    remembered.save()


def verify(*manifests: Manifest, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """End with a message if a file that is about to be read is not what its stage wrote."""
    for manifest in manifests:
        if found := damage(manifest, wanted):
            raise SystemExit(f"{described(manifest, found)} Start snakemake again: it runs {manifest.stage} first, which makes it anew.")


def described(manifest: Manifest, found: dict[str, str]) -> str:
    """The first of the damaged files, and how many more there are."""
    name, what = next(iter(found.items()))
    more = f" (and {len(found) - 1} more files)" if len(found) > 1 else ""
    return f"{manifest.folder / name}: {what}{more}."


def damage(manifest: Manifest, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, str]:
    """What is wrong with which files; nothing if all are there and as they were written."""
    remembered, found = kept_in(manifest.folder), {}
    for name, promised in manifest.files.items():
        if wanted(name):
            try:
                digest = remembered.of(manifest.folder / name, file_digest, name)
            except OSError as error:
                found[name] = MISSING if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
                continue
            if digest != promised:
                found[name] = CHANGED
    remembered.save()
    return found


def kept_in(folder: Path) -> Remembered:
    return Remembered(folder / ".digests.json", "sha256")
