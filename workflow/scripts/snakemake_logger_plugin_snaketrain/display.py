"""A terminal whose last lines are live: they say what runs, and are drawn again below whatever else is printed."""

import io
import os
import shutil
import threading
from collections.abc import Sequence
from typing import TextIO

LINES_OF_OTHERS = 4  # at the bottom of a terminal with more live lines than it can show


class Display(io.TextIOBase):
    """Takes the place of a stream. Whatever is written replaces the live lines, which are drawn again below it."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._lock = threading.RLock()
        self._lines: Sequence[str] = ()
        self._drawn = 0

    def write(self, text: str) -> int:
        with self._lock:
            self._erase()
            self.stream.write(text)
            if text.endswith("\n"):
                self._draw()
            self.stream.flush()
        return len(text)

    def show(self, lines: Sequence[str]) -> None:
        """The live lines from now on; none but in a terminal."""
        with self._lock:
            self._erase()
            self._lines = lines if self.is_live else ()
            self._draw()
            self.stream.flush()

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class declares an attribute
        return self.stream.encoding

    def _erase(self) -> None:
        if self._drawn:
            self.stream.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _draw(self) -> None:
        """Cut, not wrapped: a line that takes two rows could not be erased."""
        width, height = shutil.get_terminal_size()
        room = max(1, height - LINES_OF_OTHERS)
        shown = list(self._lines[:room])
        if len(self._lines) > room:
            shown[-1] = f"... and {len(self._lines) - room + 1} more"
        for line in shown:
            self.stream.write(f"{line[: width - 1]}\n")
        self._drawn = len(shown)
