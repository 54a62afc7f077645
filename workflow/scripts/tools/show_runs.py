"""Start MLflow's web pages on this machine and open the view of the runs in its database.

If a server already shows this database, its address is printed; if the port is in use by something else, the next free one is taken.
"""

import argparse
import contextlib
import getpass
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.runtime.credentials import resolved
from snaketrain.tracking.database import SQLITE, readable

HOST = "127.0.0.1"
NAME = "snaketrain.localhost"  # also this machine, for browsers; under the names 127.0.0.1 and localhost MLflow gives a quarter of the page to its Assistant
PORTS = 100  # that are tried, from the given one on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uri", help="address of MLflow's database (default: mlflow.db in the current folder)")
    parser.add_argument(
        "--port",
        type=int,
        default=5000,
        help="port of the web pages on 127.0.0.1; if it is taken, the next free one (default: %(default)s)",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the addresses without opening a browser")
    args = parser.parse_args()
    uri = resolved(args.uri) if args.uri else f"{SQLITE}{Path('mlflow.db').resolve()}"
    with readable(uri) as store:
        if port := port_of_server(store):
            print(f"MLflow runs already, on port {port}.", file=sys.stderr)
            show(store, address(port, HOST), browser=not args.no_browser)  # it may be one that refuses our name
        else:
            serve(store, free_port(args.port), browser=not args.no_browser)


def serve(store: str, port: int, browser: bool) -> None:
    ui = address(port)
    command = [str(Path(sys.executable).with_name("mlflow")), "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    quiet = ["--uvicorn-opts", "--no-access-log --log-level warning"]
    command += ["--allowed-hosts", ",".join(f"{name}:*" for name in (NAME, HOST, "localhost"))]  # the others for programs, and for tunnels
    command += ["--cors-allowed-origins", address("*")]
    options = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"}
    server = subprocess.Popen([*command, *quiet, "--backend-store-uri", store], env=os.environ | options, stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        if wait_for(port, lambda: server.poll() is None):
            show(store, ui, browser)
            print("Ctrl-C ends it.", file=sys.stderr)
        server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()


def address(port: int | str, name: str = NAME) -> str:
    return f"http://{name}:{port}"


def port_of_server(store: str) -> int | None:
    """Of a server that shows this database already, once it answers."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            words = process.cmdline()
            if "server" in words and store in words and HOST in words:
                port = int(words[words.index("--port") + 1])
                if wait_for(port, process.is_running):
                    return port
    return None


def free_port(first: int) -> int:
    for port in range(first, first + PORTS):
        with contextlib.suppress(OSError, OverflowError), socket.create_server((HOST, port)):
            if port != first:
                print(f"Port {first} is taken, so MLflow is on port {port}.", file=sys.stderr)
            return port
    raise SystemExit(f"--port: {first} and the {PORTS - 1} ports after it are taken or cannot be used. Name another one.")


def wait_for(port: int, is_running: Callable[[], bool]) -> bool:
    """Whether the server answers, however long it takes to start: a busy machine may need minutes."""
    while is_running():
        if is_up(port):
            return True
        time.sleep(0.5)
    return False


def is_up(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address(port, HOST)}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def show(uri: str, ui: str, browser: bool) -> None:
    from snaketrain.tracking import views
    from snaketrain.tracking.mlflow_store import Store

    experiments = [each for each in Store(uri).client.search_experiments() if views.TAG in each.tags]
    for experiment in experiments:
        print(f"{experiment.name}: {views.view_address(ui, experiment.experiment_id)}")
        print(f"its curves: {views.curves_address(ui, experiment.experiment_id)}", flush=True)
    if connection := os.environ.get("SSH_CONNECTION"):  # addresses and ports of the client and of this machine
        port, here = ui.rpartition(":")[2], connection.split()[2]
        print(f"From your own machine: ssh -N -L {port}:{HOST}:{port} {getpass.getuser()}@{here}, and then the address above.")
    elif browser:
        webbrowser.open(views.view_address(ui, experiments[0].experiment_id) if experiments else ui)


if __name__ == "__main__":
    main()
