"""The setting `tracking.register_models`."""

from pydantic import Field

FIELDS = {
    "tracking": {
        "register_models": (
            bool,
            Field(
                True,
                description="whether the best classifier of texts or pairs, or model that writes text, of an experiment is registered in MLflow's "
                "model registry, ready to be served",
            ),
        )
    }
}
