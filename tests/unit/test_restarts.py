"""When a launcher stops starting processes again."""

from pathlib import Path

import pytest

from snaketrain.launch.workers import Ending, Restarts
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.run_folder import MICROBATCHES

LOST = Ending(76, "rank 0 asks for a restart")


def save(folder: Path, start: int) -> None:
    (folder / f"checkpoints/step-{start:08d}").mkdir(parents=True)


def split(folder: Path, start: int) -> None:
    write_checked(folder / MICROBATCHES, {"microbatches": 2**start})


@pytest.mark.parametrize("progress", [save, split])
def test_starts_that_make_progress_do_not_count(tmp_path, progress):
    told: list[str] = []
    restarts = Restarts(tmp_path, 2, 1.0, told.append)
    for start in range(1, 6):
        progress(tmp_path, start)
        assert restarts.pause_after(LOST) == 1
    assert [restarts.pause_after(LOST) for _ in range(3)] == [2, 4, None]
    assert told[-1].startswith("rank 0 asks for a restart; 3 starts in a row without a new checkpoint (compute.restarts: 2), giving up")
