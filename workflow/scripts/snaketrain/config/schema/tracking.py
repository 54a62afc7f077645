"""The section `tracking`."""

from pydantic import Field, field_validator

from snaketrain.config.schema.base import LARGEST, Positive, Section
from snaketrain.runtime.credentials import has_password


class Tracking(Section):
    """What MLflow and the progress bar show, and where. Changing it makes nothing stale."""

    uri: str | None = Field(None, description="an MLflow server or database; none: `mlflow.db` beside the results")
    experiment: str = Field("snaketrain", description="the MLflow experiment", min_length=1)
    notes: str = Field("", description="free text, shown with the run in MLflow")
    register_models: bool = Field(
        True, description="whether the best text classifier of an experiment goes to MLflow's registry, to be served"
    )
    wait_seconds: float = Field(
        120,
        ge=0,
        le=LARGEST,
        description="how long at most a workflow that has ended waits until MLflow is up to date; if that is too short, it says how to finish it",
    )
    log_every_steps: Positive = Field(10, description="how often training metrics are written down")

    @field_validator("uri")
    @classmethod
    def _holds_no_password(cls, uri: str | None) -> str | None:
        if uri and has_password(uri):
            raise ValueError(
                "holds a password, which would be seen in logs and process lists: take user and password out of the address, and before the "
                "start set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return uri
