"""Texts get their tokens while others are read or written: from a thread, and where there is much to do from processes.

Python lets one thread work at a time; but a process needs a second to wake up.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import pyarrow

from snaketrain.data.sources.formats import BadData
from snaketrain.data.text.tokens import Tokens

MUCH = 2_000_000  # bytes of texts, behind which processes are woken up
MOST = 4  # processes; who reads and writes is not faster than that


class Workers:
    """They make their own `Tokens` with `make`, and take no more than so many cores together with who reads and writes."""

    def __init__(self, make: Callable[[], Tokens], cores: int = 1):
        self.make, self.cores, self.count = make, cores, min(cores - 1, MOST)
        self.ahead = self.count + 1  # batches that are given out before the first must be ready
        self.thread, self.tokens, self.given = ThreadPoolExecutor(1), make(), 0
        self.waiters = ThreadPoolExecutor(max(1, self.count))  # each waits for a process
        self.processes: list[Process] = []
        self.idle: SimpleQueue[Process] = SimpleQueue()
        self.awake: Future | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: Any) -> None:
        for executor in (self.thread, self.waiters):
            executor.shutdown(cancel_futures=True)
        for process in self.processes:
            process.end()

    def tokenised(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The batches with their tokens, in order."""
        begun: deque[tuple[pyarrow.RecordBatch, Future]] = deque()
        for batch in batches:
            begun.append((batch, self._begin(batch.select([name for name in batch.schema.names if name.startswith("text")]))))
            if len(begun) > self.ahead:
                yield _finished(*begun.popleft())
        while begun:
            yield _finished(*begun.popleft())

    def _begin(self, texts: pyarrow.RecordBatch) -> Future:
        self.given += texts.nbytes
        if self.count and not self.awake and self.given > MUCH:
            self.awake = self.waiters.submit(self._wake_up)
        if self.awake and self.awake.done():
            return self.waiters.submit(self._by_a_process, texts)
        return self.thread.submit(self.tokens.columns, texts)

    def _wake_up(self) -> None:
        self.processes = [Process(self.make, -(-self.cores // self.count)) for _ in range(self.count)]
        for process in self.processes:
            process.ask(None)
            self.idle.put(process)

    def _by_a_process(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        self.awake.result()  # or why it failed
        process = self.idle.get()
        try:
            return process.ask(texts)
        finally:
            self.idle.put(process)


class Process:
    """One that tokenises what it is sent. Without a sender it ends, however that one ended."""

    def __init__(self, make: Callable[[], Tokens], cores: int):
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, make, cores), daemon=True)
        self.process.start()
        other.close()

    def ask(self, texts: pyarrow.RecordBatch | None) -> Any:
        """What it makes of texts; of None, which it is to be asked first, None: it is awake."""
        try:
            self.connection.send(texts)
            found = self.connection.recv()
        except (EOFError, OSError):
            raise BadData(
                "a process that tokenises was killed, most likely since the memory ran out. Give this stage more memory (mem_mb), or fewer threads."
            ) from None
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        self.connection.close()
        self.process.join()


def _work(connection: Connection, make: Callable[[], Tokens], cores: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the one that reads ends the others
    os.environ["RAYON_NUM_THREADS"] = str(cores)  # of the tokenizers library
    tokens = make()
    try:
        while True:
            texts = connection.recv()
            try:
                answer = None if texts is None else tokens.columns(texts)
            except Exception as error:
                answer = error
            connection.send(answer)
    except (EOFError, OSError):
        pass


def _finished(batch: pyarrow.RecordBatch, columns: Future) -> pyarrow.RecordBatch:
    found = columns.result()
    for name in found.schema.names:
        batch = batch.append_column(found.schema.field(name), found[name])
    return batch
