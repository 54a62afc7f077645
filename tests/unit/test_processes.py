"""A process is identified by its id and its start time."""

import os
import subprocess

import limits
import pytest

from snaketrain.runtime.processes import start_ticks
from tools.follow_runs import end_of


@pytest.fixture
def sleeping():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_watched_until_it_ends(sleeping):
    has_ended = end_of(sleeping.pid)
    assert not has_ended() and not end_of(None)()
    sleeping.kill()
    limits.until(has_ended)
    assert sleeping.returncode is None, "a zombie, which was not waited for, has ended too"
    assert end_of(sleeping.pid)()
    sleeping.wait()
    assert has_ended() and end_of(sleeping.pid)()


def test_a_name_with_spaces_and_brackets_is_read(tmp_path):
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    named = subprocess.Popen([program, "600"])
    try:
        assert start_ticks(named.pid) >= start_ticks(os.getpid())
    finally:
        named.kill()
        named.wait()
