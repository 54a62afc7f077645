"""What a job's Python is started through, and the archive of the environment, which is made before the first job."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.extras.staged_environment.settings import folder_of
from snaketrain.extras.staged_environment.staged_python import pack_environment

if TYPE_CHECKING:
    from snaketrain.config.schema import Compute

SCRIPT = Path(__file__).with_name("staged_python.py")


def python_words(compute: "Compute") -> list[str]:
    return [str(SCRIPT), folder, "--"] if (folder := folder_of(compute)) else []


def before_first_job(computes: Iterable["Compute"], executor: str) -> None:
    if any(map(folder_of, computes)):
        pack_environment(lambda line: print(line, file=sys.stderr, flush=True))
