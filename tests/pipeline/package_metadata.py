"""The metadata of installed packages, read once for all processes that are forked: each training lists every package, and parsing
what two hundred of them say of themselves takes as long as a small training."""

from functools import cache
from importlib import metadata
from typing import Any


@cache
def described() -> tuple[dict[Any, Any], dict[str, list[str]]]:
    """By path, and the packages by module: before the fork."""
    parsed = {each._path: each.metadata for each in metadata.distributions() if isinstance(each, metadata.PathDistribution)}
    return parsed, dict(metadata.packages_distributions())


def remember() -> None:
    """In a process that was forked."""
    parsed, by_module = described()
    parse = metadata.Distribution.metadata.fget
    metadata.PathDistribution.metadata = property(lambda self: parsed.get(self._path) or parse(self))  # type: ignore[misc]
    metadata.packages_distributions = lambda: by_module
