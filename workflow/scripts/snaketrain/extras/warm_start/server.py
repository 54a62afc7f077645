"""`server.py SOCKET`, the number of a listening one: imports slow packages once, and forks a process for each script that a client hands it.

Only packages: each process imports the project's code itself, which may change while a workflow runs.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

# no package has read them; libreadline sets the last two in a process that loads it, out of Python's sight
MAY_DIFFER = {"PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "TMP", "TEMP", "TEMPDIR", "LINES", "COLUMNS"}
OWN, THREADS = "SNAKETRAIN_", "_THREADS"  # ours; Snakemake sets variables of several libraries, and torch is told once more
IMPORTED_WITH = dict(os.environ)
PACKAGES = (
    "pyarrow.parquet",
    "torch.distributed.checkpoint.state_dict",
    "transformers.modeling_utils",
    "transformers.tokenization_utils_fast",
)
LATER = ("matplotlib.pyplot", "pydantic", "pyarrow.compute", "pandas")  # while no script waits


def preload(*names: str) -> None:
    for name in names:
        importlib.import_module(name)


def serve(listening: socket.socket) -> socket.socket:
    """The connection to a client; returns only in the process that attends to it, and ends when whoever started the server has ended."""
    later = list(LATER)
    while True:
        ready, _, _ = select.select([sys.stdin, listening], [], [], 0 if later else None)
        if not ready:
            preload(later.pop(0))
            continue
        reap()
        if sys.stdin in ready:
            shutil.rmtree(Path(listening.getsockname()).parent, ignore_errors=True)
            os._exit(0)  # taking all packages apart would take longer than many a script
        connection, _ = listening.accept()
        gc.freeze()  # no process's collector touches, and so copies, what is loaded
        if not os.fork():
            listening.close()
            return connection
        connection.close()


def reap() -> None:
    """The processes that have ended, so that their CPU time counts as that of snakemake."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def fork(connection: socket.socket) -> list[str]:
    """Script and arguments, in the new process; the other one ends here, when that has ended."""
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as sent:
        request = json.loads(sent.read(int.from_bytes(size, "big")))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    environment: dict[str, str] = request["environment"]
    others = differing(environment)
    if others:
        print(
            f"Imports its packages itself, since these variables are not those of snakemake: {', '.join(others)}",
            file=sys.stderr,
            flush=True,
        )
    try:
        connection.send(b"n" if others else b"y")
    except OSError:  # Ctrl-C has ended the client while it waited
        os._exit(0)
    if others:
        os._exit(0)
    if pid := os.fork():
        attend(pid, connection)
    connection.close()
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # what it was with the server's TMPDIR
    return list(request["words"])


def differing(environment: dict[str, str]) -> list[str]:
    """The variables that packages may have read with other values when they were imported here."""
    names = {name for name, _ in environment.items() ^ IMPORTED_WITH.items()} - MAY_DIFFER
    return sorted(name for name in names if not name.endswith(THREADS) and not name.startswith(OWN))


def attend(pid: int, connection: socket.socket) -> None:
    """Hands signals on to the process, ends it if its client was killed, and sends its exit code. Never returns."""
    ended = os.pidfd_open(pid)
    both: list[int | socket.socket] = [ended, connection]
    while ended not in select.select(both, [], [])[0]:
        signals = connection.recv(16)
        for number in signals:
            if number == signal.SIGTSTP:  # with what it has started, as in a terminal
                os.killpg(pid, signal.SIGSTOP)
            elif number == signal.SIGCONT:
                os.killpg(pid, signal.SIGCONT)
            else:
                os.kill(pid, number)
        if not signals:
            os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.send(str(code).encode())
    finally:
        os._exit(0)


def become(script: str, *arguments: str) -> None:
    """As if Python had been started with these."""
    import torch

    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.argv, sys.orig_argv = [script, *arguments], [sys.executable, script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)


def run(script: str) -> int:
    """Its exit code, as Python would choose it."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except Exception:  # Ctrl-C ends Python by its signal
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def main(socket_number: str) -> None:
    preload(*PACKAGES)
    become(*fork(serve(socket.socket(fileno=int(socket_number)))))
    code = run(sys.argv[0])
    from snaketrain.runtime.processes import end_quickly  # of the project, so not before the script has run

    end_quickly(code)


if __name__ == "__main__":
    main(sys.argv[-1])
