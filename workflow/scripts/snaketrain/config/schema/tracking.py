"""The section `tracking`."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, field_validator

from snaketrain.config.schema.base import LARGEST, Positive, Section


class Tracking(Section):
    """What MLflow and the progress bar show, and where. Changing it makes nothing stale."""

    uri: str | None = Field(
        None,
        description="an MLflow server or database, in which `${NAME}` stands for an environment variable; null: `mlflow.db` beside the results",
    )
    local_store: str | None = Field(
        None,
        description="if MLflow's database is on Lustre, NFS and the like: a folder on a local disk of the machine where snakemake runs; the database is "
        "written there, and copied to its place every minute and at the end",
    )
    experiment: str = Field("snaketrain", description="the MLflow experiment", min_length=1)
    notes: str = Field("", description="free text, shown with the run in MLflow")
    register_models: bool = Field(
        True,
        description="whether the best classifier of texts or pairs of an experiment is registered in MLflow's model registry, ready to be served",
    )
    on_end: str | None = Field(
        None,
        description="a shell command that is run when a run ends, such as one that sends a mail; its environment has the run, its state and its metrics: "
        "`SNAKETRAIN_RUN`, `SNAKETRAIN_STATE`, ... (docs/mlflow.md)",
        min_length=1,
    )
    wait_seconds: float = Field(
        120,
        ge=0,
        le=LARGEST,
        description="how long a finished workflow waits at most for MLflow to be up to date; after that, it prints the command that completes the update",
    )
    log_every_steps: Positive = Field(10, description="steps between two records of the training metrics")

    @field_validator("local_store")
    @classmethod
    def _is_absolute(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder).is_absolute():
            raise ValueError(f"{folder!r} is not absolute: write a folder such as /local/scratch/me")
        return folder

    def contradictions(self) -> Iterator[str]:
        if self.local_store and self.uri and not self.uri.startswith("sqlite:"):
            yield "tracking.local_store has no effect with a server, which has its own database: leave it out, or leave out tracking.uri"
