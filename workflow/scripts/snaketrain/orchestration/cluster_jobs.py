"""What the monitor of SLURM's jobs has to know of them: how many nodes they may have, and where they note unfit ones."""

from pathlib import Path

from snaketrain.config.schema import Compute
from snaketrain.orchestration.names import folder_of_job
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.stages import ModelStage
from snaketrain.slurm.client import Work


def ranges_and_folders(pipeline: Pipeline) -> tuple[dict[str, Compute], dict[str, Path]]:
    """By stage and name, of all that may become a job: behind the decision of a search, Snakemake plans jobs later."""
    ranges, folders = {}, {}
    for stage in (stage for stage in pipeline.stages.values() if isinstance(stage, ModelStage)):
        for name, compute in stage.computes.items():
            work = str(Work((stage.name,), name.replace("/", "_")))
            folders[work] = folder_of_job(stage.name, pipeline.manifest(stage.name, name))
            if compute.counts.varies:
                ranges[work] = compute
    return ranges, folders
