"""All stages, of the core and of each extra that is there; and what a rule's name tells of its jobs, where no configuration is at hand."""

from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.orchestration import extras
from snaketrain.orchestration.stage import Stage
from snaketrain.orchestration.stages import CORE, Training
from snaketrain.slurm.jobs import Work

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline

CLASSES: dict[str, type[Stage]] = {stage.name: stage for stage in (*CORE, *extras.stages())}


def stages_of(pipeline: "Pipeline") -> dict[str, Stage]:
    return {name: stage(pipeline) for name, stage in CLASSES.items()}


def trains(rule: str) -> bool:
    """Whether its jobs write the journal of a training."""
    return issubclass(CLASSES.get(rule, Stage), Training)


def whole_of(rule: str) -> str:
    """The rule of whose jobs its own are parts, in the same folder; itself, if they are no parts."""
    return CLASSES.get(rule, Stage).part_of or rule


def parts_of(rule: str) -> list[str]:
    """The rules that do a part of its jobs."""
    return [name for name, stage in CLASSES.items() if stage.part_of == rule]


def folder_of_job(rule: str, output: str | Path) -> Path:
    """Where a job works, given its first output."""
    folder = Path(output).parent
    if (whole := whole_of(rule)) == rule:
        return folder
    own = Path(CLASSES[rule].folder)
    run = folder.parts[-len(own.parts) :][own.parts.index("{}")]
    return folder.parents[len(own.parts) - 1] / CLASSES[whole].folder.format(run)


# --- what SLURM's jobs do


def run_of_work(work: Work) -> str:
    """The run, where the job works on one: of a part, whose name is `<run>_<part>`, too."""
    return work.name if whole_of(work.stage) == work.stage else work.name.rpartition("_")[0]


def results_of_work(work: Work) -> set[tuple[str, str]]:
    """What it writes: a run has one training folder, whether it is trained in parts or at once."""
    return {(whole_of(stage), run_of_work(work)) for stage in work.stages}
