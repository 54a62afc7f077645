"""How many processes share one training: a file for each way, all with the interface of `single`."""

import importlib
import os


def choose(name: str, processes: int) -> str:
    if name == "auto":
        return "ddp" if processes > 1 else "single"
    return name


def make_strategy(name: str, **arguments):
    """The strategy object; this imports torch, so only the processes that train call it."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    name = choose(name, processes)
    module = importlib.import_module(f"snaketrain.strategies.{name}")
    return getattr(module, {"ddp": "DDP"}.get(name, name.capitalize()))(**arguments)
