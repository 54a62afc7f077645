"""What the folders in `snaketrain/extras/` add: rules for the Snakefile, and checks of the configuration before any job.

The core names none of them, so that each can be deleted.
"""

import importlib
from collections.abc import Iterator, Mapping

from snaketrain.config.schema import Settings
from snaketrain.orchestration.code_digest import SCRIPTS

FOLDER = SCRIPTS / "snaketrain/extras"


def rule_files() -> list[str]:
    """`rules.smk` of each extra that has one."""
    return sorted(map(str, FOLDER.glob("*/rules.smk")))


def problems(runs: Mapping[str, Settings]) -> Iterator[str]:
    """What the `problems` of each extra's `check.py` finds in runs in which the core finds none."""
    for path in sorted(FOLDER.glob("*/check.py")):
        yield from importlib.import_module(f"snaketrain.extras.{path.parent.name}.check").problems(runs)
