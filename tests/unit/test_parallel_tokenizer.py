"""Tokenizer processes give the same result as a thread, in order, and leave no process behind."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import limits
import psutil
import pyarrow
import pytest

from snaketrain.config.schema import Data
from snaketrain.data import tokenizer_files as module
from snaketrain.data.cells import BadData
from snaketrain.data.tokenizer_files import ParallelTokenizer, copy_tokenizer, make_tokenizer

pytestmark = pytest.mark.lengthy

WORDS = ["was", "it", "good", "what", "that", "story", "very", "boring", "never", "this", "movie", "great"]


@pytest.fixture
def make(tiny_tokenizer, tmp_path):
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")

    def run(**settings):
        return partial(make_tokenizer, tmp_path / "tokenizer", Data(train={"path": "x"}, tokenizer={"path": "x"}, **settings))

    return run


def batches(*columns: str) -> list[pyarrow.RecordBatch]:
    """Quickly and slowly tokenised texts alternate."""
    found = []
    for number in range(9):
        texts = [" ".join(WORDS[n % (3 + number) :] * (1 + number % 3 * 40)) for n in range(30)]
        found.append(pyarrow.record_batch({"line": list(range(30 * number, 30 * number + 30))} | dict.fromkeys(columns, texts)))
    return found


def with_processes(make, monkeypatch) -> ParallelTokenizer:
    """That have started."""
    monkeypatch.setattr(module, "PROCESSES_FROM_BYTES", 0)
    tokenizer = ParallelTokenizer(make, 3)
    list(tokenizer.encode(batches("text", "text_pair")[:1]))
    tokenizer.started.result()
    return tokenizer


@pytest.mark.parametrize("columns", [["text"], ["text", "text_pair"]])
def test_processes_tokenise_like_a_thread(make, columns, monkeypatch):
    make_one = make(text=columns, max_length=40)
    with ParallelTokenizer(make_one) as thread, with_processes(make_one, monkeypatch) as processes:
        monkeypatch.setattr(processes, "thread", None)  # the processes do it all
        found = [pyarrow.Table.from_batches(tokenizer.encode(batches(*columns))) for tokenizer in (make_one(), thread, processes)]
        monkeypatch.undo()
    assert found[0].equals(found[1]) and found[0].equals(found[2])
    assert found[0]["line"].to_pylist() == list(range(270))
    assert 0 < sum(found[0]["truncated"].to_pylist()) < 270


def test_processes_are_for_much_data_and_more_than_one_core(make, monkeypatch):
    [batch] = [pyarrow.record_batch({"text": ["good"] * 1000})]
    for cores, much, started in ((1, 0, False), (2, 10 * batch.nbytes, False), (2, 9 * batch.nbytes, True)):
        monkeypatch.setattr(module, "PROCESSES_FROM_BYTES", much)
        with ParallelTokenizer(make(), cores) as tokenizer:
            assert sum(made.num_rows for made in tokenizer.encode([batch] * 10)) == 10_000
            assert (tokenizer.started is not None) == started


def test_a_killed_process_is_reported(make, monkeypatch):
    with with_processes(make(), monkeypatch) as tokenizer, pytest.raises(BadData, match="was killed, most likely because memory ran out"):
        made = tokenizer.encode(batches("text") * 3)
        next(made)
        for process in tokenizer.processes._processes.values():
            process.kill()
        list(made)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_parent(tiny_tokenizer, tmp_path, number):
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")
    script = tmp_path / "reads.py"
    script.write_text(f"""
import signal, sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / "workflow/scripts")!r})
import pyarrow  # noqa: E402
from pathlib import Path
from functools import partial
from snaketrain.data.tokenizer_files import ParallelTokenizer, make_tokenizer
from snaketrain.config.schema import Data

def endless():
    while True:
        time.sleep(0.01)
        yield pyarrow.record_batch({{"text": ["what a story"] * 100}})

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in background processes of a shell
    data, reported = Data(train={{"path": "x"}}, tokenizer={{"path": "x"}}), False
    with ParallelTokenizer(partial(make_tokenizer, Path({str(tmp_path / "tokenizer")!r}), data), 2) as tokenizer:
        for made in tokenizer.encode(endless()):
            if tokenizer.started and tokenizer.started.done() and not reported:
                reported = True
                print("at work", flush=True)
""")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline() == "at work\n"
        others = psutil.Process(process.pid).children(recursive=True)
        assert len(others) >= 2
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        process.communicate(timeout=limits.seconds(20))
        _, left = psutil.wait_procs(others, timeout=limits.seconds(20))
        assert not left
        assert process.returncode == -number
    finally:
        process.kill()
