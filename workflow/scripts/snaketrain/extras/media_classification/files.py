"""What images and recordings have in common: where the files and their classes come from, and the processor that makes tensors of them."""

import csv
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm import tqdm

from snaketrain.config.references import load
from snaketrain.data.cells import BadData
from snaketrain.runtime.loaded_code import count_as_listed, count_as_read
from snaketrain.runtime.strict_json import JsonObject, shortened

COLUMNS = FILE, LABEL = "file", "label"
MOST_NAMED = 10  # files in a message


class ClassifiedFiles(ABC):
    """Map-style: items are what the processor makes of a file, and its class in `labels`."""

    kind: ClassVar[str]  # of one file, in messages
    endings: ClassVar[tuple[str, ...]]
    auto: ClassVar[str]  # the class of transformers that reads a processor's file

    def __init__(
        self,
        processor: str | JsonObject,
        folder: str | None = None,
        table: str | None = None,
        classes: list[str] | None = None,
        augment: JsonObject | None = None,
    ):
        """`processor`: a folder with `preprocessor_config.json`, or `{use, arguments}`. `folder`: with a folder for each class. `table`: CSV
        with the columns `file`, relative to the table, and `label`. `classes`: all of them, in order; by default those that occur, sorted.
        `augment`: `{use, arguments}`, called with what is read of each file in training."""
        if (folder is None) == (table is None):
            raise ValueError("give either `folder` or `table`")
        found = list(in_folders(Path(folder), self.endings) if folder is not None else in_table(Path(str(table))))
        self.where = str(folder if folder is not None else table)
        if not found:
            raise ValueError(f"{self.where} has no {self.kind}: files that end with {', '.join(self.endings)}, in a folder for each class")
        self.label_names = list(classes) if classes is not None else sorted({name for _, name in found})
        if unknown := sorted({name for _, name in found} - {*self.label_names}):
            raise ValueError(f"{self.where}: {unknown[0]!r} is not among `classes`: {', '.join(self.label_names)}")
        numbers = {name: number for number, name in enumerate(self.label_names)}
        self.texts = [str(path) for path, _ in found]
        self.labels = [numbers[name] for _, name in found]
        self.training = False
        self.processor_given = processor
        self.processor = make_processor(self.auto, processor)
        self.augment = called(augment) if augment else None
        count_as_read(*self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        path = self.texts[number]
        try:
            content = self.read(path)
        except Exception as error:
            raise ValueError(f"{path} is not {self.kind} that can be read: {error}") from error
        if self.training and self.augment:
            content = self.augment(content)
        return {name: value[0] for name, value in self.processed(content).items()} | {"labels": np.int64(self.labels[number])}

    def facts(self) -> JsonObject:
        return {"processor": self.processor_given}

    def check(self) -> None:
        """Read the beginning of every file, so that one that cannot be decoded is found before the training."""
        problems = []
        for path in tqdm(self.texts, f"check {self.where}", unit="file", mininterval=5):
            try:
                self.look_at(path)
            except Exception as error:
                problems.append(f"{path}: {str(error) or type(error).__name__}")
        if problems:
            raise BadData(
                f"{len(problems)} of {len(self)} files are not {self.kind} that can be read. Repair or remove them: {shortened(problems, MOST_NAMED)}"
            )

    @abstractmethod
    def read(self, path: str) -> Any:
        """What `augment` gets, and `processed`."""

    @abstractmethod
    def look_at(self, path: str) -> None:
        """Raises an error if the file cannot be read; cheaper than reading it."""

    @abstractmethod
    def processed(self, content: Any) -> dict[str, np.ndarray]:
        """The fields of the model's inputs, with a row for one example."""


def in_folders(folder: Path, endings: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """The files below each folder, and its name."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    count_as_listed(str(folder))
    for of_class in sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")):
        for place, folders, files in os.walk(of_class, followlinks=True):
            folders.sort()
            count_as_listed(place)
            yield from ((Path(place, name), of_class.name) for name in sorted(files) if name.lower().endswith(endings))


def in_table(table: Path) -> Iterator[tuple[Path, str]]:
    count_as_read(str(table))
    with open(table, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
            raise ValueError(f"{table}: has no column `{missing[0]}`, but {', '.join(rows.fieldnames or ['nothing'])}")
        for row in rows:
            name, label = (row[column] for column in COLUMNS)
            if not name or not label:
                raise ValueError(f"{table}, line {rows.line_num}: has no {FILE if not name else LABEL}")
            if not (path := table.parent / name).is_file():
                raise ValueError(f"{table}, line {rows.line_num}: there is no file {path}")
            yield path, label


def called(given: JsonObject) -> Callable[[Any], Any]:
    """A class is made with its arguments and then called; a function is called with them."""
    made, arguments = load(given["use"]), given.get("arguments", {})
    return made(**arguments) if isinstance(made, type) else lambda content: made(content, **arguments)


def make_processor(auto: str, given: str | JsonObject) -> Any:
    import transformers

    if isinstance(given, str):
        file = Path(given) / "preprocessor_config.json"
        if not file.is_file():
            raise ValueError(f"`processor`: there is no {file}")
        count_as_read(str(file))
        return getattr(transformers, auto).from_pretrained(given, local_files_only=True)
    return load(given["use"])(**given.get("arguments", {}))
