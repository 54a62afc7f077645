"""The library behind the stage scripts: settings, data, tasks, strategies, the trainer.

`from snaketrain import Trainer, Task, Callback, Strategy` for notebooks and your own code; imported only on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.data.locations import CachedFiles as CachedFiles
    from snaketrain.notebook import open_run as open_run
    from snaketrain.strategies.base import Strategy as Strategy
    from snaketrain.tasks.base import Task as Task
    from snaketrain.training.callbacks import Callback as Callback
    from snaketrain.training.trainer import Trainer as Trainer
    from snaketrain.training.trainer import TrainerOptions as TrainerOptions

PUBLIC = {
    "CachedFiles": "snaketrain.data.locations",
    "Callback": "snaketrain.training.callbacks",
    "Strategy": "snaketrain.strategies.base",
    "Task": "snaketrain.tasks.base",
    "Trainer": "snaketrain.training.trainer",
    "TrainerOptions": "snaketrain.training.trainer",
    "open_run": "snaketrain.notebook",
}


def __getattr__(name: str) -> object:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
