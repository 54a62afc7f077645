"""Steps that a team shares: finished trainings are copied to a folder or an object store, from which those of other workspaces go on.

    trainings/BASE/ID      the files of a training with their digests, signed by the member who has shared it
    objects/SHA256         a file, which several trainings may have

BASE is what decides the weights of all steps, so that a look reads only listings of trainings that may have the same ones. Nothing is used
because it is there: a listing must be signed by a member, and a file must have the digest that the listing says.
"""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import TYPE_CHECKING, TypedDict, TypeVar
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key, load_ssh_public_key

from snaketrain.data.locations import AT_ONCE, open_store
from snaketrain.extras.shared_steps.reuse import name_of
from snaketrain.extras.shared_steps.settings import StepsCache, members_of
from snaketrain.extras.shared_steps.trajectory import Record, Trajectory, recorded
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import digest, file_digest
from snaketrain.runtime.strict_json import dumps
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.publishing import LISTING, Written, flushed, read_listing
from snaketrain.training.checkpoints.ranking import read_state
from snaketrain.training.plan import folder_name
from snaketrain.training.state import TrainState

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

BESIDE = ("journal.jsonl", "loaded.json")  # what another training reads of this one besides checkpoints
SECONDS_TO_ANSWER = 60.0
SECONDS_OF_UPLOADS = 86_400.0  # a file that is in no listing may belong to a training that is being shared

T = TypeVar("T")


class Listing(TypedDict):
    base: str
    training: str  # as people call it
    records: dict[str, Record]  # by the folder of the checkpoint
    files: dict[str, Written]


@dataclass(frozen=True)
class Shared:
    """A training in the cache."""

    path: str
    signed: bytes
    member: str
    listing: Listing

    def steps(self, trajectory: Trajectory, until: int) -> list[int]:
        """Those of its checkpoints that a training on this trajectory may take over."""
        steps = {int(name.rpartition("-")[2]): record for name, record in self.listing["records"].items()}
        return sorted(step for step, record in steps.items() if step <= until and trajectory.contains(step, record))


@dataclass(frozen=True)
class Cache:
    address: str
    members: Mapping[str, str]  # names by public key
    key: Ed25519PrivateKey | None  # none: nothing is shared
    gigabytes: float

    @classmethod
    def of(cls, given: StepsCache) -> "Cache":
        members = members_of(given.members)
        key = private_key(Path(given.key).expanduser()) if given.key else None
        if key and public(key.public_key()) not in members:
            raise SystemExit(
                f"shared_steps.cache.key: {given.members} does not have the public key of {given.key}. Add a line with your name and "
                f"`{public(key.public_key())}`, or write `key: null` to share nothing"
            )
        return cls(given.at, members, key, given.gigabytes)

    @cached_property
    def store(self) -> "tuple[AbstractFileSystem, str]":
        return open_store(self.address)

    # --- Taking over

    def bring(self, trajectory: Trajectory, after: int, until: int, into: Path) -> Path | None:
        """A copy of the training that has the most steps of the trajectory, if these are more than `after`."""
        found = [
            (steps, each)
            for each in answered(lambda: [*self.trainings(trajectory.base)])
            if (steps := each.steps(trajectory, until)) and steps[-1] > after
        ]
        for steps, shared in sorted(found, key=lambda each: -each[0][-1]):
            folder = into / re.sub(r"[^\w .-]", "_", f"{shared.listing['training']} of {shared.member}") / "training"
            if self.copied(shared, steps, folder):
                if self.key:
                    self.write(shared.path, shared.signed)  # which makes it the one that was used last
                return folder
            if self.key:
                self.store[0].rm_file(shared.path)  # so that whoever has these files shares them again
        return None

    def trainings(self, base: str = "") -> Iterator[Shared]:
        """What members have shared."""
        files, root = self.store
        files.invalidate_cache()
        paths = [path for path in files.find(f"{root}/trainings/{base}".rstrip("/")) if "." not in path.rpartition("/")[2]]  # complete ones
        for path, signed in files.cat(paths, on_error="omit").items() if paths else ():
            try:
                head, _, body = signed.partition(b"\n")
                key, signature = json.loads(head)
                member, public_key = self.members[key], load_ssh_public_key(key.encode())
                assert isinstance(public_key, Ed25519PublicKey)  # as `members_of` has seen
                public_key.verify(bytes.fromhex(signature), body)
                yield Shared(path, signed, member, json.loads(body))
            except Exception as error:  # whoever can write there may have written anything
                why = "its signer is no member" if isinstance(error, KeyError) else f"it is damaged ({type(error).__name__})"
                logging.warning("%s is not used: %s", hidden(path), why)

    def copied(self, shared: Shared, steps: list[int], folder: Path) -> bool:
        """Whether all files are what was shared."""
        wanted = (*BESIDE, *(f"checkpoints/{folder_name(step)}/" for step in steps))
        listed = {name: written for name, written in shared.listing["files"].items() if name.startswith(wanted)}
        if any(".." in PurePosixPath(name).parts or name.startswith("/") for name in listed):
            raise ValueError(f"{shared.path} names files outside of its folder")
        size = sum(written["bytes"] for written in listed.values()) / 1e6
        logging.info("copying %d of %s's steps from the cache, %.1f MB", steps[-1], shared.member, size)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            damages = list(threads.map(lambda name: self.fetched(listed[name], folder / name), listed))
        for damage in filter(None, damages):
            logging.warning("the training of %s in the cache is not used: %s", shared.member, damage)
        return not any(damages)

    def fetched(self, written: Written, target: Path) -> str | None:
        """What is wrong with it."""
        files, root = self.store
        path = f"{root}/objects/{written['sha256']}"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            files.get_file(path, str(target))
        except FileNotFoundError:
            return f"{hidden(path)} is gone"
        if file_digest(target) == written["sha256"]:
            return None
        if self.key:
            files.rm_file(path)
        return f"{hidden(path)} is damaged"

    # --- Sharing

    def share(self, training: Path, trajectory: Trajectory, name: str) -> None:
        """The checkpoints that a finished training has kept, and its journal."""
        assert self.key
        began, checkpoints = time.monotonic(), training / "checkpoints"
        records = {path.name: record for path in sorted(checkpoints.glob("step-*")) if (record := recorded(read_state(path)))}
        listing: Listing = {"base": trajectory.base, "training": name, "records": records, "files": {}}
        path = f"{answered(lambda: self.store)[1]}/trainings/{trajectory.base}/{digest(records, public(self.key.public_key()))[:16]}"
        if not records or answered(lambda: self.store[0].exists(path)):
            return
        for checkpoint in records:
            of_checkpoint = read_listing(checkpoints / checkpoint) or {}
            of_checkpoint[LISTING] = flushed(checkpoints / checkpoint / LISTING)
            listing["files"] |= {f"checkpoints/{checkpoint}/{file}": written for file, written in of_checkpoint.items()}
        uploaded = sum(self.upload(training / file, written) for file, written in listing["files"].items())
        for file in (file for file in BESIDE if (training / file).exists()):
            content = (training / file).read_bytes()  # read once: the journal may still grow
            listing["files"][file] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            uploaded += self.upload(content, listing["files"][file])
        body = dumps(listing).encode()
        self.write(path, json.dumps([public(self.key.public_key()), self.key.sign(body).hex()]).encode() + b"\n" + body)
        logging.info("shared the checkpoints of %d steps, %.1f MB, in %.0f s", len(records), uploaded / 1e6, time.monotonic() - began)
        self.evict()

    def upload(self, content: bytes | Path, written: Written) -> int:
        """How many bytes; none of what is there."""
        files, root = self.store
        path = f"{root}/objects/{written['sha256']}"
        if files.exists(path) and files.size(path) == written["bytes"]:
            return 0
        self.write(path, content)
        return written["bytes"]

    def write(self, path: str, content: bytes | Path) -> None:
        """Complete or not at all, as object stores do by themselves."""
        files, _ = self.store
        part = f"{path}.{uuid4().hex}" if "file" in files.protocol else path
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if isinstance(content, bytes):
            files.pipe_file(part, content)
        else:
            files.put_file(str(content), part)
        if part != path:
            os.replace(part, path)

    def evict(self) -> None:
        """The trainings that were used longest ago, until what is left fits, and the files that only these had."""
        files, root = self.store
        found = {info["name"]: info["size"] for info in files.find(f"{root}/objects", detail=True).values()}
        if sum(found.values()) <= self.gigabytes * 1e9:
            return
        kept: set[str] = set()
        for each in sorted(self.trainings(), key=lambda each: files.modified(each.path), reverse=True):
            with_it = kept | {f"{root}/objects/{written['sha256']}" for written in each.listing["files"].values()}
            if sum(found.get(path, 0) for path in with_it) <= self.gigabytes * 1e9:
                kept = with_it
            else:
                files.rm_file(each.path)
                logging.info("removed %s of %s from the cache: it was used longest ago", each.listing["training"], each.member)
        for path in found.keys() - kept:
            if time.time() - files.modified(path).timestamp() > SECONDS_OF_UPLOADS:
                files.rm_file(path)


def answered(ask: Callable[[], T]) -> T:
    """Libraries of stores try for many minutes to reach one, in which all processes of a training would wait."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=work, daemon=True).start()
    try:
        return answer.result(SECONDS_TO_ANSWER)
    except TimeoutError:
        raise TimeoutError(f"it has not answered within {SECONDS_TO_ANSWER:g} seconds") from None


def private_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("it is of another kind than ed25519")
    except (OSError, ValueError, TypeError) as error:  # TypeError: it has a passphrase, which nobody can enter in a job
        raise SystemExit(
            f"shared_steps.cache.key: {path} cannot be read ({error}). Name an ed25519 key without a passphrase, which "
            f"`ssh-keygen -t ed25519 -N '' -f {path.parent}/snaketrain` makes, or write `key: null` to share nothing"
        ) from None
    return key


def public(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


class Sharing(Callback):
    """Shares a training once it has ended. What goes wrong is told, and fails nothing."""

    observes_only = True

    def __init__(self, cache: Cache, training: Path, trajectory: Trajectory, last: int):
        self.cache, self.training, self.trajectory, self.last = cache, training, trajectory, last

    def on_train_end(self, state: TrainState) -> None:
        if state.step != self.last and not state.finished_early:
            return
        try:
            self.cache.share(self.training, self.trajectory, name_of(self.training))
        except Exception as error:  # each file system has its own
            logging.warning("shared_steps.cache: nothing is shared: %s", hidden(f"{type(error).__name__}: {error}"))
