"""The exit codes of a training or an evaluation, which tell its launcher what to do next."""

import logging
import os
import sys
import threading
from typing import NoReturn

from snaketrain.runtime.background import Worker
from snaketrain.runtime.ranks import Ranks

FAILED = 1
STOPPED_EARLY = 75  # EX_TEMPFAIL: stopped by a signal after saving; the same command resumes
SETUP_FAILED = 78  # EX_CONFIG: compute.setup, on a node
WORTH_ANOTHER_START = 76  # the settings are right; another start may succeed


class WorthAnotherStart(SystemExit):
    """Ends this attempt; its message is reported like that of any other failure."""

    exit_code = WORTH_ANOTHER_START


def leave(code: int) -> NoReturn:
    """Exit; one of several ranks without running torch.distributed's destructors.

    The destructor of torch's gloo process group (2.13) sometimes holds the GIL while it waits for a thread that needs the GIL:
    a finished training would hang.
    """
    if Ranks.of_environment().world_size == 1:
        sys.exit(code)
    for thread in threading.enumerate():
        if isinstance(thread, Worker):
            thread.join()  # finish what is being saved; other threads, such as a pool's, may wait for work forever
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
