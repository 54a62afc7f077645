"""A stand-in for Python that forks a server which has already imported the slow packages.

Importing torch, transformers and MLflow takes longer than all the work of a small workflow's stages. Snakemake, each stage's
script and the follower still run as processes of their own, from the command lines that Snakemake makes: `sys.executable` is a
small program that asks the server for a forked process, hands its files and signals on, and ends as that process ends. Anything
but a script, and a script whose environment has variables that packages read when they are imported, gets the real Python.
"""

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

READ_AT_IMPORT = ("CUDA", "HF_", "LD_", "PYTHON", "TRANSFORMERS_")
OFFLINE = {"HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
SNAKEMAKE = str(Path(__file__).with_name("forked_snakemake.py"))
MAY_DIFFER = ("PYTHONPATH", *OFFLINE)  # the server follows the first
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

def read_at_import():
    return {{name: value for name, value in os.environ.items() if name.startswith({prefixes}) and name not in {but}}}

if sys.argv[1:3] == ["-m", "snakemake"]:  # in a job of a cluster
    sys.argv[1:3] = [{snakemake!r}]
if not sys.argv[1:] or not sys.argv[1].endswith(".py") or read_at_import() != {environment}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: connection.send(bytes([number])))
request = json.dumps({{"words": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}).encode()
socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
connection.sendall(request)
answer = connection.recv(16)
code = int(answer) if answer else 1
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def warm_python() -> str:
    """The path of the stand-in; its server starts now, and ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm-python-"))
    address, real = folder / "socket", Path(sys.executable)
    for program in real.parent.iterdir():  # torchrun and mlflow are searched beside Python
        if not program.name.startswith("python"):
            (folder / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT) and name not in MAY_DIFFER}
    stand_in = folder / "python"
    stand_in.write_text(
        CLIENT.format(
            python=str(real), address=str(address), prefixes=READ_AT_IMPORT, but=MAY_DIFFER, environment=environment, snakemake=SNAKEMAKE
        )
    )
    stand_in.chmod(0o755)
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(address), str(stand_in)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | OFFLINE, start_new_session=True)
    atexit.register(server.kill)
    assert server.stdout and server.stdout.readline() == b"ready\n", "the server of warm_python did not start"
    return str(stand_in)
