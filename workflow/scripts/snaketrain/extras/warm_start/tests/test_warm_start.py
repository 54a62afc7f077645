"""Scripts run in forked processes as Python would run them, and a workflow has the same results."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import limits
import pytest
from pipeline.workspace import REPOSITORY, make_workspace, snakemake

from snaketrain.config.schema import Compute, Settings
from snaketrain.extras.warm_start import launching
from snaketrain.orchestration import effects
from snaketrain.orchestration.launching import python, python_words

SHOWING = """
import os, sys, tempfile
print("torch" in sys.modules, flush=True)
import torch
print(__name__, sys.argv, sys.path[0], os.getcwd(), torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], tempfile.gettempdir(), sys.stdin.read(), flush=True)
print("told", file=sys.stderr)
sys.exit(3)
"""


OF_PYTEST = "PYTEST_CURRENT_TEST"  # which differs from test to test


@pytest.fixture(scope="module")
def server() -> Iterator[launching.Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(launching.SWITCH)
        patch.delenv(OF_PYTEST)
        patch.setattr(launching, "has_gpus", lambda: False)
        launching.before_first_job([Compute(threads=1)], "local")
    (found,) = launching.servers
    yield found
    launching.end()
    assert found.process.returncode == 0 and not Path(found.address).parent.exists()


def start(folder: Path, text: str, *arguments: str, words: list[str] | None = None, **variables: str) -> "subprocess.Popen[str]":
    (folder / "script.py").write_text(text)
    command = [*(words or python_words(Compute(threads=2))), str(folder / "script.py"), *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {name: value for name, value in os.environ.items() if name not in (OF_PYTEST, launching.SWITCH)} | variables
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)


def test_a_script_runs_as_python_runs_it(server, tmp_path):
    forked = start(tmp_path, SHOWING, "one", "two words", TMPDIR=str(tmp_path))
    plain = start(tmp_path, SHOWING, "one", "two words", words=["env", "OMP_NUM_THREADS=2", sys.executable], TMPDIR=str(tmp_path))
    for process in (forked, plain):
        process.told = process.communicate("asked")
    (loaded, found), (not_loaded, expected) = (process.told[0].splitlines() for process in (forked, plain))
    assert (loaded, not_loaded) == ("True", "False"), "it was forked from where torch is loaded"
    assert found == expected and forked.told[1] == plain.told[1] == "told\n"
    assert forked.returncode == plain.returncode == 3


@pytest.mark.parametrize(("text", "code"), [("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9), ("pass", 0)])
def test_it_ends_as_the_script_ends(server, tmp_path, text, code):
    process = start(tmp_path, text)
    _, errors = process.communicate()
    assert process.returncode == code and ("ZeroDivisionError" in errors) == (code == 1)


def test_what_python_does_at_its_end_is_done(server, tmp_path):
    """Although no module is taken apart: a file that nothing closes has what was written to it."""
    process = start(
        tmp_path,
        "import atexit, io, threading, time; detached = io.TextIOWrapper(io.BytesIO()); detached.detach(); left = open('left.txt', 'w'); left.write('kept'); atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.5), print('thread'))).start(); print('script')",
    )
    assert process.communicate()[0].split("\n") == ["script", "thread", "at exit", ""] and process.returncode == 0
    assert (tmp_path / "left.txt").read_text() == "kept"


def test_signals_reach_the_script(server, tmp_path):
    text = """import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print('ready', flush=True)
while True:
    time.sleep(0.1)  # Python handles a signal that comes just before a longer sleep after it
"""
    process = start(tmp_path, text)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(limits.seconds(60)) == 7


def test_a_script_ends_with_its_client(server, tmp_path):
    process = start(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    number = int(process.stdout.readline())
    process.kill()
    process.wait()
    end = time.monotonic() + limits.seconds(60)
    while Path(f"/proc/{number}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_interrupt_before_the_server_answers_leaves_no_traceback(server, tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        process = start(tmp_path, "", words=[sys.executable, str(launching.CLIENT), str(tmp_path / "socket")])
        with listening.accept()[0] as busy:
            size = int.from_bytes(busy.recv(8), "big")
            request = busy.recv(size, socket.MSG_WAITALL)
            process.send_signal(signal.SIGINT)
            assert process.communicate() == ("", "") and process.returncode == -signal.SIGINT
    os.kill(server.process.pid, signal.SIGSTOP)
    shown, files = os.pipe()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.address)
        socket.send_fds(client, [size.to_bytes(8, "big")], [files] * 3)
        client.sendall(request)
    os.close(files)
    os.kill(server.process.pid, signal.SIGCONT)
    with open(shown) as told:
        assert "Traceback" not in told.read()


def test_it_is_stopped_with_its_client(server, tmp_path):
    """By Ctrl-Z in a terminal."""
    process = start(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(1); print('went on', flush=True)")
    number = int(process.stdout.readline())
    process.send_signal(signal.SIGTSTP)
    end = time.monotonic() + limits.seconds(60)
    while Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGCONT)
    assert process.communicate()[0] == "went on\n" and process.returncode == 0


def test_a_script_with_other_variables_imports_its_packages_itself(server, tmp_path):
    process = start(tmp_path, SHOWING, PYTHONHASHSEED="1")
    shown, told = process.communicate()
    assert shown.startswith("False") and process.returncode == 3
    assert "not those of snakemake: PYTHONHASHSEED" in told


def test_without_its_server_a_script_runs_all_the_same(tmp_path):
    process = start(tmp_path, SHOWING, words=["env", "OMP_NUM_THREADS=1", sys.executable, str(launching.CLIENT), str(tmp_path / "nothing")])
    assert process.communicate()[0].startswith("False") and process.returncode == 3


@pytest.mark.parametrize(
    "compute",
    [Compute(threads=2, processes=2), Compute(environment={"A": "b"}), Compute(setup="true"), Compute(container={"image": "x.sif"})],
)
def test_where_stages_import_their_packages_themselves(server, compute):
    assert str(launching.CLIENT) in python_words(Compute(threads=4)) and str(launching.CLIENT) in python()
    assert str(launching.CLIENT) not in python_words(compute)


@pytest.mark.parametrize(("executor", "switch", "gpus"), [("slurm-steady", "1", False), ("local", "0", False), ("local", "1", True)])
def test_where_no_server_is_started(monkeypatch, executor, switch, gpus):
    """One that was started to try runs is ended where jobs do not use it."""
    ended = []
    monkeypatch.setattr(launching, "servers", [launching.Server("x", None)] if executor != "local" else [])
    monkeypatch.setattr(launching, "of_jobs", [])
    monkeypatch.setattr(launching, "stop", ended.append)
    monkeypatch.setattr(launching, "has_gpus", lambda: gpus)
    monkeypatch.setenv(launching.SWITCH, switch)
    launching.before_first_job([Compute(threads=1)], executor)
    assert launching.servers == launching.of_jobs == [] and len(ended) == (executor != "local")


def test_runs_are_tried_in_a_forked_process(server, tmp_path, monkeypatch):
    """What ends it or holds it is found as in a process that imports everything itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(OF_PYTEST)
    monkeypatch.setattr(effects, "SECONDS_AN_ATTEMPT", float(limits.whole_seconds(5)))
    (tmp_path / "mine.py").write_text(
        "import os, time\nassert 'server.py' in open('/proc/self/cmdline').read()\ndef leaves(*_, **__): os._exit(7)\ndef crashes(*_, **__): os.kill(os.getpid(), 11)\n"
        "def hangs(*_, **__): open('pid', 'w').write(str(os.getpid())); time.sleep(600)\n"
    )
    data = {"train": {"use": "mine.py:Rows"}}
    runs = {
        name: Settings.model_validate({"data": data, "model": {"use": "torch.nn.Linear"}, "train": {"optimizer": f"mine.py:{name}"}})
        for name in ("leaves", "crashes", "hangs")
    }
    problems, _ = effects.asked(runs, untried=())
    found = {name: [problem for problem in problems if f"mine.py:{name}" in problem] for name in runs}
    assert [
        how in " ".join(found[name]) for name, how in (("leaves", "exit code 7"), ("crashes", "SIGSEGV"), ("hangs", "not returned"))
    ] == [True] * 3
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


@pytest.mark.slow
def test_a_workflow_has_the_same_results(tmp_path):
    forked, alone = (make_workspace(tmp_path / name, runs={"small": {}}) for name in ("forked", "alone"))
    snakemake(alone)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "2", "--printshellcmds"]
    done = subprocess.run(command, cwd=forked, env=os.environ | {launching.SWITCH: "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stderr.count(str(launching.CLIENT)) >= 4 and "imports its packages itself" not in done.stderr.lower()
    for file in ("evaluation/test_predictions.csv", "selection/selection.json"):
        assert (forked / "results/runs/small" / file).read_bytes() == (alone / "results/runs/small" / file).read_bytes()
    (address,) = {word for word in done.stderr.split() if word.endswith("/socket")}
    assert not Path(address).exists(), "it outlived snakemake"
