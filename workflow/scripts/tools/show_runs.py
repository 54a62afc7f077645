"""Start MLflow's web pages on this machine and open the view of the runs in its database."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
import webbrowser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.tracking.local_database import readable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uri", help="MLflow database (default: mlflow.db in the current folder)")
    parser.add_argument("--port", type=int, default=5000, help="port of the web pages on 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="print the addresses without opening a browser")
    args = parser.parse_args()
    with readable(args.uri or f"sqlite:///{Path('mlflow.db').resolve()}") as store:
        serve(store, args.port, browser=not args.no_browser)


def serve(store: str, port: int, browser: bool) -> None:
    ui = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("mlflow")), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen([*command, "--backend-store-uri", store], env=environment, stdout=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        if started(server, ui):
            show(store, ui, browser)
        server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()


def started(server: subprocess.Popen[bytes], ui: str) -> bool:
    """However long it takes: a busy machine may need minutes."""
    while server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{ui}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        time.sleep(0.5)
    return False


def show(uri: str, ui: str, browser: bool) -> None:
    from snaketrain.tracking import views
    from snaketrain.tracking.mlflow_store import Store

    experiments = [each for each in Store(uri).client.search_experiments() if views.TAG in each.tags]
    for experiment in experiments:
        print(f"{experiment.name}: {views.view_address(ui, experiment.experiment_id)}", flush=True)
    if browser:
        webbrowser.open(views.view_address(ui, experiments[0].experiment_id) if experiments else ui)


if __name__ == "__main__":
    main()
