"""Runs one piece of work at a time beside the training. An error in it is raised in the training, at the next call."""

import threading
from collections.abc import Callable


class Worker(threading.Thread):
    """Not a daemon: if the training fails, saving still completes."""


class Background:
    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        self.finish()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # also SystemExit, which a thread would swallow
                self._error = error

        self._thread = Worker(target=run, name="background")
        self._thread.start()

    def finish(self) -> None:
        """Wait for the work."""
        if self._thread:
            self._thread.join()
            self._thread = None
        self.raise_error()

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error
