"""The user's own files that results depend on: code that the settings name, and the content of local data and models."""

import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.references import find
from snaketrain.config.schema import Data, Examples, Settings, Source
from snaketrain.data.fetching import named_files
from snaketrain.labels import label_kind_file
from snaketrain.orchestration.strategy_declarations import strategy_files
from snaketrain.runtime.manifests import OWN_FILES, DigestCache, content_digest, digest
from snaketrain.runtime.strict_json import Json
from snaketrain.tasks.metric_names import is_short

AT_ONCE = 4  # files that are read for their digests


def of_splits(data: Data) -> dict[str, Examples]:
    return data.sources


def class_files(named: Iterable[tuple[str, str | None]]) -> list[Path]:
    """The files of named code that may change; installed packages do not."""
    return [file for use, place in named if (file := find(use, place)[0])]


def dataset_classes(data: Data) -> list[tuple[str, None]]:
    return [(source.use, None) for source in of_splits(data).values() if source.use]


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


# --- the files whose code decides what a run trains, evaluates or predicts: own ones, and those of the library that settings name


Named: TypeAlias = Iterable[tuple[str, str | None]]  # what a setting `use` names, and the package whose names may be short


def code_of_run(run: Settings, also: Named = ()) -> list[Path]:
    """Task, model, data, losses and metrics."""
    named = [(run.train.task.use, "tasks"), (run.model.use, None), *dataset_classes(run.data.for_training), *also]
    named += [(use, None) for use in uses_in(run.train.task.arguments)]  # losses, metrics
    named += [(metric.use, None) for metric in run.train.metrics.values() if not is_short(metric.use)]
    return [*class_files(named), *strategy_files(run.train.strategy.use), label_kind_file(run.data.label_kind)]


def code_of_evaluation(run: Settings, evaluation_set: str) -> list[Path]:
    metrics = [(metric.use, None) for metric in run.evaluate.metrics.values() if not is_short(metric.use)]
    return code_of_run(run, [*dataset_classes(run.sets.get(evaluation_set, run.data)), *metrics])


def code_of_training(run: Settings) -> list[Path]:
    """Also optimizers, schedules, callbacks and a training loop."""
    train = run.train
    named: list[tuple[str, str | None]] = [(train.optimizer.use, None), (train.schedule.use, "training.schedules")]
    named += [(group.optimizer.use, None) for group in train.groups if group.optimizer]
    named += [(group.schedule.use, "training.schedules") for group in train.groups if group.schedule]
    named += [(each.use, None) for each in (*train.callbacks, train.trainer) if each]
    return code_of_run(run, named)
