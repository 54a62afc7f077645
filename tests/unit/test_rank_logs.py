"""What a rank prints, in a log that it shares with others."""

import io
import sys

import pytest

from snaketrain.runtime.rank_logs import write_whole_lines


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
