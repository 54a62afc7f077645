"""The classes of training data whose labels are not listed: each file is surveyed on its own, then all are decided on."""

from collections.abc import Iterable
from pathlib import Path

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData
from snaketrain.data.reading import rows
from snaketrain.data.surveying import Surveyor, classes
from snaketrain.extras.shards.dealing import RawFile
from snaketrain.runtime.strict_json import JsonObject


def survey_file(data: Data, file: RawFile, root: Path) -> JsonObject:
    """For each label how often it occurs, how often in a first line, and where first."""
    surveyor = Surveyor("train", data, None)
    for _ in surveyor.examples(rows([file.path], data, surveyor.issues, root, file_slice=file.file_slice)):
        pass
    return {
        label: [count, surveyor.in_first_lines[label], surveyor.first_locations[label]] for label, count in surveyor.label_counts.items()
    }


def decide_classes(data: Data, surveys: Iterable[JsonObject]) -> list[str]:
    """The names of the classes in order; `surveys` of all files, in their order."""
    merged = Surveyor("train", data, None)
    for survey in surveys:
        for label, (count, in_first_lines, location) in survey.items():
            merged.label_counts[label] += count
            merged.in_first_lines[label] += in_first_lines
            merged.first_locations.setdefault(label, location)
    if not merged.label_counts:
        raise BadData(f"data.label: no row of train has a value in column {data.label!r}. Name the right column.")
    merged.refuse_too_many_classes()
    merged.refuse_headers()
    return classes(data, merged.label_counts)[0]
