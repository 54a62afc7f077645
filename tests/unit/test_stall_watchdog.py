"""When a process counts as hanging."""

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import limits

from snaketrain.runtime.journal import Journal, events_named
from snaketrain.runtime.ranks import WORTH_ANOTHER_START
from snaketrain.training import watching
from snaketrain.training.watching import StallWatchdog, named

FORK = get_context("fork")  # from this process, which has imported torch already


def train(folder: Path, beats: int, stall_seconds: float, began) -> None:
    watching.LONGEST_POLL_SECONDS, watching.PEERS_SECONDS, watching.LATE_SECONDS = 0.5, 0.0, 2.0
    watch = StallWatchdog(folder / "stalled", 0, 1, stall_seconds, Journal(folder / "journal.jsonl"))
    began.set()
    for _ in range(beats):
        time.sleep(0.1)
        watch.beat()
    time.sleep(1.0 if beats else 600)


def started(folder: Path, beats: int, stall_seconds: float):
    began = FORK.Event()
    process = FORK.Process(target=train, args=(folder, beats, stall_seconds, began), daemon=True)
    process.start()
    assert began.wait(limits.seconds(20))
    return process


def exit_code(process) -> int | None:
    process.join(limits.seconds(30))
    return process.exitcode


def test_time_while_suspended_does_not_count(tmp_path):
    stall_seconds = limits.seconds(2)
    process = started(tmp_path, 10, stall_seconds)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(stall_seconds + 1)
    os.kill(process.pid, signal.SIGCONT)
    assert exit_code(process) == 0
    assert list(events_named(tmp_path / "journal.jsonl", "idle")) == []


def test_a_process_that_hangs_ends(tmp_path):
    assert exit_code(started(tmp_path, 0, 4)) == WORTH_ANOTHER_START
    (told,) = events_named(tmp_path / "journal.jsonl", "idle")  # long before
    assert told["seconds"] < 4 and list(told["places"]) == ["rank 0"] and told["places"]["rank 0"].startswith("busy in ")


def test_a_process_that_hangs_ends_where_it_cannot_write_down_its_place(tmp_path):
    (tmp_path / "stalled").write_text("a file, so no folder")
    assert exit_code(started(tmp_path, 0, 4)) == WORTH_ANOTHER_START


def test_a_thousand_ranks_are_grouped_by_place_smallest_group_first(tmp_path):
    waiting = '  File "/lib/torch/distributed/distributed_c10d.py", line 1, in all_reduce\n'
    for rank in range(1024):
        (tmp_path / f"rank-{rank}.txt").write_text('  File "/home/own/data.py", line 5, in read\n' if rank == 7 else waiting)
    ours = '  File "/home/snaketrain/workflow/scripts/snaketrain/strategies/distributed.py", line 77, in result\n'
    (tmp_path / "rank-8.txt").write_text(ours)
    (tmp_path / "rank-900.txt").unlink()
    watch = StallWatchdog(tmp_path, 1024, 1024, 600)
    watch.close()
    lines = [f"{named(ranks)}: {place.partition(' ')[0]}" for place, ranks in watch._places()]
    assert lines == ["rank 7: busy", "rank 8: waiting", "rank 900: does", "ranks 0-6, 9-899, 901-1023: waiting"]
