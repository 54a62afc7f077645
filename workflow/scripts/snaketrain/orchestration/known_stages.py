"""All stages, of the core and of each extra that is there; and what a rule's name tells of its jobs, where no configuration is at hand."""

from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.orchestration import extras
from snaketrain.orchestration.stage import Stage
from snaketrain.orchestration.stages import CORE, Training
from snaketrain.slurm.jobs import PARTS

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline

CLASSES: dict[str, type[Stage]] = {stage.name: stage for stage in (*CORE, *extras.stages())}
PARTS |= {name: stage.part_of for name, stage in CLASSES.items() if stage.part_of}


def stages_of(pipeline: "Pipeline") -> dict[str, Stage]:
    return {name: stage(pipeline) for name, stage in CLASSES.items()}


def trains(rule: str) -> bool:
    """Whether its jobs write the journal of a training."""
    return issubclass(CLASSES.get(rule, Stage), Training)


def parts_of(rule: str) -> list[str]:
    """The rules that do a part of its jobs, in the same folder."""
    return [name for name, whole in PARTS.items() if whole == rule]


def folder_of_job(rule: str, output: str | Path) -> Path:
    """Where a job works, given its first output."""
    folder = Path(output).parent
    if rule not in PARTS:
        return folder
    own, whole = Path(CLASSES[rule].folder), Path(CLASSES[PARTS[rule]].folder)
    run = folder.parts[-len(own.parts) :][own.parts.index("{}")]
    return folder.parents[len(own.parts) - 1] / str(whole).format(run)
