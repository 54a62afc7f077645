"""The user's own files that results depend on: code that the settings name, and the content of local data and models."""

import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.references import find
from snaketrain.config.schema import Data, Examples, Source
from snaketrain.data.fetching import named_files
from snaketrain.runtime.manifests import OWN_FILES, DigestCache, digest, file_digest
from snaketrain.runtime.strict_json import Json

AT_ONCE = 4  # files that are read for their digests


def of_splits(data: Data) -> dict[str, Examples]:
    return data.sources


def class_files(named: Iterable[tuple[str, str | None]]) -> list[Path]:
    """The files of named code that may change; installed packages do not."""
    return [file for use, place in named if (file := find(use, place)[0])]


def dataset_classes(data: Data) -> list[tuple[str, None]]:
    return [(source.use, None) for source in of_splits(data).values() if source.use]


def uses_in(value: Json) -> list[str]:
    """The names of code in nested arguments: each full name in a `{use, arguments}`, and each name in a file, wherever it is."""
    if isinstance(value, str):
        return [value] if ".py:" in value else []
    if isinstance(value, list):
        return [use for each in value for use in uses_in(each)]
    if not isinstance(value, dict):
        return []
    use = value.get("use")
    of_a_package = [use] if isinstance(use, str) and "." in use and ".py:" not in use else []
    return of_a_package + uses_in(list(value.values()))


def content(source: Source) -> str:
    """The name of a source's only file, or their number, and a digest of them all."""
    found = file_digests(source)
    return " sha256 ".join(*found.items()) if len(found) == 1 else f"{len(found)} files {digest(found)}"


def file_digests(source: Source) -> dict[str, str]:
    """The digest of each file of a source; a file is read again only if it has changed."""
    cached, files = own_digests(), named_files(source)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            found = list(threads.map(lambda file: cached.of(file, file_digest), files.values()))
        except OSError as error:
            raise ConfigurationError(
                [f"{error.filename}: cannot be read: {error.strerror}. Repair the file, or name another one."]
            ) from None
    cached.save()
    return dict(zip(files, map(str, found), strict=True))


@functools.cache
def own_digests() -> DigestCache:
    store = OWN_FILES.absolute()
    store.parent.mkdir(exist_ok=True)  # Snakemake has not created it yet at the first start
    return DigestCache(store, "sha256")
