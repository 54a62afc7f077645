"""Processes and threads in virtual time: one real thread, in which greenlets take turns in an order that only the seed decides.

A greenlet runs until it waits: for a moment, an event, a lock. Nothing else moves the clock, so a day takes seconds, and the same
history is repeated to the letter.
"""

import heapq
import itertools
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH = 1_800_000_000.0  # what time.time() says at the start of a history
TIMED_OUT = object()


class StuckForEver(Exception):
    """Every process waits, and no event will ever wake one."""


@dataclass(frozen=True)
class Raise:
    error: BaseException


class World:
    def __init__(self) -> None:
        self.now, self.closed, self.hub = 0.0, False, getcurrent()
        self.events: list[tuple[float, str]] = []
        self.problems: list[str] = []
        self.threads: list[Thread] = []  # keeps those of killed processes, which Python would unwind otherwise
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._pids = itertools.count(), itertools.count(1000)
        self.pids: set[int] = set()  # of processes that live

    def note(self, text: str) -> None:
        self.events.append((self.now, text))

    def problem(self, text: str) -> None:
        """What must never happen."""
        self.note(f"PROBLEM: {text}")
        self.problems.append(text)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + max(0.0, seconds), next(self._numbers), action))

    def run(self, is_over: Callable[[], bool], horizon: float) -> None:
        while not is_over():
            if not self._queue:
                raise StuckForEver("nothing is going to happen any more")
            self.now, _, action = heapq.heappop(self._queue)
            if self.now > horizon:
                raise StuckForEver(f"not over after {horizon / 3600:.0f} hours")
            action()

    def close(self) -> None:
        """Unwind what still waits."""
        self.closed = True
        for thread in self.threads:
            if not thread.dead:
                thread.throw(GreenletExit)
        self.threads.clear()


class Process:
    """A process of the operating system on a host: its threads, environment and signals; killed, frozen and thawed as a whole."""

    def __init__(self, world: World, host: str, environment: dict[str, str] | None = None):
        self.world, self.host, self.environment = world, host, environment or {}
        self.pid = next(world._pids)
        world.pids.add(self.pid)
        self.alive, self.frozen = True, False
        self.main: Thread | None = None
        self.signals: list[int] = []
        self.asleep = 0.0  # seconds that its monotonic clock did not count
        self.at_exit: list[Callable[[int], None]] = []
        self._due: list[Callable[[], None]] = []  # what happened to it while it was frozen

    def start(self, target: Callable[[], int | None]) -> "Process":
        """Its main thread, whose return ends it with that exit code."""

        def main() -> None:
            try:
                code = target() or 0
            except SystemExit as error:
                self.world.note(f"{self.host}/{self.pid}: {error}")
                code = 1
            except KeyboardInterrupt:
                code = 130
            self.end(code)

        self.main = Thread(self, main)
        self.main.start()
        return self

    def end(self, code: int) -> None:
        if self.alive:
            self.alive = False
            self.world.pids.discard(self.pid)
            for action in self.at_exit:
                action(code)

    def kill(self) -> None:
        self.end(-9)

    def interrupt(self) -> None:
        """What Python does with Ctrl-C."""
        if self.alive and self.main is not None:
            self.main.wake(self.main.turn, Raise(KeyboardInterrupt()))

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self, uncounted: float = 0.0) -> None:
        self.frozen, due, self._due = False, self._due, []
        self.asleep += uncounted
        for action in due:
            self.world.after(0, action)

    def when_awake(self, action: Callable[[], None]) -> None:
        if self.frozen:
            self._due.append(lambda: self.when_awake(action))
        elif self.alive:
            action()


class Thread(greenlet):
    def __init__(self, process: Process, target: Callable[[], object]):
        self.process, self.turn, self.over = process, 0, Flag(process.world)
        super().__init__(self._main, process.world.hub)
        self.target = target
        process.world.threads.append(self)

    def _main(self, _: object) -> None:
        try:
            self.target()
        except GreenletExit:
            pass
        except Exception as error:  # Python would print it, and nobody would read that
            self.process.world.problem(f"a thread on {self.process.host} ends with {error!r}{origin(error)}")
        self.over.set()

    def start(self) -> None:
        self.wake(self.turn, None)

    def wake(self, turn: int, value: object) -> None:
        """Continue with `value`, unless it has continued meanwhile."""
        self.process.world.after(0, lambda: self.process.when_awake(lambda: self._resume(turn, value)))

    def _resume(self, turn: int, value: object) -> None:
        if turn == self.turn and not self.dead:
            self.turn += 1
            self.switch(value)


def origin(error: BaseException) -> str:
    """Where an error comes from, on one line."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " in " + ", ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)


def current() -> Thread:
    thread = getcurrent()
    assert isinstance(thread, Thread), "called outside of the simulation"
    return thread


def park(seconds: float | None = None) -> object:
    """Let others run until somebody wakes this thread, or the time is over."""
    thread = current()
    world, turn = thread.process.world, thread.turn
    if world.closed or not thread.process.alive:
        raise GreenletExit
    if seconds is not None:
        world.after(seconds, lambda: thread.process.when_awake(lambda: thread._resume(turn, TIMED_OUT)))
    value = world.hub.switch()
    if isinstance(value, Raise):
        raise value.error
    return value


def sleep(seconds: float) -> None:
    park(max(0.0, seconds))


class Flag:
    """What threads wait for: threading.Event."""

    def __init__(self, world: World):
        self._world, self._set = world, False
        self._waiting: list[tuple[Thread, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread, turn in waiting:
            thread.wake(turn, None)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            thread = current()
            self._waiting.append((thread, thread.turn))
            park(timeout)
        return self._set


class Counter:
    """threading.Semaphore, and with a count of one threading.Lock."""

    def __init__(self, count: int = 1):
        self._count = count
        self._waiting: list[tuple[Thread, int]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._count == 0:
            if not blocking:
                return False
            thread = current()
            self._waiting.append((thread, thread.turn))
            if park(None if timeout < 0 else timeout) is TIMED_OUT:
                return False
        self._count -= 1
        return True

    def release(self) -> None:
        self._count += 1
        waiting, self._waiting = self._waiting, []
        for thread, turn in waiting:
            thread.wake(turn, None)

    def locked(self) -> bool:
        return self._count == 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
