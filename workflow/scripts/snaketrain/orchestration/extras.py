"""What the folders in `snaketrain/extras/` add: stages with their rules, sections of the configuration, and checks before any job.

The core names none of them, so that each can be deleted.
"""

from collections.abc import Callable, Iterator, Mapping
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


def checks_of_runs() -> Iterator[tuple[Callable[[Settings], Iterator[str]], Callable[[Settings], object]]]:
    """`problems_of_run(run)` of a `check.py`, and `relevant_to(run)`: runs in which this is the same are checked once."""
    for module in modules("check"):
        if hasattr(module, "problems_of_run"):
            yield module.problems_of_run, module.relevant_to


def problems(runs: Mapping[str, Settings]) -> Iterator[str]:
    """What the `problems` of a `check.py` finds in runs in which neither the core nor `problems_of_run` finds any."""
    for module in modules("check"):
        if hasattr(module, "problems"):
            yield from module.problems(runs)
