"""The script with which a training was submitted, in its folder: `job.sh`."""

from typing import TYPE_CHECKING

from snaketrain.runtime.manifests import PRIVATE_FILE, write_text

if TYPE_CHECKING:
    from snaketrain.training.callbacks import Callback
    from train_model import Attempt


def before_attempt(attempt: "Attempt") -> "list[Callback]":
    script = attempt.job.given.path(attempt.arguments.run_name).with_suffix(".sh")
    if script.exists():
        write_text(attempt.job.folder / "job.sh", script.read_text(encoding="utf-8"), PRIVATE_FILE)
    return []
