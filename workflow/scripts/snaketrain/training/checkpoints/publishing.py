"""Publishes a checkpoint: written to a folder beside it, flushed, listed with digests, renamed into place. Complete, or not there.

checkpoint.json, which is written last, holds the size and digest of every other file.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias, TypedDict, TypeVar

import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from snaketrain.runtime.manifests import file_digest, write_json
from snaketrain.runtime.strict_json import Json
from snaketrain.strategies.distributed import all_gather
from snaketrain.training.checkpoints.ranking import STATE

LISTING = "checkpoint.json"
GONE = ".gone-"  # prefix of what is being removed
# torch and safetensors raise errors of their own on a full disk; torch's CheckpointException is not an Exception
ERRORS = (OSError, RuntimeError, SafetensorError, CheckpointException)
SECONDS_UNTIL_VISIBLE = 60  # a network file system may show a new file to other nodes late

T = TypeVar("T")


class Written(TypedDict):
    bytes: int
    sha256: str


Listing: TypeAlias = dict[str, Written]  # by path, relative to the checkpoint


def publish(final: Path, write: Callable[[Path], Iterable[Path]], group: dist.ProcessGroup | None = None) -> None:
    """Every rank of the group that writes the checkpoint calls this, or rank 0 by itself.

    `write` writes this rank's files into a folder, and returns their paths.
    """
    beside, first = final.with_name(f".{final.name}"), group is None or dist.get_rank(group) == 0

    def begin() -> None:
        mend(final.parent)
        beside.mkdir(parents=True)

    def end() -> None:
        rename(beside, final, {name: written for part in listings for name, written in sorted(part.items())})

    try:
        together(group, lambda: begin() if first else None)
        listings = together(group, lambda: {str(path.relative_to(beside)): flushed(path) for path in write(beside)})
        together(group, lambda: end() if first else None)
    except ERRORS:  # not where the folder was taken over: what lies there now is another process's
        if first:
            shutil.rmtree(beside, ignore_errors=True)  # it would take up room
        raise


def together(group: dist.ProcessGroup | None, work: Callable[[], T]) -> list[T]:
    """What `work` returns on each rank of the group. If it fails on one of them, an error on all: none of them waits for another."""
    try:
        mine: list[T] = [work()]
        error = ""
    except ERRORS as failure:
        mine, error = [], str(failure) or repr(failure)
    everything = all_gather((mine, error), group) if group else [(mine, error)]
    if failed := [(rank, error) for rank, (_, error) in enumerate(everything) if error]:
        rank, error = failed[0]
        raise OSError(error if len(everything) == 1 else f"rank {rank}: {error}")
    return [item for found, _ in everything for item in found]


def flushed(path: Path) -> Written:
    flush(path)
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def rename(beside: Path, final: Path, listing: Listing) -> None:
    write_json(beside / LISTING, listing)
    for folder in {(beside / name).parent for name in listing}:
        flush(folder)
    if final.exists():  # of the same step, saved before it was evaluated
        remove(final)
    os.rename(beside, final)
    flush(final.parent)


def remove(checkpoint: Path) -> None:
    """Nobody finds half of it; `mend` deletes the files."""
    checkpoint.rename(checkpoint.with_name(f"{GONE}{checkpoint.name}"))


def mend(checkpoints: Path) -> None:
    """Complete or undo what a killed process left: a checkpoint half removed, half written, or not yet renamed."""
    for torn in checkpoints.glob(".step-*"):
        final = checkpoints / torn.name.removeprefix(".")
        if final.exists() or damage(torn):
            shutil.rmtree(torn)
        else:
            torn.rename(final)
    for gone in checkpoints.glob(f"{GONE}*"):
        shutil.rmtree(gone)


def publish_again(source: Path, final: Path, state: Json) -> None:
    """The files of a checkpoint, here or in another training, with another `state.json`. They are shared, not copied, where links can be made."""
    if (listing := read_listing(source)) is None:
        raise OSError(f"{source}: {LISTING} is missing or torn")
    beside = final.with_name(f".{final.name}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for name in listing:
        if name != STATE:
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source / name, beside / name)
    write_json(beside / STATE, state)
    rename(beside, final, listing | {STATE: flushed(beside / STATE)})


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
        flush(target)


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def read_listing(checkpoint: Path) -> Listing | None:
    """None if it is missing or torn."""
    try:
        listing: Listing = json.loads((checkpoint / LISTING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return listing


def damage(checkpoint: Path, rank: int = 0, ranks: int = 1) -> str | None:
    """Why a checkpoint is damaged; None if it is intact. Of several ranks each reads its share of the files."""
    if (listing := read_listing(checkpoint)) is None:
        return f"{LISTING} is missing or torn"
    for name in sorted(listing)[rank::ranks]:
        path, expected = checkpoint / name, listing[name]
        if not (path.is_file() or (rank and becomes_visible(path))):
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"] or file_digest(path) != expected["sha256"]:
            return f"{name} is not what was written"
    return None


def becomes_visible(path: Path) -> bool:
    """Rank 0 sees the checkpoint already."""
    end = time.monotonic() + SECONDS_UNTIL_VISIBLE
    while time.monotonic() < end:
        if path.parent.is_dir() and path.name in os.listdir(path.parent):  # which makes NFS ask its server
            return True
        time.sleep(0.5)
    return False
