"""How a training or an evaluation ends, as its exit code tells the one who started it."""

import logging
import os
import sys
import threading
from typing import NoReturn

from snaketrain.runtime.background import Worker
from snaketrain.runtime.ranks import Ranks

FAILED = 1
STOPPED_EARLY = 75  # EX_TEMPFAIL: told to stop, and saved; the same command goes on
WORTH_ANOTHER_START = 76  # nothing is wrong with the settings; the next start may do better


class WorthAnotherStart(SystemExit):
    """Ends this start of the training; what it says is told as any other failure."""

    exit_code = WORTH_ANOTHER_START


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
