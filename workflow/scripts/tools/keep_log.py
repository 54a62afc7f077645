"""Copy standard input to the terminal and to a log, as `tee` does, but without passwords. All output of a stage passes through here."""

import argparse
import codecs
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package's folder

from snaketrain.runtime.credentials import hidden

PARTIAL_LINE_SECONDS = 0.5  # an unfinished line, such as a progress bar, is shown after this time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", help="file to write to")
    parser.add_argument("-a", "--append", action="store_true", help="append to the log instead of overwriting it")
    args = parser.parse_args()
    # it ends when its input does: a stage that is being stopped may still write messages
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    reported = False
    with open(args.log, "ab" if args.append else "wb") as log:
        for text in lines():
            content = hidden(text).encode(errors="surrogateescape")
            write(sys.stdout.fileno(), content)
            if (problem := write(log.fileno(), content)) and not reported:
                write(sys.stdout.fileno(), f"{args.log}: cannot be written ({problem}); the stage continues without it\n".encode())
                reported = True


def lines() -> Iterator[str]:
    """Whole lines and updates of a progress bar, as they arrive."""
    decode, waiting = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode, ""
    while True:
        if waiting and not select.select([0], [], [], PARTIAL_LINE_SECONDS)[0]:
            yield waiting
            waiting = ""
        if not (read := os.read(0, 1 << 16)):
            break
        *complete, waiting = re.split(r"(?<=[\n\r])", waiting + decode(read))
        if complete:
            yield "".join(complete)
    if waiting := waiting + decode(b"", True):
        yield waiting


def write(place: int, content: bytes) -> OSError | None:
    """Write, but return an error instead of raising it: a closed terminal or a full disk must not end the stage."""
    try:
        while content:
            content = content[os.write(place, content) :]
    except OSError as error:
        return error
    return None


if __name__ == "__main__":
    main()
