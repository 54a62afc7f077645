"""The server's start, before runs are tried or the first job on this machine trains or evaluates, and the words through which a Python is started."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.schema import Compute
from snaketrain.orchestration.launching import has_gpus, own_variables

SWITCH = "SNAKETRAIN_WARM_START"  # `0`: each stage imports its packages itself
SERVER, CLIENT = (Path(__file__).with_name(f"{name}.py") for name in ("server", "client"))
SECONDS_TO_END = 2.0


class Server(NamedTuple):
    address: str
    process: "subprocess.Popen[bytes]"  # which ends when its standard input does, with this process at the latest

    @property
    def words(self) -> list[str]:
        return [str(CLIENT), self.address]


servers: list[Server] = []  # of this process: one, or none
of_jobs: list[Server] = []  # the same, once it is known that jobs on this machine use it


def words_for_trying() -> list[str]:
    return begin()


def before_first_job(computes: Iterable[Compute], executor: str) -> None:
    if executor == "local" and any(map(is_plain, computes)):
        begin()
        of_jobs[:] = servers
    else:
        end()


def python_words(compute: Compute) -> list[str]:
    return of_jobs[0].words if of_jobs and is_plain(compute) else []


def begin() -> list[str]:
    """The words in front of a script. Not on a machine with GPUs, where it has not been tried."""
    if not servers and sys.platform == "linux" and not has_gpus() and os.environ.get(SWITCH) != "0":
        try:
            servers.append(start())
        except OSError as error:
            print(f"Each stage imports its packages itself: {error}", file=sys.stderr, flush=True)
    return servers[0].words if servers else []


def end() -> None:
    while servers:
        stop(servers.pop())
    of_jobs.clear()


def is_plain(compute: Compute) -> bool:
    return compute.processes == 1 and not (compute.environment or compute.setup or compute.container)


def start(*command: str, environment: Mapping[str, str] | None = None) -> Server:
    """A client that comes before it is ready waits for it. `command`: another server, which is told the number of its socket last."""
    address = f"{tempfile.mkdtemp(prefix='snaketrain-')}/socket"  # in a folder that only this user may enter
    if environment is None:
        environment = dict(variable.split("=", 1) for variable in own_variables(Compute(threads=1)))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        number = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, *(command or [str(SERVER)]), str(number)],
            stdin=subprocess.PIPE,
            env=os.environ | environment,
            pass_fds=[number],
            start_new_session=True,
        )
    server = Server(address, process)
    atexit.register(stop, server)
    return server


def stop(server: Server) -> None:
    """And have its CPU time, and that of the stages, counted as that of snakemake."""
    if server.process.poll() is not None:
        return
    try:
        server.process.communicate(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:  # it still imports
        server.process.kill()
        server.process.wait()
    shutil.rmtree(Path(server.address).parent, ignore_errors=True)
