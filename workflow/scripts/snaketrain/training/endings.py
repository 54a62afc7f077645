"""How a training or an evaluation ends, as its exit code tells the one who started it."""

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from snaketrain.training.background import Worker
from snaketrain.training.ranks import Ranks

FAILED = 1
STOPPED_EARLY = 75  # EX_TEMPFAIL: told to stop, and saved; the same command goes on
WORTH_ANOTHER_START = 76  # nothing is wrong with the settings; the next start may do better


class WorthAnotherStart(SystemExit):
    """Ends this start of the training; what it says is told as any other failure."""


def run(main: Callable[[], int | None], tell: Callable[[BaseException], None]) -> NoReturn:
    """Call a script's `main` and end the process with its exit code, or, after `tell`, with that of what it raises.

    Every way out of the script leads through here: of several processes, the others would wait for one that hangs at its end.
    """
    try:
        code = main() or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        code = 128 + signal.SIGINT
    except BaseException as error:
        code = code_of(error)
        try:
            tell(error)
        except BaseException:  # such as a full disk
            traceback.print_exc()
    leave(code)


def code_of(error: BaseException) -> int:
    """Never 0: a script that is done returns."""
    if isinstance(error, WorthAnotherStart):
        return WORTH_ANOTHER_START
    asked = error.code if isinstance(error, SystemExit) else None
    return asked if isinstance(asked, int) and asked else FAILED


def leave(code: int) -> NoReturn:
    """End this process; one of several without taking torch.distributed down.

    The destructor of torch's gloo group (2.13) keeps Python's lock while it waits for a thread that wants that lock, now and
    then: a finished training would hang.
    """
    if Ranks.of_environment().world_size == 1:
        sys.exit(code)
    for thread in threading.enumerate():
        if isinstance(thread, Worker):
            thread.join()  # what is being saved is saved to the end; others, such as a pool's, may wait for work for ever
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
