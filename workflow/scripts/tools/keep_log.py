"""Run a stage's command, and write it and all its output to a log, in whole lines and without passwords.

Of a progress bar, which redraws its line again and again, only the last state is kept.
"""

import argparse
import codecs
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# ruff: noqa: E402
signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a traceback while the stage is not started yet
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package's folder

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import private
from snaketrain.runtime.processes import kill_since, memory_use

LONGEST_LINE = 1 << 20  # characters; an endless line is written in parts
# what a progress bar has drawn over; looked for at the beginnings of lines alone, since a line may have a million characters
REDRAWN = re.compile(r"(?<![^\r\n])[^\r\n]*+\r(?!\n)(?=[^\r\n])")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-a", "--append", action="store_true", help="append to the log instead of overwriting it")
    parser.add_argument("--show", action="store_true", help="also copy everything to standard output, as `tee` does")
    parser.add_argument("log", help="file to write to")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command to run (default: what to write comes from standard input)")
    args = parser.parse_args()
    stage = started(args.command) if args.command else None
    source = stage.stdout.fileno() if stage and stage.stdout else 0
    # it ends when its input does: a stage that is being stopped may still write messages
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    problem = None
    with open(args.log, "ab" if args.append else "wb", opener=private) as log:
        for text in lines(source) if stage is None else of_stage(args.command, stage, source):
            content = hidden(text).encode(errors="surrogateescape")
            if not problem and (problem := write(log.fileno(), content)):
                report = f"{args.log}: cannot be written ({problem}); the stage continues, and its output follows here\n"
                write(sys.stdout.fileno(), report.encode())
            if problem or args.show:
                write(sys.stdout.fileno(), content)
    return code_of(stage) if stage else 0


def started(command: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise SystemExit(f"{command[0]}: cannot be started: {error.strerror}") from None


def of_stage(command: list[str], stage: subprocess.Popen[bytes], source: int) -> Iterator[str]:
    """Its command, ready to be repeated; what it prints; and how it ended."""
    yield f"{shlex.join(command)}\n"
    yield from lines(source)
    yield from how_it_ended(code_of(stage))


def code_of(stage: subprocess.Popen[bytes]) -> int:
    """As a shell says it."""
    return 128 - code if (code := stage.wait()) < 0 else code


def lines(source: int) -> Iterator[str]:
    """Whole lines, as they arrive; then what the kernel has killed meanwhile, as it may have been the stage."""
    before = memory_use()
    yield from lines_of_stage(source)
    if kill := kill_since(before):
        yield f"{kill}\n"


def lines_of_stage(source: int) -> Iterator[str]:
    decode, waiting = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode, ""
    while read := os.read(source, 1 << 16):
        complete, newline, waiting = REDRAWN.sub("", waiting + decode(read)).rpartition("\n")
        if newline:
            yield complete + newline
        if len(waiting) > LONGEST_LINE:
            yield waiting
            waiting = ""
    if waiting := waiting + decode(b"", True):
        yield waiting


def how_it_ended(code: int) -> Iterator[str]:
    """Of the codes in `ranks.py` and of an interrupt, the stage itself has given the reason."""
    from snaketrain.runtime.ranks import FAILED, SETUP_FAILED, STOPPED_EARLY, WORTH_ANOTHER_START

    if code > 128 and code - 128 in set(signal.Signals) - {signal.SIGINT}:
        yield f"killed by {signal.Signals(code - 128).name}\n"
    elif code not in (0, FAILED, STOPPED_EARLY, WORTH_ANOTHER_START, SETUP_FAILED, 128 + signal.SIGINT):
        yield f"ended with exit code {code}\n"


def write(place: int, content: bytes) -> OSError | None:
    """Write, but return an error instead of raising it: a closed terminal or a full disk must not end the stage."""
    try:
        while content:
            content = content[os.write(place, content) :]
    except OSError as error:
        return error
    return None


if __name__ == "__main__":
    sys.exit(main())
