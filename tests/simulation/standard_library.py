"""The parts of Python's library that the product and its plugin wait with, in virtual time; and where they are put in place."""

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

from simulation.virtual_time import EPOCH, Counter, Flag, Thread, current, sleep

Programs = Callable[[list[str] | str, str | None, float | None], "subprocess.CompletedProcess[str]"]


WORD = re.compile(r"(?:[^\s']|'[^']*')+")


def split_words(text: str) -> list[str]:
    """shlex.split, which takes 10 ms for a question that names 500 jobs."""
    if '"' in text or "\\" in text:
        return shlex.split(text)
    return [word.replace("'", "") for word in WORD.findall(text)]


class VirtualTime:
    """In place of the module `time`."""

    strftime, localtime = staticmethod(time.strftime), staticmethod(time.localtime)

    @staticmethod
    def time() -> float:
        return EPOCH + current().process.world.now

    @staticmethod
    def monotonic() -> float:
        process = current().process
        return 1000.0 + process.world.now - process.asleep

    @staticmethod
    def sleep(seconds: float) -> None:
        sleep(seconds)


class VirtualThread:
    def __init__(self, target: Callable[..., object] | None = None, args: tuple[object, ...] = (), daemon: bool = True, name: str = ""):
        self._target, self._args, self._thread = target, args, None
        self.daemon, self.name = daemon, name

    def start(self) -> None:
        self._thread = Thread(current().process, lambda: self._target(*self._args) if self._target else self.run())
        self._thread.start()

    def run(self) -> None:
        raise NotImplementedError

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.dead

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None and not self._thread.dead:
            self._thread.over.wait(timeout)


class VirtualTimer(VirtualThread):
    def __init__(self, interval: float, function: Callable[[], object]):
        super().__init__(target=lambda: (sleep(interval), function()))


class VirtualLocal:
    """threading.local: each thread has its own attributes."""

    def __init__(self) -> None:
        object.__setattr__(self, "_of_threads", {})

    def __getattr__(self, name: str) -> object:
        try:
            return self._of_threads[current()][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        self._of_threads.setdefault(current(), {})[name] = value


class VirtualPool:
    """concurrent.futures.ThreadPoolExecutor."""

    def __enter__(self) -> "VirtualPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def map(self, function: Callable[[Any], object], given: list[Any]) -> list[object]:
        """All at once; the first error is raised here."""
        answers: dict[object, object] = {}
        errors: list[Exception] = []

        def answer(each: object) -> None:
            try:
                answers[each] = function(each)
            except Exception as error:
                errors.append(error)

        threads = [VirtualThread(target=lambda each=each: answer(each)) for each in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [answers[each] for each in given]

    def __init__(self, max_workers: int, **_: object):
        self._work: list[Callable[[], object]] = []
        self._there_is_work, self._closed = Counter(0), False
        self._threads = [VirtualThread(target=self._serve) for _ in range(max_workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., object], *args: object) -> None:
        self._work.append(lambda: function(*args))
        self._there_is_work.release()

    def _serve(self) -> None:
        while True:
            if not self._work:
                if self._closed:
                    return
                self._there_is_work.acquire()
            if self._work:
                self._work.pop(0)()

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        self._closed = True
        if cancel_futures:
            self._work.clear()
        for _ in self._threads:
            self._there_is_work.release()
        if wait:
            for thread in self._threads:
                thread.join()


threading = SimpleNamespace(
    Thread=VirtualThread,
    Timer=VirtualTimer,
    Lock=Counter,
    RLock=Counter,
    Semaphore=Counter,
    Event=lambda: Flag(current().process.world),
    local=VirtualLocal,
)


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """asyncio.run for coroutines that wait for nothing but what is virtual here."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a coroutine waits for something that is not simulated")


@contextlib.asynccontextmanager
async def held(lock: Counter):
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


class VirtualFuture:
    """asyncio.ensure_future, in a thread of its own."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]):
        self._thread = VirtualThread(target=drive, args=(coroutine,))
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout: float) -> None:
        self._thread.join(timeout)

    def cancel(self) -> None: ...  # it waits to its end, and does nothing then


async def wait_for_any(futures: set[VirtualFuture], timeout: float) -> None:
    """asyncio.wait, of a single one."""
    (future,) = futures
    future.wait(timeout)


class Unlimited:
    """Of throttler's rate limit."""

    def __init__(self, **_: object): ...

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


def asyncio_with(programs: Programs) -> SimpleNamespace:
    """In place of the module `asyncio`."""

    async def sleeping(seconds: float) -> None:
        sleep(seconds)

    async def to_thread(function: Callable[..., object], *args: object) -> object:
        return function(*args)

    async def wait_for(awaitable: Coroutine[Any, Any, Any], timeout: float) -> object:
        try:
            return await awaitable
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    async def create_subprocess_exec(*words: str, **_: object) -> SimpleNamespace:
        process = SimpleNamespace(returncode=None)

        async def communicate() -> tuple[bytes, bytes]:
            done = programs(list(words), None, 60)
            process.returncode = done.returncode
            return done.stdout.encode(), done.stderr.encode()

        process.communicate = communicate
        return process

    return SimpleNamespace(
        sleep=sleeping, to_thread=to_thread, wait_for=wait_for, run=drive, TimeoutError=TimeoutError,
        ensure_future=VirtualFuture, wait=wait_for_any, create_subprocess_exec=create_subprocess_exec, subprocess=subprocess, get_running_loop=no_loop,
    )  # fmt: skip


def no_loop() -> None:
    raise RuntimeError("no running event loop")


def subprocess_with(programs: Programs) -> SimpleNamespace:
    """In place of the module `subprocess`."""

    def run(command: Any, timeout: float | None = None, input: str | None = None, check: bool = False, **_: object) -> Any:
        done = programs(command, input, timeout)
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done

    def check_output(command: Any, timeout: float | None = None, **_: object) -> str:
        return str(run(command, timeout, check=True).stdout)

    class Popen:
        def __init__(self, command: Any, **_: object):
            self.command, self.returncode = command, None

        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            done = programs(self.command, input, timeout)
            self.returncode = done.returncode
            return done.stdout, done.stderr

    names = ("CalledProcessError", "TimeoutExpired", "SubprocessError", "CompletedProcess", "PIPE", "DEVNULL", "STDOUT")
    return SimpleNamespace(run=run, check_output=check_output, Popen=Popen, **{name: getattr(subprocess, name) for name in names})


@contextlib.contextmanager
def replaced(changes: list[tuple[object, str, object]]) -> Iterator[None]:
    """Attributes of modules, for a while. One that a module does not have is a change of the product that the simulation must follow."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
