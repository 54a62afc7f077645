"""What extras do where data is prepared: their `preparing.py` has `add_arguments(parser)` and `joined(preparation)`, for what other jobs have prepared."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snaketrain.config.schema import Data
from snaketrain.config.schema.of_extras import modules
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from pathlib import Path

    from snaketrain.data.cells import DataIssues


@dataclass(frozen=True)
class Preparation:
    """A start of `prepare_data`: nothing is read yet, nor verified."""

    arguments: argparse.Namespace  # of the command line, with those that the extras have added
    data: Data
    raw: Manifest
    folder: "Path"


@dataclass(frozen=True)
class Joined:
    """Splits whose files other jobs have made and whose rows need not be read again."""

    found: JsonObject  # the facts about the splits, as of `preparing.prepare`
    issues: "DataIssues"
    files: dict[str, str]  # digests, by their names in the folder
    clean_up: Callable[[], None]  # once the manifest names the files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for extra in modules("preparing"):
        extra.add_arguments(parser)


def joined(preparation: Preparation) -> Joined | None:
    """None: the rows are to be read here."""
    found = (extra.joined(preparation) for extra in modules("preparing"))
    return next(filter(None, found), None)
