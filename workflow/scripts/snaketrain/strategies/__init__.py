"""How many processes share one training: a file for each way, all with the interface of `single`."""

import importlib
import os
from pathlib import Path
from typing import Any

CLASSES = {"single": "Single", "ddp": "DDP"}


def make_strategy(name: str, **arguments: Any) -> Any:
    """The strategy object; this imports torch, so only the processes that train call it."""
    if name == "auto":
        name = "ddp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "single"
    module = importlib.import_module(f"snaketrain.strategies.{name}")
    return getattr(module, CLASSES[name])(**arguments)


def strategy_files(name: str) -> list[Path]:
    """The code that `train.strategy` may run; the same for any number of processes."""
    return [Path(__file__).with_name(f"{each}.py") for each in (CLASSES if name == "auto" else [name])]
