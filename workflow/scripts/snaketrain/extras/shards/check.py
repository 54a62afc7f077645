"""Refuses more shards than there is to divide among them, before any job."""

import contextlib
from collections.abc import Iterator

from snaketrain.config.schema import Settings
from snaketrain.data.cells import BadData
from snaketrain.extras.shards.dealing import slices
from snaketrain.extras.shards.settings import shards_of
from snaketrain.orchestration.preflight import local_files


def relevant_to(run: Settings) -> object:
    return run.data


def problems_of_run(run: Settings) -> Iterator[str]:
    """More shards than files and slices of large ones: a hub's files are counted when they are fetched."""
    data = run.data
    if not (shards := shards_of(data)):
        return
    given = {split: files for split, files in local_files(data.for_training).items() if files}
    with contextlib.suppress(BadData, LookupError, OSError):  # a file or an encoding that cannot be read is reported elsewhere
        count = sum(len(slices(file, data)) for files in given.values() for file in files)
        if count < shards and len(given) == len(data.for_training.sources):
            of = " and ".join(f"data.{split}" for split in given)
            yield (
                f"data.shards: {shards} is more than the files of {of}, with the slices of large ones: {count}. Set data.shards: {count}. Only JSON "
                "lines, plain text by line and Parquet are divided: a large file of another format, such as CSV, must be given as several files."
            )
