"""What the folders in `snaketrain/extras/` add: stages with their rules, sections of the configuration, and checks before any job.

The core names none of them, so that each can be deleted.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from snaketrain.config.schema import Settings
from snaketrain.config.schema.of_extras import FOLDER, modules

if TYPE_CHECKING:
    from snaketrain.orchestration.stage import Stage


def rule_files() -> list[str]:
    """`rules.smk` of each extra that has one."""
    return sorted(map(str, FOLDER.glob("*/rules.smk")))


def stages() -> "Iterator[type[Stage]]":
    """`STAGES` of each extra's `stages.py`."""
    for module in modules("stages"):
        yield from module.STAGES


def problems(runs: Mapping[str, Settings]) -> Iterator[str]:
    """What the `problems` of each extra's `check.py` finds in runs in which the core finds none."""
    for module in modules("check"):
        yield from module.problems(runs)
