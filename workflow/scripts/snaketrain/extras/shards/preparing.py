"""What `prepare_data` does with the shards that it is given: it joins them, instead of reading the rows itself."""

import argparse
from typing import TYPE_CHECKING

from snaketrain.runtime.manifests import read_manifest

if TYPE_CHECKING:
    from snaketrain.data.preparing import Joined, Preparation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", nargs="*", default=[], metavar="MANIFEST", help="manifests of the prepared shards, if there are any")


def joined(preparation: "Preparation") -> "Joined | None":
    if not preparation.arguments.shards:
        return None

    from snaketrain.extras.shards.joining import join

    return join(preparation, list(map(read_manifest, preparation.arguments.shards)))
