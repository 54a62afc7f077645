"""What a rank prints, in a log that it shares with others."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest

from snaketrain.runtime.rank_logs import log_to, write_whole_lines

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"


class Pipe(io.RawIOBase):
    """Records each write: in a shared log, what another rank writes comes between two of them."""

    def __init__(self):
        self.writes: list[bytes] = []

    def writable(self):
        return True

    def write(self, data):
        self.writes.append(bytes(data))
        return len(data)


@pytest.mark.parametrize("unbuffered", [False, True])  # as with PYTHONUNBUFFERED or -u
def test_a_printed_line_is_one_write_at_once(monkeypatch, unbuffered):
    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(pipe), write_through=unbuffered))
    write_whole_lines()
    print("one", 2)
    print("another")
    assert pipe.writes == [b"one 2\n", b"another\n"]


def test_a_line_says_once_that_it_is_a_warning(tmp_path):
    try:
        log_to(tmp_path / "log")
        logging.warning("it is late")
    finally:
        logging.basicConfig(force=True)
    assert (tmp_path / "log").read_text().endswith(" warning: it is late\n")
    for file in SCRIPTS.rglob("*.py"):
        assert not re.search(r'logging\.warning\(\s*f?"warning', file.read_text()), file
