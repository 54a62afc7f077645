"""A stand-in for Python that forks a server which has already imported the slow packages.

Importing torch, transformers and MLflow takes longer than all the work of a small workflow's stages. Snakemake, each stage's
script and the follower still run as processes of their own, from the command lines that Snakemake makes: `sys.executable` is a
small program that is a client of the server. Anything but a script, and a script whose environment has variables that packages
read when they are imported, gets the real Python.
"""

import sys
import tempfile
from functools import cache
from pathlib import Path

from snaketrain.extras.warm_start import launching

HERE = Path(__file__).parent
STAND_IN = """#!{python} -IS
import os, sys
if sys.argv[1:3] == ["-m", "snakemake"]:  # in a job of a cluster
    sys.argv[1:3] = [{snakemake!r}]
if sys.argv[1:2] == ["-u"] and sys.argv[2:] and sys.argv[2].endswith(".py"):  # as torchrun starts its workers
    del sys.argv[1]
    os.environ["SNAKETRAIN_UNBUFFERED"] = "1"
if not sys.argv[1:] or not sys.argv[1].endswith((".py", "/torchrun")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
sys.argv[1:1] = [{address!r}]
exec(compile(open({client!r}).read(), {client!r}, "exec"))
"""


@cache
def warm_python() -> str:
    """The path of the stand-in; its server starts now, and ends with this process."""
    folder, real = Path(tempfile.mkdtemp(prefix="warm-python-")), Path(sys.executable)
    for program in real.parent.iterdir():  # torchrun and mlflow are searched beside Python
        if not program.name.startswith("python"):
            (folder / program.name).symlink_to(program)
    stand_in = folder / "python"
    server = [str(HERE / "fork_server.py"), str(stand_in), str(launching.SERVER.parent)]
    address = launching.start(*server, environment={"HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}).address
    snakemake = str(HERE / "forked_snakemake.py")
    stand_in.write_text(STAND_IN.format(python=str(real), address=address, snakemake=snakemake, client=str(launching.CLIENT)))
    stand_in.chmod(0o755)
    return str(stand_in)
