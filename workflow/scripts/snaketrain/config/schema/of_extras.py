"""What the folders in `snaketrain/extras/` add to the configuration: sections of runs and settings in those of the core, by `settings.py`, and a
key beside the sections, by `top_level.py`.

A `top_level.py` has its KEY, the `changes(config)` that make further runs, `problems(config, changes, runs)`, where `runs` are those that are
valid so far, and the TABLES of the reference, by their titles.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import create_model
from pydantic.fields import FieldInfo

from snaketrain.config.schema.base import Section

FOLDER = Path(__file__).resolve().parents[2] / "extras"
Settings = TypeVar("Settings", bound=Section)


@functools.cache
def modules(name: str) -> tuple[ModuleType, ...]:
    """The module of this name of each extra that has one."""
    return tuple(importlib.import_module(f"snaketrain.extras.{path.parent.name}.{name}") for path in sorted(FOLDER.glob(f"*/{name}.py")))


def constants(module: str, name: str) -> list[Any]:
    """The values of this name, of each extra's module. A stage that asks for them alone does not depend on the modules' code."""
    return [getattr(extra, name) for extra in modules(module)]


def hooks(module: str, name: str) -> list[Callable[..., Any]]:
    """The functions of this name, in the modules of the extras that have one."""
    return [getattr(extra, name) for extra in modules(module) if hasattr(extra, name)]


def with_settings_of_extras(settings: type[Settings]) -> type[Settings]:
    """Each extra's `settings.py` has a type and a `Field` for each of its SECTIONS, and for each of the FIELDS that it adds to a section of the
    core, as in `{"data": {"shards": (int, Field(1))}}`; and maybe `contradictions(settings)`, texts that each say what contradicts what and
    what to do, and `code(settings)`, files that decide what is trained. A field of `data` says how the training data is prepared: sets that
    are prepared on their own have its default, unless it is among OF_EACH_SET, fields that say how each text is read.

    It imports the modules of this package, and not the package, which is not imported yet.
    """
    extras = modules("settings")

    def contradictions(self: Section) -> Iterator[str]:
        yield from settings.contradictions(self)
        for extra in extras:
            if hasattr(extra, "contradictions"):
                yield from extra.contradictions(self)

    fields = {name: section for extra in extras for name, section in getattr(extra, "SECTIONS", {}).items()}
    for extra in extras:
        for name, added in getattr(extra, "FIELDS", {}).items():
            section = settings.model_fields[name].annotation
            assert isinstance(section, type) and issubclass(section, Section), f"{extra.__name__}: {name} is no single section"
            _add(section, added, extra.__name__, getattr(extra, "OF_EACH_SET", ()))
            if not settings.model_fields[name].is_required():
                fields[name] = (section, section())  # the default that the core has made lacks them
    found = create_model(settings.__name__, __base__=settings, __module__=settings.__module__, __doc__=settings.__doc__, **fields)
    found.contradictions = contradictions  # type: ignore[method-assign]
    return found


def _add(section: type[Section], fields: dict[str, tuple[Any, Any]], extra: str, of_each_set: tuple[str, ...]) -> None:
    """To the class itself, since others have imported it already, and scripts read a section by its class."""
    if twice := section.model_fields.keys() & fields:
        raise TypeError(f"{extra}: {section.__name__} has {', '.join(twice)} already")
    for name, (annotation, field) in fields.items():
        section.model_fields[name] = FieldInfo.from_annotated_attribute(annotation, field)
    section.of_extras += tuple(name for name in fields if name not in of_each_set)
    section.model_rebuild(force=True)
