"""The user's own files that results depend on: code that the settings name, and the content of local data and models."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.references import find
from snaketrain.config.schema import Data, Metric, Settings, Source
from snaketrain.config.schema.base import sections_in
from snaketrain.config.schema.of_extras import hooks
from snaketrain.config.schema.tasks import CHECKED_BY_CLASS, ModuleSettings, problems
from snaketrain.data.fetching import named_files
from snaketrain.labels import label_kind_file
from snaketrain.orchestration.strategy_declarations import strategy_files
from snaketrain.runtime.manifests import OWN_FILES, DigestCache, content_digest, digest
from snaketrain.runtime.strict_json import Json
from snaketrain.tasks.metric_names import is_short

AT_ONCE = 4  # files that are read for their digests


def class_files(named: Iterable[tuple[str, str | None]]) -> list[Path]:
    """The files of named code that may change; installed packages do not."""
    return [file for use, place in named if (file := find(use, place)[0])]


def dataset_classes(data: Data) -> list[tuple[str, str | None]]:
    return [(source.use, None) for source in data.sources.values() if source.use]


def uses_in(value: Json) -> list[str]:
    """The names of code in nested arguments: each full name in a `{use, arguments}`, and each name in a file, wherever it is."""
    if isinstance(value, str):
        return [value] if ".py:" in value else []
    if isinstance(value, list):
        return [use for each in value for use in uses_in(each)]
    if not isinstance(value, dict):
        return []
    use = value.get("use")
    of_a_package = [use] if isinstance(use, str) and "." in use and ".py:" not in use else []
    return of_a_package + uses_in(list(value.values()))


def content(source: Source) -> str:
    """The name of a source's only file, or their number, and a digest of them all."""
    found = file_digests(source)
    return " sha256 ".join(*found.items()) if len(found) == 1 else f"{len(found)} files {digest(found)}"


def file_digests(source: Source) -> dict[str, str]:
    """The digest of each file of a source; a file is read again only if it has changed."""
    cached, files = own_digests(), named_files(source)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            found = list(threads.map(lambda file: cached.of(file, content_digest), files.values()))
        except OSError as error:
            raise ConfigurationError(
                [f"{error.filename}: cannot be read: {error.strerror}. Repair the file, or name another one."]
            ) from None
    cached.save()
    return dict(zip(files, map(str, found), strict=True))


@functools.cache
def own_digests() -> DigestCache:
    store = OWN_FILES.absolute()
    store.parent.mkdir(exist_ok=True)  # Snakemake has not created it yet at the first start
    return DigestCache(store, "sha256")


# --- the code that a run names, and the files of it that decide what it trains, evaluates or predicts

SHORT_NAMES_IN = {"train.task": "tasks", "train.strategy": "strategies", "train.schedule": "training.schedules"}


class Reference(NamedTuple):
    """A setting that refers to code."""

    setting: str
    use: str
    short_names_in: str | None
    arguments: Mapping[str, object] | None  # None: they are not for the code itself
    complete: bool = True  # whether it is called with only these arguments; losses and metrics get tensors as well


def references(run: Settings) -> list[Reference]:
    """All code that a run names. Each stage asks for it: it is found once, and kept with the run, so that no other gets the same `id`."""
    if id(run) not in _references:
        _references[id(run)] = run, list(_find_references(run))
    return _references[id(run)][1]


_references: dict[int, tuple[Settings, list[Reference]]] = {}


def _find_references(run: Settings) -> Iterator[Reference]:
    """The arguments of the task `module` are sections as well."""
    task, of_task = run.train.task, "train.task.arguments"
    module = ModuleSettings(**task.arguments) if task.use == "module" and not problems(task.arguments) else None
    for place, section in (*sections_in(run), *(sections_in(module, of_task) if module else ())):
        use, in_task = dict(section).get("use"), place.startswith(of_task)
        if use is None or (place, use) == ("train.strategy", "auto") or (isinstance(section, Metric) and is_short(use) and not in_task):
            continue
        arguments = None if place == "train.task" and use in CHECKED_BY_CLASS else getattr(section, "arguments", None)
        short_names_in = SHORT_NAMES_IN.get(re.sub(r"^train\.groups\.\d+\.", "train.", place))
        yield Reference(f"{place}.use", use, short_names_in, arguments, complete=not (in_task or isinstance(section, Metric)))
    if module is None:
        yield from (Reference(of_task, use, None, None) for use in uses_in(task.arguments))


def code_of_run(run: Settings, *further: str) -> list[Path]:
    """Of task, model, data, losses and metrics: the user's own files, and those of the library that only settings name. `further`: also
    what settings name whose places begin like this."""
    places = ("train.task", "train.metrics", "model", *further)
    named = [(each.use, each.short_names_in) for each in references(run) if each.setting.startswith(places)]
    named += [*dataset_classes(run.data.for_training), *((use, None) for use in uses_in(run.train.task.arguments))]
    return [*class_files(named), *strategy_files(run.train.strategy.use), label_kind_file(run.data.label_kind)]


def code_of_training(run: Settings) -> list[Path]:
    """With the files that settings of extras name, by `code(run)` in their `settings.py`."""
    return [*code_of_run(run, "train."), *(file for code in hooks("settings", "code") for file in code(run))]
