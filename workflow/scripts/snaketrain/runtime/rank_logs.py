"""What each rank writes for people: its log, and a report of its failure."""

import io
import json
import logging
import os
import platform
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import digest, make_private_folder, private
from snaketrain.runtime.ranks import Ranks

# --- The log of a rank. Only the first rank of each node keeps a file; the others remember their last lines for a failure report.

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


class LineFormatter(logging.Formatter):
    """Hides secrets, also in tracebacks. Marks warnings, which the workflow's console repeats; not those of libraries, which are for their callers."""

    def format(self, record: logging.LogRecord) -> str:
        return hidden(super().format(record))

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


# --- When ranks fail together, the first one reports why; the others lost their connection to it, or failed in the same place.
#
# logs/failed/START/first.json     the first failure of this start of the ranks
# logs/failed/START/rank-N.txt     traceback and last lines of each rank that failed by itself

# the same in all ranks
OF_ONE_START = ("SNAKETRAIN_START", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "SLURM_JOB_ID")
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL", "ncclRemoteError")


@dataclass(frozen=True)
class Failure:
    rank: int
    host: str
    place: str  # where it was raised
    cause: str  # in one line, or the message that says what to do
    lost_peer: bool  # another rank ended first, perhaps without a message

    @classmethod
    def of(cls, error: BaseException, rank: int) -> "Failure":
        frames = traceback.extract_tb(error.__traceback__)
        cause = str(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        place = f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}" if frames else cause
        lost_peer = type(error).__name__.startswith("Dist") or any(words in str(error) for words in LOST_PEER)
        return cls(rank, platform.node(), place, hidden(cause), isinstance(error, RuntimeError | ConnectionError) and lost_peer)

    @property
    def sentence(self) -> str:
        lost = " lost its connection to a rank that ended without a message" if self.lost_peer else ""
        return f"rank {self.rank} on {self.host}{lost}: {self.cause}"


def report_failure(what: str, logs: Path, error: BaseException) -> str:
    """Print once why the ranks fail, and save what a diagnosis needs; returns the cause as a sentence."""
    ranks = Ranks.of_environment()
    mine, message = Failure.of(error, ranks.rank), _message(what, error)
    if ranks.world_size == 1:
        logging.error(message)
        return mine.cause
    folder = logs / "failed" / digest([os.environ.get(name) for name in OF_ONE_START])[:8]
    first, report = _first(folder, mine), folder / f"rank-{mine.rank}.txt"
    if first == mine:
        _write_report(report, message)
        _print(f"{mine.sentence}\n" if mine.lost_peer else f"rank {mine.rank} on {mine.host} failed first. {message}")
    elif mine.lost_peer or mine.place == first.place:
        logging.info("rank %d ends because of rank %d on %s: %s", mine.rank, first.rank, first.host, first.cause)
    else:
        _write_report(report, message)
        _print(f"{mine.sentence} (after rank {first.rank}; {report})")
    return first.sentence


def _message(what: str, error: BaseException) -> str:
    if isinstance(error, SystemExit) and isinstance(error.code, str):  # what to do about it is all that matters
        return error.code
    return f"the {what} failed\n{''.join(traceback.format_exception(error))}"


def _first(folder: Path, mine: Failure) -> Failure:
    """The first failure of this start, which is `mine` if there was none before."""
    try:
        make_private_folder(folder)
        with open(folder / "first.json", "x", encoding="utf-8", opener=private) as file:
            file.write(json.dumps(asdict(mine)))
        return mine
    except FileExistsError:
        for _ in range(50):
            with suppress(ValueError):  # it is being written
                return Failure(**json.loads((folder / "first.json").read_text(encoding="utf-8")))
            time.sleep(0.1)
    except OSError:  # a full disk, or one that is gone
        pass
    return mine


def _write_report(path: Path, message: str) -> None:
    with suppress(OSError), open(path, "w", encoding="utf-8", opener=private) as file:
        file.write("\n".join([*_last_lines, hidden(message), ""]))


def _print(text: str) -> None:
    """On the terminal and in the log of this rank."""
    logging.error(text)
    if Ranks.of_environment().rank:  # whose log does not go to the terminal
        print(hidden(text), file=sys.stderr, flush=True)
