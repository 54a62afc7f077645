"""The log of a rank. Only the first rank of each node keeps a file; the others remember their last lines for a failure report."""

import io
import logging
import os
import sys
from collections import deque
from pathlib import Path

from snaketrain.runtime.binding import bind
from snaketrain.runtime.credentials import ConcealingFormatter
from snaketrain.runtime.private_files import make_private_folder, private
from snaketrain.runtime.ranks import Ranks

WARNING = "warning: "  # begins a line of a log, or follows its time
LAST_LINES = 200  # that a rank without a log remembers
_last_lines: deque[str] = deque(maxlen=LAST_LINES)


def keeps_files(of_all: bool = False) -> bool:
    """Whether this rank writes its own log, journal and trace: the first rank of each node does, or all ranks."""
    ranks = Ranks.of_environment()
    return of_all or ranks.rank == 0 or ranks.local == 0


def quiet_libraries() -> None:
    """Called before torch and transformers are imported: what all ranks would print, only rank 0 prints."""
    if Ranks.of_environment().rank:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TQDM_DISABLE", "1")
        logging.captureWarnings(True)  # they go to the log of this rank, or into its report


class LastLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _last_lines.append(self.format(record))


class LineFormatter(ConcealingFormatter):
    """Marks warnings, which the console of the workflow repeats; but not those of libraries, which are for their callers."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.WARNING and record.name != "py.warnings":
            record.message = f"{WARNING}{record.message}"
        return super().formatMessage(record)


def log_to(file: Path | None) -> None:
    """Log to a file, if one is given; rank 0 logs to the terminal too."""
    logging.raiseExceptions = False  # a line that does not fit on a full disk is not worth a traceback
    handlers: list[logging.Handler] = [LastLines()]
    if file:
        make_private_folder(file.parent)
        os.close(private(str(file), os.O_CREAT | os.O_WRONLY))
        handlers.append(logging.FileHandler(file))
    for handler in handlers:
        handler.setFormatter(LineFormatter("%(asctime)s %(message)s"))
    if Ranks.of_environment().rank == 0:
        handlers.append(logging.StreamHandler(sys.stderr))
        erase = "\x1b[K" if sys.stderr.isatty() else ""  # what is left of a live line
        handlers[-1].setFormatter(LineFormatter(f"{erase}%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)


def write_whole_lines() -> None:
    """What a rank prints appears at once, and a line in one write: ranks share the job's log, where pieces of lines would mix."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def start_rank() -> None:
    """Set up a rank of a stage that runs a model, before the slow imports."""
    write_whole_lines()
    quiet_libraries()
    log_to(None)
    bind(Ranks.of_environment())


def last_lines() -> list[str]:
    return list(_last_lines)
