"""Processes of a script exit at once and with the right code, even if something blocks their exit."""

import os
import subprocess
import sys
from pathlib import Path

import limits
import pytest

from snaketrain.runtime.ranks import Background
from snaketrain.runtime.stages import settings_words

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
# what blocks a process's exit: a destructor, as torch's gloo group sometimes does, and a thread of a pool
SCRIPT = """
import atexit, sys, time
from concurrent.futures import ThreadPoolExecutor
from snaketrain.runtime.ranks import Background
from pathlib import Path
from snaketrain.runtime import stages
from snaketrain.runtime.ranks import WorthAnotherStart, leave

def saved():
    time.sleep(0.3)
    print("saved to the end", flush=True)

def report(error):
    print("reported", type(error).__name__, error, flush=True)
    if "untold" in str(error):
        raise OSError("the disk is full")

def main():
    atexit.register(time.sleep, 600)
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    Background().start(saved)
    {}

stages.run(main, Path("out"), report, leave)
"""


@pytest.mark.parametrize(
    ("ends", "code", "reported"),
    [
        ("return None", 0, ""),
        ("return 75", 75, ""),
        ("raise SystemExit('data.train: is missing')", 1, "reported SystemExit data.train: is missing"),
        ("raise SystemExit(3)", 3, "reported SystemExit 3"),
        ("sys.exit()", 1, "reported SystemExit"),  # in a user's code: the expected file is missing
        ("raise WorthAnotherStart('smaller pieces')", 76, "reported WorthAnotherStart smaller pieces"),
        ("raise ValueError('untold')", 1, "OSError: the disk is full"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_a_rank_exits_at_once(ends, code, reported):
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(ends)], env=environment, capture_output=True, text=True, timeout=limits.seconds(20)
    )
    assert done.returncode == code, done.stderr
    assert reported in done.stdout + done.stderr
    assert "saved to the end" in done.stdout


HELD_BACK = "import atexit, runpy, sys, time; atexit.register(time.sleep, 600); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.parametrize(("script", "inputs"), [("train_model", ["data"]), ("evaluate_model", ["training", "selection", "data"])])
def test_a_script_with_several_processes_ends_at_once(tmp_path, script, inputs):
    words = [str(SCRIPTS / f"{script}.py"), "--run-name", "x", "--output", str(tmp_path / "out/manifest.json")]
    words += [word for role in inputs for word in (f"--{role}", str(tmp_path / "missing.json"))]
    settings = settings_words(tmp_path, script, {"evaluate": {"batch_size": 4}, "train": {"seed": 1}, "model": {"use": "torch.nn.Linear"}})
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS), "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    start = [sys.executable, "-c", HELD_BACK, *words, *settings]
    done = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=limits.seconds(20))
    assert done.returncode == 1 and "missing.json: not a readable manifest" in done.stderr


def test_an_error_of_what_is_done_beside_the_training_is_raised_in_it_once():
    background = Background()
    background.start(lambda: sys.exit("the disk is full"))
    with pytest.raises(SystemExit, match="the disk is full"):
        background.finish()
    background.start(lambda: None)
    background.finish()
