"""The follower with an MLflow that is unreachable, hangs, refuses or is full: one clear warning, no harm, and nothing lost or duplicated."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import limits
import pytest
from unit.workspace import make_workspace

from pipeline.warm_python import warm_python
from snaketrain.tracking.mlflow_store import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "workflow/scripts/tools/follow_runs.py"
sys.path.append(str(ROOT / "benchmarks"))

import follower as benchmark  # noqa: E402

NO_RETRIES = os.environ | {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "0",
}


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A real server on loopback, which can be killed and started again with its content."""

    def __init__(self, folder: Path, *options: str, **environment: str):
        self.folder, self.port, self.process = folder, free_port(), None
        self.uri = f"http://127.0.0.1:{self.port}"
        self.options, self.environment = options, environment

    def start(self) -> None:
        mlflow = Path(sys.executable).with_name("mlflow")
        store = ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db", "--artifacts-destination", str(self.folder / "artifacts")]
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"} | self.environment
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(
                [mlflow, "server", *store, *where, *self.options], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        limits.until(self.answers, 180)

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.uri}/health", timeout=limits.seconds(5)).status == 200
        return False

    def kill(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def server(tmp_path):
    """Not started yet, and empty."""
    server = Server(tmp_path)
    yield server
    server.kill()


def command(results: Path, uri: str, *more: str) -> list[str]:
    return [warm_python(), str(SCRIPT), "--results", str(results), "--uri", uri, *more]


def once(results: Path, uri: str, **environment: str) -> str:
    """Its warnings; it must neither fail nor print anything else."""
    words, environment = command(results, uri, "--once"), NO_RETRIES | environment
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=limits.seconds(60))
    assert done.returncode == 0
    if done.stderr:
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("warning: ")
        assert f"--uri={uri} --once" in done.stderr  # what to do
    return done.stderr


def write(results: Path, steps: range) -> None:
    with open(results / "runs/first/training/journal.jsonl", "a", encoding="utf-8") as journal:
        for step in steps:
            line = {"event": "train", "step": step, "time": time.time(), "attempt": 1, "metrics": {"loss": 1 / step}}
            journal.write(json.dumps(line) + "\n")


def losses(uri: str) -> list[int]:
    """The steps of all points, in the order in which they were logged."""
    store = Store(uri)
    (run,) = store.client.search_runs([store.experiment("tests")], "attributes.run_name = 'first'")
    return [point.step for point in store.client.get_metric_history(run.info.run_id, "train/loss")]


def test_down_at_the_start_then_killed_and_started_again(tmp_path, server):
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    workflow = subprocess.Popen(["sleep", "infinity"])
    follower = subprocess.Popen(
        command(results, server.uri, "--while-pid", str(workflow.pid), "--interval", "0.2"),
        stderr=subprocess.PIPE,
        text=True,
        env=NO_RETRIES,
    )
    state = results / "runs/first/training/.mlflow.json"

    def sent() -> int:
        return json.loads(state.read_text())["high_water"]["train/loss"] if state.exists() else 0

    try:
        assert "trying again" in follower.stderr.readline()
        server.start()
        limits.until(lambda: sent() == 60)
        write(results, range(61, 100))
        limits.until(lambda: sent() == 99)  # so the pass before was a whole one
        server.kill()
        write(results, range(100, 200))
        assert "trying again" in follower.stderr.readline()
        write(results, range(200, 300))
        server.start()
        limits.until(lambda: sent() == 299)
    finally:
        workflow.kill()
        workflow.wait()
    assert follower.wait(limits.seconds(60)) == 0 and follower.stderr.read() == ""  # one warning for each outage
    assert losses(server.uri) == [*range(5, 65, 5), *range(61, 300)]


def test_a_server_receives_all_that_a_database_does(tmp_path, server):
    """Including files; running it again changes nothing."""
    server.start()
    results = make_workspace(tmp_path)
    uri = f"sqlite:///{tmp_path}/alone.db"
    assert once(results, uri) == ""
    expected = content(uri)
    for state in results.rglob(".mlflow.json"):
        state.unlink()
    for _ in range(2):
        assert once(results, server.uri) == ""
        found = content(server.uri)
        assert {key: found["runs"].get(key) for key in expected["runs"]} == expected["runs"]
        assert found["models"] == expected["models"]


def content(uri: str) -> dict:
    return json.loads(json.dumps(benchmark.content_of(uri)))


@contextlib.contextmanager
def hanging():
    """It accepts connections, and never answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def locked(folder: Path):
    uri = f"sqlite:///{folder}/mlflow.db"
    Store(uri).client.search_experiments()
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("BEGIN EXCLUSIVE")
        yield uri


def test_a_server_that_hangs(tmp_path):
    with hanging() as uri:
        assert f"MLflow at {uri}: it does not answer" in once(make_workspace(tmp_path, {"first": {}}), uri, MLFLOW_HTTP_REQUEST_TIMEOUT="1")


@pytest.fixture
def guarded_server(tmp_path):
    """With MLflow's own app for users and their passwords."""
    users = ["[mlflow]", f"database_uri = sqlite:///{tmp_path}/users.db", "default_permission = NO_PERMISSIONS", "admin_username = anna"]
    authentication = "authorization_function = mlflow.server.auth:authenticate_request_basic_auth"
    (tmp_path / "users.ini").write_text("\n".join([*users, "admin_password = lang-und-geheim", authentication]))
    secrets = {"MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "users.ini"), "MLFLOW_FLASK_SERVER_SECRET_KEY": "of this test"}
    server = Server(tmp_path, "--app-name", "basic-auth", **secrets)
    server.start()
    yield server
    server.kill()


def test_wrong_credentials_and_then_the_right_ones(tmp_path, guarded_server, monkeypatch):
    results, uri = make_workspace(tmp_path, {"first": {}}), guarded_server.uri
    refused = "access denied. Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    assert refused in once(results, uri)
    warning = once(results, uri, MLFLOW_TRACKING_USERNAME="anna", MLFLOW_TRACKING_PASSWORD="falsch-geraten")
    assert refused in warning and "falsch-geraten" not in warning
    right = {"MLFLOW_TRACKING_USERNAME": "anna", "MLFLOW_TRACKING_PASSWORD": "lang-und-geheim"}
    for name, value in right.items():
        monkeypatch.setenv(name, value)  # for our own look
    assert once(results, uri, **right) == "" and losses(uri) == [*range(5, 65, 5)]
    kept = [path for path in results.rglob("*") if path.is_file() and b"lang-und-geheim" in path.read_bytes()]
    assert kept == []


def test_a_locked_database(tmp_path):
    results = make_workspace(tmp_path, {"first": {}})
    with locked(tmp_path) as uri:
        assert "database is locked" in once(results, uri)
    assert once(results, uri) == "" and losses(uri) == [*range(5, 65, 5)]


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://127.0.0.1:9", "it does not answer"),
        ("htp://tracking.example", "htp"),
        ("sqlite:////proc/nowhere/mlflow.db", "No such file or directory"),
        ("file:///tmp/mlruns", "file"),
    ],
)
def test_a_wrong_address(tmp_path, uri, says):
    warning = once(make_workspace(tmp_path, {"first": {}}), uri)
    assert f"MLflow at {uri}: " in warning and says in warning


def test_a_password_in_the_address_is_refused(tmp_path):
    done = subprocess.run(command(tmp_path, "https://anna:geheim@tracking.example", "--once"), capture_output=True, text=True)
    assert done.returncode == 2 and "MLFLOW_TRACKING_PASSWORD" in done.stderr and "geheim" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk(tmp_path):
    """First no space for the database, then none for the files beside the runs."""
    results = make_workspace(tmp_path / "here", {"first": {}})
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2500k", "tmpfs", small], check=True)
    try:
        uri = f"sqlite:///{small}/mlflow.db"
        Store(f"sqlite:///{tmp_path}/mlflow.db").client.search_experiments()
        shutil.copy(tmp_path / "mlflow.db", small / "mlflow.db")
        fill(small)
        assert "full" in once(results, uri) or "No space left" in once(results, uri)
        (small / "filling").unlink()
        assert once(results, uri) == "" and losses(uri) == [*range(5, 65, 5)]
        shutil.copytree(tmp_path / "here", small / "here")
        (small / "here/results/runs/first/training/.mlflow.json").unlink()
        fill(small)
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        assert "No space left" in once(small / "here/results", uri)
        (small / "filling").unlink()
        assert once(small / "here/results", uri) == "" and losses(uri) == [*range(5, 65, 5)]
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)  # our own look at the database may still hold it


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder / "filling", "wb", buffering=0) as file:
        while file.write(b"x" * 1000):
            pass


def test_killed_at_random_moments(tmp_path):
    """`benchmarks/follower.py` does this fifty times."""
    problems, hits = benchmark.kill_trials(tmp_path, 5, seed=7)
    assert problems == [] and hits >= 5


def test_four_followers_on_a_fresh_database(tmp_path):
    folders = [make_workspace(tmp_path / str(number), {f"run-{number}": {"train.seed": number}}) for number in range(4)]
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    followers = [subprocess.Popen(command(results, uri, "--once"), stderr=subprocess.PIPE, text=True) for results in folders]
    assert [(follower.communicate(timeout=limits.seconds(240))[1], follower.returncode) for follower in followers] == [("", 0)] * 4
    store = Store(uri)
    runs = store.client.search_runs([store.experiment("tests")], "tags.`pipeline.stage` = 'train'")
    assert sorted(run.info.run_name for run in runs) == [f"run-{number}" for number in range(4)]
    assert all(run.info.status == "FINISHED" and "test/accuracy" in run.data.metrics for run in runs)


class Answering(http.server.BaseHTTPRequestHandler):
    """Every request with the same status."""

    status = 500

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_) -> None: ...


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails(tmp_path, status):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("", (Answering,), {"status": status})) as failing:
        threading.Thread(target=failing.serve_forever, daemon=True).start()
        warning = once(make_workspace(tmp_path, {"first": {}}), f"http://127.0.0.1:{failing.server_port}")
        failing.shutdown()
    assert f"the server fails (HTTP {status}). See the log of the server; then: " in warning and "does not answer" not in warning


def test_a_database_is_deleted_while_a_follower_runs(tmp_path):
    """It says so and what to do, which creates a new one with the same content."""
    results, uri = make_workspace(tmp_path, {"first": {"ends": "nothing"}}), f"sqlite:///{tmp_path}/mlflow.db"
    workflow = subprocess.Popen(["sleep", "infinity"])
    follower = subprocess.Popen(
        command(results, uri, "--while-pid", str(workflow.pid), "--interval", "0.2"), stderr=subprocess.PIPE, text=True
    )
    state = results / "runs/first/training/.mlflow.json"
    try:
        limits.until(lambda: state.exists() and json.loads(state.read_text())["high_water"].get("train/loss") == 60)
        (tmp_path / "mlflow.db").unlink()
        write(results, range(61, 100))
    finally:
        workflow.kill()
        workflow.wait()
    assert "--once" in follower.communicate(timeout=limits.seconds(60))[1] and follower.returncode == 0
    once(results, uri)
    assert losses(uri) == [*range(5, 65, 5), *range(61, 100)]
