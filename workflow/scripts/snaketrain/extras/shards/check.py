"""Refuses more shards than there are files to divide among them, before any job."""

from collections.abc import Iterator

from snaketrain.config.schema import Settings
from snaketrain.data.formats import format_of
from snaketrain.extras.shards.settings import shards_of
from snaketrain.orchestration.preflight import local_files


def relevant_to(run: Settings) -> object:
    return run.data


def problems_of_run(run: Settings) -> Iterator[str]:
    """More shards than files: a hub's files are counted when they are fetched."""
    data = run.data
    if not (shards := shards_of(data)):
        return
    given = {split: files for split, files in local_files(data.for_training).items() if files}
    count = sum(format_of(file, data.format) is not None for files in given.values() for file in files)
    if 0 < count < shards and len(given) == len(data.for_training.sources):
        of = " and ".join(f"data.{split}" for split in given)
        yield f"data.shards: {shards} is more than the files of {of}: {count}. Set data.shards: {count}, or divide large files into several."
