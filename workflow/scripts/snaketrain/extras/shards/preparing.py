"""What `prepare_data` does with the shards that it is given: it joins them, instead of reading the rows itself."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from snaketrain.runtime.manifests import read_manifest, verify

if TYPE_CHECKING:
    from snaketrain.data.preparation import Joined, Preparation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", nargs="*", default=[], metavar="MANIFEST", help="manifests of the prepared shards, if there are any")


def joined(preparation: "Preparation") -> "Joined | None":
    shards = list(map(read_manifest, preparation.arguments.shards))
    if not shards:
        return None

    from snaketrain.data.preparation import Joined
    from snaketrain.extras.shards.dealing import whole_files
    from snaketrain.extras.shards.joining import ARROW, join_parts, parts_of, remove_others

    verify(*shards)
    parts = parts_of(whole_files(preparation.raw, preparation.data), shards, preparation.folder)
    found, issues = join_parts(preparation.data, parts)
    files = {f"parts/{part.folder.name}/{name}": sha256 for part in parts for name, sha256 in part.files.items() if name in ARROW}
    return Joined(found, issues, files, partial(remove_others, preparation.folder, parts, shards))
