"""The command in front of a script: plain python for one process, torchrun for several; and the environment of both."""

import shlex
import sys
from pathlib import Path

from snaketrain.settings import Compute


def environment(threads: int) -> str:
    # spinning threads of two processes on the same cores crawl; after the fetching everything must be on this machine
    return f"env OMP_NUM_THREADS={threads} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true"


def python(threads: int = 1) -> str:
    return f"{environment(threads)} {shlex.quote(sys.executable)}"


def python_with_network() -> str:
    return shlex.quote(sys.executable)


def launch(compute: Compute) -> str:
    """In front of a script that trains or evaluates."""
    if compute.processes == 1:
        return python(compute.threads)
    threads = max(1, compute.threads // compute.processes)
    if compute.launcher == "env":
        # $$ is the job's shell: two jobs on one machine must not meet at one port
        ranks = "SNAKETRAIN_RANKS=environment MASTER_PORT=$((20000 + $$ % 20000))"
        start = compute.launch_command.replace("{processes}", str(compute.processes))
        return f"{environment(threads)} {ranks} {start} {shlex.quote(sys.executable)}"
    torchrun = shlex.quote(str(Path(sys.executable).with_name("torchrun")))
    # torchrun forwards the signals to its processes, which save and end; it must not die of one itself
    return (
        f"{environment(threads)} {torchrun} --standalone --nproc-per-node {compute.processes} "
        "--signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    )


def say_where_to_look(uri: str | None) -> None:
    """The last lines of a finished workflow."""
    store = uri or f"sqlite:///{Path('mlflow.db').resolve()}"
    ui = uri if uri and uri.startswith("http") else f"{Path(sys.executable).with_name('mlflow')} ui --backend-store-uri {store}"
    print(f"Compare the runs:  {Path('results/comparison/index.html').resolve()}\nin MLflow:         {ui}", file=sys.stderr)
