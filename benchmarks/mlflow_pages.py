"""How long MLflow's pages take to open with a thousand trainings, at the addresses that a workflow prints, in a real browser.

The runs are written here, sent to MLflow by the follower, and shown by `snaketrain ui`. From the time of each page, that of an empty page
of the same server is taken away: what the browser needs to start. Goal: 3 seconds.
"""

import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness import SCRIPTS, command_line, judge, write_figures
from workspace import make_workspace

from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import Store

GOAL = 3.0
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--window-size=1600,1200", "--dump-dom")
SHOWN = {"all": "matching runs", "curves": "train/loss", "seeds": "matching runs"}  # what stands on a page once it is complete


@contextmanager
def served(uri: str) -> Iterator[int]:
    """The port at which `snaketrain ui` serves it."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(SCRIPTS / "tools/show_runs.py"), "--uri", uri, "--port", str(port), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    assert server.stdout
    try:
        server.stdout.readline()
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def seconds_to_open(address: str, awaited: str) -> float:
    began = time.perf_counter()
    content = subprocess.run([str(BROWSER), *OPTIONS, address], capture_output=True, text=True).stdout
    if awaited not in content:
        raise SystemExit(f"{address}: {awaited!r} is not on the page")
    return time.perf_counter() - began


def main() -> None:
    parser = command_line("mlflow_pages", __doc__)
    parser.add_argument("--runs", type=int, default=1000, help="trainings (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="how often each page is opened (default: %(default)s)")
    args = parser.parse_args()
    if BROWSER is None:
        raise SystemExit("no browser: apt install chromium")
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        results = make_workspace(Path(folder), {f"run{number:04}": {"train.seed": number} for number in range(args.runs)})
        uri = f"sqlite:///{folder}/mlflow.db"
        follower = Follower(results, Store(uri))
        if problem := follower.update_all():
            raise SystemExit(str(problem))
        with served(uri) as port:
            told = [line.split() for line in follower.addresses(f"http://127.0.0.1:{port}")]
            addresses = {words[0]: words[-1] for words in told}
            pages = {"empty": (f"http://127.0.0.1:{port}/health", "OK")} | {name: (addresses[name], text) for name, text in SHOWN.items()}
            taken = {name: [seconds_to_open(*page) for _ in range(args.turns + 1)][1:] for name, page in pages.items()}
    seconds = {name: round(statistics.median(each), 2) for name, each in taken.items()}
    found = {name: round(each - seconds["empty"], 2) for name, each in seconds.items() if name != "empty"}
    write_figures(args.output, {"runs": args.runs, "turns": args.turns, "an empty page, s": seconds["empty"], "beyond that, s": found})
    judge({f"{name} opens within {GOAL:g} s": each <= GOAL for name, each in found.items()})


if __name__ == "__main__":
    main()
