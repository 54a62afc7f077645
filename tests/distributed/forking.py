"""Runs a stage's script in processes forked from this one, which has already imported the slow packages.

So a training starts in a fraction of a second, and can be killed a hundred times. The script itself runs, in real processes
connected by torch.distributed; only the launcher is replaced.
"""

import gc
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path

import limits
from pipeline import package_metadata

SCRIPT = Path(__file__).parents[2] / "workflow/scripts/train_model.py"
SHUTTING_DOWN_SECONDS = 60  # within which the peers must notice that one was killed


@cache
def preload() -> None:
    """Before the first fork, and with one thread: forked processes do not inherit the others."""
    import pandas  # noqa: F401
    import tensorboard.summary  # noqa: F401
    import torch
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.optim
    import torch.utils.tensorboard
    import transformers
    from transformers import BartForSequenceClassification, BertForSequenceClassification  # noqa: F401

    from snaketrain.runtime import loaded_code

    assert transformers
    package_metadata.described()
    loaded_code._distributions_of_modules()
    torch.set_num_threads(1)
    sys.path.insert(0, str(SCRIPT.parent))


def start(arguments: list[str], processes: int, log: Path, script: Path = SCRIPT) -> list[int]:
    """The pids of the ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    return [_fork(script, arguments, variables, log) for variables in rank_variables(processes)]


def rank_variables(processes: int) -> list[dict[str, str]]:
    """What a launcher would set in the environment of each rank."""
    if processes == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    size = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [{**address, **size, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def forget_what_was_read() -> None:
    """What tests in this process have opened and looked up is no input of the training."""
    from snaketrain.runtime import loaded_code

    for record in (loaded_code._opened, loaded_code._written, loaded_code._variables):
        record.clear()


def _fork(script: Path, arguments: list[str], variables: dict[str, str], log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        gc.freeze()  # what is loaded is neither looked through nor copied
        package_metadata.remember()
        os.environ.update(variables)
        # makes torch's pool of threads again, which was not forked: of several threads that do it at once, one finds none (torch 2.13)
        import torch

        torch.set_num_threads(1)
        forget_what_was_read()
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads were not forked, so it would wait for them for ever
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115 - pytest has others
        sys.argv = [str(script), *arguments]
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        os.write(2, f"{end.code}\n".encode())
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        for thread in threading.enumerate():  # a save in progress is completed, as at the end of a script
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        os._exit(code)


def wait(pids: list[int], seconds: float = 300) -> list[int]:
    """Their exit codes, negative for signals; a process that does not end within the time limit (for an idle machine) is killed."""
    began, codes = time.monotonic(), {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(found[1])
        if time.monotonic() - began > limits.seconds(seconds):
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def run(arguments: list[str], processes: int, log: Path, script: Path = SCRIPT) -> list[int]:
    return wait(start(arguments, processes, log, script))


def ended(pids: list[int]) -> bool:
    """Whether any has."""
    return any(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids)


def kill(pids: list[int], seconds: float, victims: list[int], connected: Callable[[], bool]) -> None:
    """Kill some of the ranks after a while; all of them if the peers are not `connected` yet, since those would wait long for a missing rank."""
    time.sleep(seconds)
    for rank in victims if connected() else range(len(pids)):
        os.kill(pids[rank], signal.SIGKILL)


def some(processes: int, draw: random.Random) -> list[int]:
    """One of the ranks, or all."""
    return [draw.randrange(processes)] if draw.random() < 0.7 else list(range(processes))
