"""When a process counts as stuck."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from snaketrain.runtime.exit_codes import WORTH_ANOTHER_START

SCRIPT = """
import sys, time
from pathlib import Path
from snaketrain.training.callbacks import stall_watchdog
stall_watchdog.LONGEST_LOOK_SECONDS, stall_watchdog.FOR_THE_OTHERS_SECONDS = 0.5, 0.0
watch = stall_watchdog.Watch(Path(sys.argv[1]), 0, 1, 2.0)
print("begins", flush=True)
for _ in range(int(sys.argv[2])):
    time.sleep(0.1)
    watch.beat()
time.sleep(1.0 if sys.argv[2] != "0" else 60)
"""


def started(folder: Path, beats: int) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), str(beats)], stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout.readline() == "begins\n"
    return process


def test_time_in_which_it_was_suspended_does_not_count(tmp_path):
    process = started(tmp_path, 10)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)  # longer than it may stand still
    process.send_signal(signal.SIGCONT)
    assert process.wait(30) == 0


def test_a_process_that_stands_still_ends(tmp_path):
    assert started(tmp_path, 0).wait(30) == WORTH_ANOTHER_START
