"""What a rank costs as there are more of them."""

import json
import math
from pathlib import Path

from distributed import forking
from distributed.running import arguments

from snaketrain.runtime.journal import read_events

RUNNER = """
import json, os, sys
from pathlib import Path
from torch import nn  # noqa: E402
from snaketrain.strategies.ddp import Ddp

before = len(os.listdir("/proc/self/fd"))
strategy = Ddp(device="cpu", precision="fp32")
strategy.start()
strategy.wait()
strategy.all_reduce_scalars_ahead(1.0)()
strategy.all_reduce_scalars(1.0, 2.0)
found = len(os.listdir("/proc/self/fd")) - before
Path(sys.argv[1], f"{strategy.rank}.json").write_text(json.dumps(found))
strategy.finish()
os._exit(0)
"""


def open_files(folder: Path, ranks: int) -> int:
    """The most of any rank, beyond what the forked process had open."""
    folder.mkdir()
    (folder / "runner.py").write_text(RUNNER)
    assert forking.run([str(folder)], ranks, folder / "log", folder / "runner.py") == [0] * ranks, (folder / "log").read_text()
    return max(json.loads((folder / f"{rank}.json").read_text()) for rank in range(1, ranks))


def test_open_files_of_a_rank_grow_with_the_logarithm_of_the_number_of_ranks(tmp_path):
    forking.preload()
    few, many = open_files(tmp_path / "few", 3), open_files(tmp_path / "many", 12)
    assert many <= few + 2 * math.log2(4)  # not by 9, as with a connection to each rank


TASK = """
import os, signal, torch
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402

class Failing(TextClassification):
    def __init__(self, how):
        self.how, self.calls = how, 0

    def training_step(self, modules, batch):
        self.calls += 1
        if self.calls == 4:
            self.fail(torch.distributed.get_rank())
        return super().training_step(modules, batch)

    def fail(self, rank):
        if self.how == "all":
            raise ValueError(f"no such number: {rank}")
        if rank == 1 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            raise ValueError("no such number")
"""


def failed(data: Path, folder: Path, how: str, codes: list[int]) -> tuple[str, str]:
    """What three ranks print while they fail, and the error in the journal."""
    (folder / "failing.py").write_text(TASK)
    task = {"use": f"{folder / 'failing.py'}:Failing", "arguments": {"how": how}}
    assert forking.run(arguments(data, folder / "run", task=task, batch_size=6), 3, folder / "log") == codes, (folder / "log").read_text()
    return (folder / "log").read_text(), read_events(folder / "run/journal.jsonl")[0][-1]["error"]


def reports(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run/logs/failed").glob("*/rank-*.txt"))


def test_a_failing_rank_says_why_and_its_peers_do_not_repeat_it(data, tmp_path):
    log, error = failed(data, tmp_path, "one", [1, 1, 1])
    assert log.count("Traceback") == 1 and "failed first. the training failed" in log and "Connection closed" not in log
    assert error.startswith("rank 1 on ") and error.endswith("ValueError: no such number")
    assert reports(tmp_path) == ["rank-1.txt"]
    report = next((tmp_path / "run/logs/failed").glob("*/rank-1.txt")).read_text()
    assert "rank 1 of 3, pid" in report and "failing.py" in report
    assert [path.name for path in sorted((tmp_path / "run/logs").glob("rank-*"))] == ["rank-0.jsonl", "rank-0.log"]


def test_only_one_of_the_ranks_that_fail_in_the_same_place_reports_why(data, tmp_path):
    log, error = failed(data, tmp_path, "all", [1, 1, 1])
    assert log.count("Traceback") == 1 and "no such number" in error
    assert len(reports(tmp_path)) == 1


def test_peers_of_a_killed_rank_say_once_that_they_lost_it(data, tmp_path):
    log, error = failed(data, tmp_path, "killed", [1, -9, 1])
    assert "Traceback" not in log and log.count("lost its connection to a rank that ended without a message") == 1
    assert "lost its connection" in error
