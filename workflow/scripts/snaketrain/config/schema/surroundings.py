"""The environment of a training's processes on each node: variables and a container."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field, model_validator

from snaketrain.config.schema.base import Section
from snaketrain.runtime.environment_secrets import is_sure_name
from snaketrain.runtime.json_types import Json
from snaketrain.runtime.secret_forms import without_secrets

# variables that are set here, with what to do instead
OURS = {
    "OMP_NUM_THREADS": "set `threads`, which are shared by a node's processes",
    "TOKENIZERS_PARALLELISM": "it is always true",
    "HF_HUB_OFFLINE": "it is always 1, since trainings and evaluations use no network",
    "TORCHELASTIC_": "torchrun sets it",
    "SNAKETRAIN_": "it is for internal use",
    "SLURM_": "SLURM sets it; use `sbatch` for options",
} | dict.fromkeys(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "the launcher sets it",
)


def environment_problems(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield f"`environment`: {name!r} cannot be the name of a variable: use letters, digits and _, not beginning with a digit"
        elif ours := next((why for mine, why in OURS.items() if name == mine or (mine.endswith("_") and name.startswith(mine))), None):
            yield f"`environment.{name}` cannot be set: {ours}"
        elif is_sure_name(name) or without_secrets(value) != value:
            yield (
                f"`environment.{name}` holds a secret, which everybody on the node could read in the list of processes: remove it here, and export it "
                "in the shell that starts snakemake; jobs inherit it"
            )
        elif "\0" in value:
            yield f"`environment.{name}` contains a null character, which no variable can hold: remove it"


class Container(Section):
    """The container in which training and evaluation run."""

    image: str = Field(description="a file such as `image.sif`, or whatever else the runtime takes", min_length=1)
    runtime: Literal["apptainer", "singularity", "pyxis"] = Field(
        "apptainer", description="what starts it; `pyxis` is the plugin of SLURM that adds `srun --container-image`"
    )
    binds: list[str] = Field(
        [], description="further folders to bind, as `/data` or `/data:/mnt:ro`; the working directory and this project are always bound"
    )
    python: str = Field("python3", description="the Python inside, with the packages of requirements.lock", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _image_alone(cls, value: Json) -> Json:
        return {"image": value} if isinstance(value, str) else value  # `container: image.sif`

    def contradictions(self) -> Iterator[str]:
        for name in ("image", "python"):
            if getattr(self, name).startswith("-"):
                yield f"`{name}`: {getattr(self, name)!r} begins with a dash, and would be read as an option: write it without"
        for bind in self.binds:
            if not bind.startswith("/") or "," in bind:
                yield f"`binds`: {bind!r} is not an absolute path, or has a comma: write a path such as /data, or /data:/mnt:ro"
