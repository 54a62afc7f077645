"""A process is identified by its id and its start time."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from snaketrain.runtime import processes
from snaketrain.runtime.processes import Process, start_ticks


@pytest.fixture
def sleeping():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_alive_until_it_ends(sleeping):
    watched = Process(sleeping.pid)
    assert watched.is_alive()
    sleeping.kill()
    end = time.monotonic() + 60
    while watched.is_alive():
        assert time.monotonic() < end
    assert sleeping.returncode is None, "a zombie, which was not waited for, has ended too"
    assert not Process(sleeping.pid).is_alive()


def test_a_later_process_with_the_same_id_is_another(sleeping, monkeypatch):
    watched = Process(sleeping.pid)
    monkeypatch.setattr(processes, "start_ticks", lambda pid: watched.started + 1)
    assert not watched.is_alive()


def test_a_name_with_spaces_and_brackets_is_read(tmp_path):
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    named = subprocess.Popen([program, "600"])
    try:
        assert start_ticks(named.pid) >= start_ticks(os.getpid())
    finally:
        named.kill()
        named.wait()


def test_without_proc_the_id_alone_decides(sleeping, monkeypatch):
    monkeypatch.setattr(processes, "start_ticks", lambda pid: None)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    watched = Process(sleeping.pid)
    assert watched.is_alive()
    sleeping.kill()
    sleeping.wait()
    assert not watched.is_alive()
