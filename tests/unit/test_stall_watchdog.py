"""When a process counts as hanging."""

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import limits
import pytest

from snaketrain.runtime.journal import Journal, events_named
from snaketrain.runtime.ranks import WORTH_ANOTHER_START
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.collectives import Collective, Collectives
from snaketrain.training import hangs
from snaketrain.training.hangs import StallWatchdog, named, waiting_for

FORK = get_context("fork")  # from this process, which has imported torch already


def train(folder: Path, beats: int, stall_seconds: float, began) -> None:
    hangs.LONGEST_POLL_SECONDS, hangs.PEERS_SECONDS, hangs.LATE_SECONDS = 0.5, 0.0, 2.0
    watch = StallWatchdog(folder / "stalled", Strategy("cpu"), stall_seconds, Journal(folder / "journal.jsonl"))
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
    everybody = tuple(range(1024))
    for rank in everybody:
        entered = 1203 + (rank != 7)
        waits = [Collective(1204, "0", "", "all_reduce", everybody)] if rank != 7 else []
        (tmp_path / f"rank-{rank}.json").write_text(Collectives({"0": entered}, waits).to_json())
    (tmp_path / "rank-900.json").unlink()
    strategy = Strategy("cpu")
    strategy.rank, strategy.world_size = 1024, 1024
    watch = StallWatchdog(tmp_path, strategy, 600)
    watch.close()
    places = {named(ranks): place for place, ranks in watch._places()}
    assert places == {
        "rank 7": 'busy in File "/home/own/data.py", line 5, in read (not in all_reduce 1,204 yet)',
        "rank 8": f"waiting in {ours.strip()} (all_reduce 1,204)",
        "rank 900": "does not answer: the machine or the process may be gone or suspended",
        "ranks 0-6, 9-899, 901-1023": f"waiting in {waiting.strip()} (all_reduce 1,204)",
    }


PAIR = (0, 1)
IN_REDUCE = Collective(7, "0", "", "all_reduce", PAIR)
IN_GATHER = Collective(3, "1", "mesh_shard", "all_gather", PAIR)


@pytest.mark.parametrize(
    ("of_ranks", "said"),
    [
        ([[], []], {}),
        ([[IN_REDUCE], [IN_REDUCE]], dict.fromkeys(PAIR, "all_reduce 7, which all have entered")),
        (
            [[IN_REDUCE], [IN_REDUCE._replace(operation="broadcast")]],
            {0: "all_reduce 7, while others are in broadcast", 1: "broadcast 7, while others are in all_reduce"},
        ),
        # in another order: each waits for the other
        (
            [[IN_REDUCE], [IN_GATHER]],
            {0: "all_reduce 7; not in all_gather 3 of mesh_shard yet", 1: "all_gather 3 of mesh_shard; not in all_reduce 7 yet"},
        ),
        ([[IN_REDUCE, IN_REDUCE._replace(number=8)], []], {0: "all_reduce 7", 1: "not in all_reduce 7 yet"}),
    ],
)
def test_the_collective_that_a_rank_waits_for_or_has_not_entered(of_ranks, said):
    entered = {
        rank: Collectives({"0": 6, "1": 2} | {each.group: each.number for each in waits}, waits) for rank, waits in enumerate(of_ranks)
    }
    assert waiting_for(entered) == said
