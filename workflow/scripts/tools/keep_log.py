"""Copy what comes in to the terminal and to a log, as `tee` does, but without passwords: all that a stage says goes through here."""

import argparse
import codecs
import os
import re
import select
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.runtime.credentials import hidden

PARTIAL_LINE_SECONDS = 0.5  # a line that stays unfinished for so long is shown as it is, such as a bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("-a", "--append", action="store_true")
    args = parser.parse_args()
    # it ends with those that it listens to: they may still have something to say when they are told to end
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    told = False
    with open(args.log, "ab" if args.append else "wb") as log:
        for text in lines():
            content = hidden(text).encode(errors="surrogateescape")
            write(sys.stdout.fileno(), content)
            if (problem := write(log.fileno(), content)) and not told:
                write(sys.stdout.fileno(), f"{args.log}: cannot be written ({problem}); the stage goes on without it\n".encode())
                told = True


def lines():
    """Whole lines, and what a bar draws, as they come."""
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
    """A terminal that was closed, or a full disk, must not end the stage that is speaking."""
    try:
        while content:
            content = content[os.write(place, content) :]
    except OSError as error:
        return error
    return None


if __name__ == "__main__":
    main()
