"""What the folders in `snaketrain/extras/` add to the configuration: sections of runs, by `settings.py`, and a key beside them, by `top_level.py`.

A `top_level.py` has its KEY, the `changes(config)` that make further runs, `problems(config, changes, runs)`, where `runs` are those that are
valid so far, and the TABLES of the reference, by their titles.
"""

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from pydantic import create_model

from snaketrain.config.schema.base import Section

FOLDER = Path(__file__).resolve().parents[2] / "extras"
Settings = TypeVar("Settings", bound=Section)


@functools.cache
def modules(name: str) -> tuple[ModuleType, ...]:
    """The module of this name of each extra that has one."""
    return tuple(importlib.import_module(f"snaketrain.extras.{path.parent.name}.{name}") for path in sorted(FOLDER.glob(f"*/{name}.py")))


def with_sections_of_extras(settings: type[Settings]) -> type[Settings]:
    """Each extra's `settings.py` has a type and a `Field` for each of its SECTIONS, and maybe `contradictions(settings)`, texts that each say
    what contradicts what and what to do.

    It imports the modules of this package, and not the package, which is not imported yet.
    """
    extras = modules("settings")

    def contradictions(self: Section) -> Iterator[str]:
        yield from settings.contradictions(self)
        for extra in extras:
            if hasattr(extra, "contradictions"):
                yield from extra.contradictions(self)

    fields = {name: section for extra in extras for name, section in extra.SECTIONS.items()}
    found = create_model(settings.__name__, __base__=settings, __module__=settings.__module__, __doc__=settings.__doc__, **fields)
    found.contradictions = contradictions  # type: ignore[method-assign]
    return found
