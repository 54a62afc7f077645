"""MLflow's pages in a real browser, at the addresses that a workflow prints."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing

import limits
import pytest

from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCRIPTS = REPOSITORY / "workflow/scripts"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium")]


@pytest.fixture(scope="module")
def addresses(workspace, tmp_path_factory):
    """The addresses that the follower prints where a server is there, which is what `make ui` starts."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    track = [warm_python(), SCRIPTS / "tools/follow_runs.py", "--results", workspace / "results", "--once", "--no-models", "--uri"]
    told = subprocess.run([*track, uri], capture_output=True, text=True, check=True).stdout
    assert told.rstrip().endswith(f"snaketrain ui --uri {uri}"), "the command that starts a server, and no address"
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, SCRIPTS / "tools/show_runs.py", "--uri", uri, "--port", port, "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        view = server.stdout.readline().split()[-1]
        told = subprocess.run([*track, f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True).stdout
        found = {line.split()[0]: line.split()[-1].replace("127.0.0.1", "snaketrain.localhost") for line in told.splitlines()[1:]}
        assert found["all"] == view
        assert listening(int(port)) == {"127.0.0.1"}
        yield found
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def listening(port: int) -> set[str]:
    """On which addresses of this machine."""
    import psutil

    found = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.laddr.port == port]
    return {each.laddr.ip for each in found}


def page(address: str, awaited: str) -> str:
    """The page after everything was loaded; on a busy machine the browser may give up earlier."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=120000", "--window-size=3200,2400", "--dump-dom"]
    for _ in range(4):
        content = subprocess.run([CHROMIUM, *options, address], capture_output=True, text=True, timeout=limits.seconds(180)).stdout
        if awaited in content:
            break
    return content


def words(content: str) -> str:
    return re.sub(r"(\s*<[^>]+>\s*)+", "|", re.sub(r"<(style|script).*?</\1>", "", content, flags=re.DOTALL))


GENAI_PAGES = ("|Judges|", "|Prompts|", "|Agent versions|")  # of the mode in which MLflow opens by default


@pytest.mark.parametrize("name", ["all", "curves", "seeds", "compared", "small"])
def test_addresses_open_in_the_mode_for_trainings(addresses, name):
    text = words(page(addresses[name], "train.seed" if name in ("all", "compared", "small") else "train/loss"))
    assert "|Model training|" in text and not [title for title in GENAI_PAGES if title in text]


def test_the_table_shows_trainings_with_our_columns(addresses):
    text = words(page(addresses["all"], "test/accuracy"))
    assert "|2|matching runs|" in text and "|Sort: dev/accuracy|" in text
    for column in ("dev/accuracy", "test/accuracy", "interval", "train.learning_rate", "train.seed"):
        assert f"|{column}|" in text
    assert "|small|" in text and "|other|" in text and "evaluation|" not in text.replace("Evaluation", "")
    assert "|train.batch_size|" not in text  # equal in both


def test_the_curves(addresses):
    content = page(addresses["curves"], "trace scatter")
    assert "|train/loss|" in words(content) and "|eval/accuracy|" in words(content)
    assert content.count('class="trace scatter') >= 4  # lines of two runs, in several charts


def test_seeds_are_grouped_by_configuration(addresses):
    """The two runs differ only in the seed: one line, and the band between them."""
    content = page(addresses["seeds"], "trace scatter")
    assert "|Group by: configuration|" in words(content) and "Group: " in words(content)
    assert re.search(r'class="js-fill" [^>]*fill-opacity: 0\.[1-9]', content)


def test_the_comparison(addresses):
    text = words(page(addresses["compared"], "Show diff only"))
    assert "Comparing 2 Runs from 1 Experiment" in text and "Show diff only" in text and "|train.seed|" in text


def test_a_run_with_its_confusion_matrix(addresses):
    content = page(addresses["small"].replace("?", "/artifacts/evaluation/test_plots.png?"), "<img")
    assert all(f"|{folder}|" in words(content) for folder in ("evaluation", "logs", "selection", "training"))
    assert re.search(r'<img[^>]+src="(blob:|data:image|[^"]*test_plots.png)', content)
