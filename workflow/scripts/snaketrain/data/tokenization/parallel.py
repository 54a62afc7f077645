"""Encodes texts while others are read or written: in a thread, and for large data in processes.

Python runs only one thread at a time, but a process takes a second to start.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Self

import pyarrow

from snaketrain.data.sources.data_issues import BadData
from snaketrain.data.tokenization.tokenizer import BatchTokenizer, texts_of, with_columns

PROCESSES_FROM_BYTES = 2_000_000  # of texts: for more than that, starting processes pays off
MAX_PROCESSES = 4  # more would wait for the one that reads and writes


class ParallelTokenizer:
    """Each worker creates its own tokenizer with `make`; together with reader and writer they use at most `cores`."""

    def __init__(self, make: Callable[[], BatchTokenizer], cores: int = 1):
        self.make, self.cores, self.count = make, cores, min(cores - 1, MAX_PROCESSES)
        self.ahead = self.count + 1  # batches in progress before the first must be ready
        self.thread, self.tokenizer, self.given_bytes = ThreadPoolExecutor(1), make(), 0
        self.waiters = ThreadPoolExecutor(max(1, self.count))  # each waits for a process
        self.processes: list[TokenizerProcess] = []
        self.idle: SimpleQueue[TokenizerProcess] = SimpleQueue()
        self.started: Future[None] | None = None  # the processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for executor in (self.thread, self.waiters):
            executor.shutdown(cancel_futures=True)
        for process in self.processes:
            process.end()

    def encode(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        pending: deque[tuple[pyarrow.RecordBatch, Future[pyarrow.RecordBatch]]] = deque()
        for batch in batches:
            pending.append((batch, self._begin(texts_of(batch))))
            if len(pending) > self.ahead:
                yield _finished(*pending.popleft())
        while pending:
            yield _finished(*pending.popleft())

    def _begin(self, texts: pyarrow.RecordBatch) -> "Future[pyarrow.RecordBatch]":
        self.given_bytes += texts.nbytes
        if self.count and not self.started and self.given_bytes > PROCESSES_FROM_BYTES:
            self.started = self.waiters.submit(self._start_processes)
        if self.started and self.started.done():
            self.started.result()  # raises if starting failed
            return self.waiters.submit(self._in_a_process, texts)
        return self.thread.submit(self.tokenizer.encode_batch, texts)

    def _start_processes(self) -> None:
        self.processes = [TokenizerProcess(self.make, -(-self.cores // self.count)) for _ in range(self.count)]
        for process in self.processes:
            process.wait_until_ready()
            self.idle.put(process)

    def _in_a_process(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        process = self.idle.get()
        try:
            return process.encode_batch(texts)
        finally:
            self.idle.put(process)


class TokenizerProcess:
    """A process that encodes the batches it receives. It ends when its parent does, for any reason."""

    def __init__(self, make: Callable[[], BatchTokenizer], cores: int):
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, make, cores), daemon=True)
        self.process.start()
        other.close()

    def wait_until_ready(self) -> None:
        self._ask(None)

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        return self._ask(texts)

    def _ask(self, texts: pyarrow.RecordBatch | None) -> pyarrow.RecordBatch | None:
        try:
            self.connection.send(texts)
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise BadData(
                "a tokenizer process was killed, most likely because memory ran out. Give this stage more memory (mem_mb), or fewer threads."
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        self.connection.close()
        self.process.join()


def _work(connection: Connection, make: Callable[[], BatchTokenizer], cores: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the reader ends the others
    os.environ["RAYON_NUM_THREADS"] = str(cores)  # read by the tokenizers library
    tokenizer = make()
    try:
        while True:
            texts = connection.recv()
            try:
                answer = None if texts is None else tokenizer.encode_batch(texts)
            except Exception as error:
                answer = error
            connection.send(answer)
    except (EOFError, OSError):
        pass


def _finished(batch: pyarrow.RecordBatch, columns: "Future[pyarrow.RecordBatch]") -> pyarrow.RecordBatch:
    return with_columns(batch, columns.result())
