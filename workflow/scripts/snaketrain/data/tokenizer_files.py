"""The files of a fetched tokenizer, copied so that all later stages use the same, and the tokenizers that are opened from them."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import pyarrow

from snaketrain.config.schema import Data
from snaketrain.config.schema.of_extras import hooks
from snaketrain.data.cells import BadData
from snaketrain.data.tokenizer import (
    BatchTokenizer,
    ChatTokenizer,
    PlainTokenizer,
    TargetTokenizer,
    Tokenizer,
    TokensDiffer,
    source_and_target,
    texts_of,
    with_columns,
)
from snaketrain.labels import label_kind
from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.processes import die_with_parent
from snaketrain.runtime.strict_json import Json, JsonObject

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer


PAD_TOKENS = ("[PAD]", "<pad>")  # where a tokenizer names none
COPIED = (
    "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # what transformers calls any tokenizer.json


def tokenizer_folder(fetched: Path) -> Path:
    """The folder that contains the `tokenizer.json`."""
    found = sorted(fetched.rglob("tokenizer.json"), key=lambda path: len(path.parts))
    if not found:
        raise BadData(
            f"data.tokenizer: no tokenizer.json in {fetched}. Name the folder that has one as its `path`; "
            "`transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)` writes one."
        )
    if len(found) > 1 and len(found[0].parts) == len(found[1].parts):
        raise BadData(f"data.tokenizer: several tokenizers: {', '.join(map(str, found))}. Name the folder of one as its `path`.")
    return found[0].parent


def copy_tokenizer(source: Path, target: Path, pair: bool = False) -> list[str]:
    """Copy a tokenizer for single texts or pairs, without its own padding and truncation: callers ask for these."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write_json(target / "tokenizer.json", _read(source / "tokenizer.json") | {"padding": None, "truncation": None})
    config = _read(source / "tokenizer_config.json") if (source / "tokenizer_config.json").exists() else {}
    pad = _content(config.get("pad_token")) or next((t for t in PAD_TOKENS if t in vocabulary(target)), None)
    # without a class, transformers would look for a model's configuration beside the tokenizer
    ours: JsonObject = {"tokenizer_class": GENERIC[0]} | ({"pad_token": pad} if pad else {})
    if pair and config.get("tokenizer_class", GENERIC[0]) in GENERIC and any(_load(target).encode("a", "b").type_ids):
        # otherwise a generic tokenizer would not return the token types that the model was trained with
        ours["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(target / "tokenizer_config.json", ours | config)
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    return sorted(path.name for path in target.iterdir())


def load_library_tokenizer(folder: Path, data: Data, length: str = "data.max_length") -> LibraryTokenizer:
    """A copied tokenizer that neither truncates nor pads, checked against `data`; `length`: the setting that `data.max_length` comes from."""
    library = _load(folder)
    library.no_padding()
    library.no_truncation()
    if data.end_token is not None and library.token_to_id(data.end_token) is None:
        raise BadData(f"data.end_token: the vocabulary has no token {data.end_token!r}. {_near(data.end_token, folder)}")
    added = library.num_special_tokens_to_add(data.pair) + (data.end_token is not None)
    if data.max_length is not None and data.max_length <= added:
        raise BadData(
            f"{length}: {data.max_length} leaves no room for text, since {added} special tokens are added to each. Make it larger."
        )
    return library


def end_token_id(folder: Path, data: Data) -> int | None:
    return None if data.end_token is None else vocabulary(folder)[data.end_token]


def vocabulary(folder: Path) -> dict[str, int]:
    return _load(folder).get_vocab(with_added_tokens=True)


def pad_token_id(folder: Path) -> int:
    known = vocabulary(folder)
    configured = _content(_read(folder / "tokenizer_config.json").get("pad_token"))
    return next((known[token] for token in (configured, *PAD_TOKENS) if token in known), 0)


def _near(token: str, folder: Path) -> str:
    """A suggestion: tokens of similar spelling, or else the special tokens."""
    near = difflib.get_close_matches(token, vocabulary(folder), n=3, cutoff=0.7)
    special = [added["content"] for added in _read(folder / "tokenizer.json").get("added_tokens") or []]
    if near:
        return f"Did you mean {' or '.join(map(repr, near))}?"
    return f"Its special tokens are {', '.join(map(repr, special[:20]))}." if special else "Name one that is in it."


def _load(folder: Path) -> LibraryTokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exceptions
        raise BadData(f"data.tokenizer: {folder / 'tokenizer.json'} cannot be loaded: {error}. Fetch it again, or name another.") from None


def _read(path: Path) -> JsonObject:
    try:
        content: JsonObject = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadData(f"data.tokenizer: {path} is not JSON ({error}). Fetch it again.") from None
    return content


def _content(token: Json) -> str | None:
    """Older files write a token as a text, newer ones as an object."""
    return token.get("content") if isinstance(token, dict) else token


# --- Tokenizers that encode texts while others are read or written.

PROCESSES_FROM_BYTES = 2_000_000  # of texts: for more than that, starting processes pays off
MAX_PROCESSES = 4  # more would wait for the one that reads and writes


class ParallelTokenizer:
    """Encodes texts while others are read or written: in a thread, and for large data in processes, each with a tokenizer of its own.

    Python runs only one thread at a time, but a process takes a second to start. All together use at most `cores`.
    """

    def __init__(self, make: Callable[[], BatchTokenizer], cores: int = 1):
        self.make, self.cores, self.count = make, cores, min(cores - 1, MAX_PROCESSES)
        self.thread, self.tokenizer, self.given_bytes = ThreadPoolExecutor(1), make(), 0
        self.processes: ProcessPoolExecutor | None = None
        self.started: Future[None] | None = None  # the processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for executor in filter(None, (self.thread, self.processes)):
            executor.shutdown(cancel_futures=True)

    def encode(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        pending: deque[tuple[pyarrow.RecordBatch, Future[pyarrow.RecordBatch]]] = deque()
        ahead = self.count + 1  # batches in progress before the first must be ready

        def first_finished() -> pyarrow.RecordBatch:
            batch, columns = pending.popleft()
            return with_columns(batch, columns.result())

        try:
            for batch in batches:
                pending.append((batch, self._begin(texts_of(batch))))
                if len(pending) > ahead:
                    yield first_finished()
            while pending:
                yield first_finished()
        except BrokenProcessPool:
            raise BadData(
                "a tokenizer process was killed, most likely because memory ran out. Give this stage more memory (mem_mb), or fewer threads."
            ) from None

    def _begin(self, texts: pyarrow.RecordBatch) -> Future[pyarrow.RecordBatch]:
        self.given_bytes += texts.nbytes
        if self.count and not self.processes and self.given_bytes > PROCESSES_FROM_BYTES:
            shared = self.make, -(-self.cores // self.count), os.getpid()
            self.processes = ProcessPoolExecutor(self.count, get_context("spawn"), _begin_process, shared)
            self.started = self.processes.submit(_is_ready)
        if self.processes and self.started and self.started.done():
            return self.processes.submit(_encode_here, texts)
        return self.thread.submit(self.tokenizer.encode_batch, texts)


_tokenizers: list[BatchTokenizer] = []  # the one of this process


def _begin_process(make: Callable[[], BatchTokenizer], cores: int, parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the reader ends the others
    os.environ["RAYON_NUM_THREADS"] = str(cores)  # read by the tokenizers library
    _tokenizers.append(make())


def _is_ready() -> None:
    assert _tokenizers


def _encode_here(texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    return _tokenizers[0].encode_batch(texts)


def make_tokenizer(folder: Path, data: Data, plain: bool = False, length: str = "data.max_length") -> BatchTokenizer:
    """One of an extra that is `faster` where the tokenizer allows it, unless `plain`."""
    if data.target:
        source, target = source_and_target(data)
        return TargetTokenizer(make_tokenizer(folder, source, plain), make_tokenizer(folder, target, plain, "data.max_target_length"))
    library = load_library_tokenizer(folder, data, length)
    if data.messages:
        return ChatTokenizer(folder, data, end_token_id(folder, data))
    if own := label_kind(data.label_kind).parser(data).tokenizer(library):
        return own
    tokenizer = PlainTokenizer(library, data)
    found = [] if plain else [faster(tokenizer) for faster in hooks("tokenizer", "faster")]
    return next(filter(None, found), tokenizer)


Made = TypeVar("Made")


def with_tokenizer(
    folder: Path,
    data: Data,
    cores: int,
    use: Callable[[Tokenizer], Made],
    make: Callable[[Path, Data, bool], BatchTokenizer] = make_tokenizer,
) -> Made:
    """What `use` makes with a fast tokenizer, or, should that encode a text otherwise than as a whole, with a plain one."""
    try:
        with ParallelTokenizer(partial(make, folder, data, False), cores) as fast:
            return use(fast)
    except TokensDiffer as difference:
        print(f"warning: {difference}. Encoding all texts again as wholes, which is slower but correct.", file=sys.stderr, flush=True)
    with ParallelTokenizer(partial(make, folder, data, True), cores) as plain:
        return use(plain)
