"""The server behind warm_python.py: imports the slow packages once, and runs each requested script in a forked process."""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any


def preload() -> None:
    """Packages only: each process imports the code under test itself, and may import another copy of it."""
    import alembic.command
    import matplotlib.backends.backend_svg
    import mlflow.store.tracking.sqlalchemy_workspace_store
    import mlflow.tracing.processor.otel
    import pandas
    import peft
    import PIL.Image
    import pyarrow.pandas_compat
    import pyarrow.parquet
    import scipy.stats
    import sklearn.metrics
    import smart_open
    import snakemake.cli
    import snakemake.profiles
    import snakemake.report.html_reporter
    import sqlalchemy.dialects.sqlite
    import tensorboard.summary
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.optim
    import torch.utils.tensorboard
    import torchmetrics
    from transformers import AutoTokenizer, BertForSequenceClassification, LlamaForCausalLM

    matplotlib.use("Agg")
    PIL.Image.preinit()
    assert alembic and mlflow and pandas and peft and pyarrow and scipy and sklearn and smart_open and snakemake and sqlalchemy
    assert tensorboard and torch and torchmetrics and AutoTokenizer and BertForSequenceClassification and LlamaForCausalLM
    mlflow_tables = importlib.import_module("mlflow_tables")  # beside this file
    mlflow_tables.make_once()
    del sys.modules["mlflow_tables"]  # no stage has loaded it


def serve(address: str) -> tuple[list[int], dict[str, Any]]:
    """The files and the request for a new process; returns only in that process, never in the server."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that answer
        while True:
            connection = listening.accept()[0]
            if not os.fork():
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    request = json.loads(received(connection, int.from_bytes(size, "big")))
    if pid := os.fork():
        attend(pid, connection)
    connection.close()
    return files, request


def received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := connection.recv(size - len(found))):
        found += more
    return found


def attend(pid: int, connection: socket.socket) -> None:
    """Passes signals on to the process, ends it if its stand-in was killed, and sends its exit code. Never returns."""
    ended = os.pidfd_open(pid)
    while ended not in select.select([ended, connection], [], [])[0]:
        signals = connection.recv(16)
        for number in signals:
            os.kill(pid, number)
        if not signals:
            os.killpg(pid, signal.SIGKILL)
            break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.send(str(code).encode())
    finally:
        os._exit(0)


def become(stand_in: str, files: list[int], words: list[str], folder: str, environment: dict[str, str]) -> None:
    """As if Python had been started in that folder with these arguments."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:  # which torch reads when it is imported
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.executable, sys.argv, sys.orig_argv = stand_in, words, [stand_in, *words]
    sys.path[:1] = [str(Path(words[0]).resolve().parent), *environment["PYTHONPATH"].split(os.pathsep)]


def run(script: str) -> int:
    """Its exit code, as Python would choose it."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(code: int) -> None:
    """As Python ends, but without taking all the imported packages apart, which takes longer than many a script."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    os._exit(code)


if __name__ == "__main__":
    preload()
    gc.freeze()
    files, request = serve(sys.argv[1])
    become(sys.argv[2], files, **request)
    end(run(sys.argv[0]))
