"""The section `shared_steps` of the configuration."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from snaketrain.config.schema.base import LARGEST, Positive, Section

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings


class StepsCache(Section):
    """Where a team shares steps. Changing it makes nothing stale."""

    at: str = Field(
        description="folder or address, such as `/project/steps` or `s3://bucket/steps`, to which finished trainings are copied"
    )
    members: str = Field(
        description="file of those whose steps are taken over: a line for each with the name and the public key, such as `alice ssh-ed25519 AAAA...`"
    )
    key: str | None = Field(
        "~/.ssh/id_ed25519", description="your private key, without a passphrase, by which others know what you share; null: only take over"
    )
    gigabytes: Annotated[float, Field(gt=0, le=LARGEST)] = Field(
        500, description="how large it may become; what was used longest ago is removed"
    )


class SharedSteps(Section):
    """Whether runs that begin with the same steps train them once. Changing it makes nothing stale."""

    at_least: Positive | None = Field(
        1000,
        description="runs that differ only in `train.schedule`, `warmup` and `steps` have the same learning rates at first; if sharing these steps saves at "
        "least this many in all, a job `train_trunk` trains them once; null: each run trains alone. The results are the same",
    )
    cache: StepsCache | None = Field(
        None,
        description="a folder or an object store in which a whole team shares steps; null: only steps of this workspace are taken over",
    )


SECTIONS = {"shared_steps": (SharedSteps, SharedSteps())}


def shared_steps(run: "Settings") -> SharedSteps:
    """The section of a run, which the type that the core declares does not have."""
    return vars(run)["shared_steps"]


def members_of(file: str) -> dict[str, str]:
    """Names by public key, from lines that ssh-keygen calls allowed signers; a ValueError says which one is wrong."""
    members: dict[str, str] = {}
    for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if words and not (len(words) >= 3 and re.fullmatch(r"[\w.@+-]+", words[0]) and words[1] == "ssh-ed25519"):
            raise ValueError(f"line {number} is not a name and a public key, such as `alice ssh-ed25519 AAAA...`")
        if words:
            members[" ".join(words[1:3])] = words[0]
    return members
