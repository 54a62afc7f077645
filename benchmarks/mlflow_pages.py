"""How long MLflow's pages take to open with 60, 500 and a thousand trainings, at the addresses that a workflow prints, in a real browser.

The runs are written here, sent to MLflow by the follower, and shown by `snaketrain ui`. A page is open once what it is about stands on it:
the first time with an empty cache, then as for somebody who looks again. Goal: 3 seconds.
"""

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness import SCRIPTS, about, command_line, judge, write_figures
from workspace import make_workspace

from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import Store

GOAL = 3.0
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1600,1200", "--remote-debugging-pipe")
LONGEST = 120.0  # seconds
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


class Browser:
    """Chromium with a profile of its own, told what to do by its DevTools protocol over two pipes."""

    def __init__(self, profile: Path):
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        words = ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', str(BROWSER), *OPTIONS, f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(words, pass_fds=(commands, answers), stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(commands)
        os.close(answers)
        self.number, self.read = 0, b""
        page = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]}

    def ask(self, method: str, session: Mapping[str, str] = MappingProxyType({}), **parameters: object) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **session}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.read:
                self.read += os.read(self.answers, 1 << 20)
            line, _, self.read = self.read.partition(b"\0")
            if (answer := json.loads(line)).get("id") == self.number:
                return dict(answer["result"])

    def seconds_to_open(self, address: str, awaited: str) -> float:
        self.ask("Page.navigate", self.session, url="about:blank")
        began = time.perf_counter()
        self.ask("Page.navigate", self.session, url=address)
        shown = {"expression": f"document.body?.innerText.includes({json.dumps(awaited)})"}
        while not self.ask("Runtime.evaluate", self.session, **shown)["result"].get("value"):
            if time.perf_counter() - began > LONGEST:
                raise SystemExit(f"{address}: {awaited!r} is not on the page after {LONGEST:g} seconds")
            time.sleep(0.05)
        return time.perf_counter() - began

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)


def main() -> None:
    parser = command_line("mlflow_pages", __doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[60, 500, 1000], help="trainings (default: 60, 500 and 1000)")
    parser.add_argument("--turns", type=int, default=3, help="how often each page is opened (default: %(default)s)")
    args = parser.parse_args()
    if BROWSER is None:
        raise SystemExit("no browser: apt install chromium")
    seconds = {str(runs): measured(runs, args.turns) for runs in args.runs}
    before = json.loads(args.output.read_text())["seconds"] if args.output.exists() else {}  # with other numbers of trainings
    write_figures(args.output, {"turns": args.turns, "seconds": before | {runs: about() | found for runs, found in seconds.items()}})
    judge(
        {
            f"{name} of {runs} opens within {GOAL:g} s, {when}": each <= GOAL
            for runs, found in seconds.items()
            for when, taken in found.items()
            for name, each in taken.items()
        }
    )


def measured(runs: int, turns: int) -> dict[str, dict[str, float]]:
    """By when and page, the seconds to open it."""
    found: dict[str, dict[str, float]] = {"first": {}, "again": {}}
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        results = make_workspace(Path(folder), {f"run{number:04}": {"train.seed": number} for number in range(runs)})
        uri = f"sqlite:///{folder}/mlflow.db"
        follower = Follower(results, Store(uri))
        if problem := follower.update_all():
            raise SystemExit(str(problem))
        with served(uri) as port:
            told = [line.split() for line in follower.addresses(f"http://127.0.0.1:{port}")]
            addresses = {words[0]: words[-1] for words in told}
            for name, text in SHOWN.items():
                with (
                    tempfile.TemporaryDirectory(prefix="profile-", ignore_cleanup_errors=True) as profile,
                    closing(Browser(Path(profile))) as browser,
                ):
                    first, *more = (browser.seconds_to_open(addresses[name], text) for _ in range(turns + 1))
                    found["first"][name], found["again"][name] = round(first, 2), round(statistics.median(more), 2)
    return found


if __name__ == "__main__":
    main()
