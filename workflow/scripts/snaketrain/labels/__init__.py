"""The label kinds that `data.label_kind` can name: each file of this folder that defines a `KIND`, and the `label_kind.py` of extras."""

import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from snaketrain.labels.base import LabelKind

EXTRAS = Path(__file__).resolve().parents[1] / "extras"


def label_kind(name: str) -> LabelKind:
    return label_kinds()[name]


def label_kinds() -> dict[str, LabelKind]:
    return {name: module.KIND for name, module in _modules().items()}


def label_kind_file(name: str) -> Path:
    return Path(str(_modules()[name].__file__))


def metrics_by_label_kind() -> dict[str, dict[str, str]]:
    """The `metrics` of a task that supports all label kinds. The checks before any job recognise a call of this function by name."""
    return {name: dict(kind.head.metrics) for name, kind in label_kinds().items()}


@functools.cache
def _modules() -> dict[str, ModuleType]:
    names = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    names += [f"snaketrain.extras.{path.parent.name}.{path.stem}" for path in EXTRAS.glob("*/label_kind.py")]
    modules = list(map(importlib.import_module, names))
    by_name = {module.KIND.name: module for module in modules if hasattr(module, "KIND")}
    return dict(sorted(by_name.items()))
