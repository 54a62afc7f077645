"""What a rank costs as there are more of them."""

import json
import sys
from pathlib import Path

from distributed import forking

RUNNER = """
import json, os, sys
from pathlib import Path
from torch import nn
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


def test_open_files_of_a_rank_do_not_grow_with_the_number_of_ranks(tmp_path):
    forking.preload()
    assert "snaketrain" in sys.modules
    assert open_files(tmp_path / "few", 4) == open_files(tmp_path / "many", 10)
