"""From raw rows to tokenised splits on disk, in two passes and in little memory whatever the size of the data."""

import itertools
import os
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pyarrow

from snaketrain.data.formats import BadData
from snaketrain.data.labels import label_kind
from snaketrain.data.oddities import Oddities
from snaketrain.data.splitting import SPLITS, UNUSED, assign, repeated
from snaketrain.data.surveying import Example, Survey, classes, examples, progress, survey
from snaketrain.data.tallies import TALLIES
from snaketrain.settings import Data

# by `data.label_kind`: the type of the column, and what stands where there is no label
LABELS = {
    "class": (pyarrow.int64(), -100),  # what losses and metrics of PyTorch ignore
    "classes": (pyarrow.list_(pyarrow.int64()), None),
    "number": (pyarrow.float64(), None),
}
BATCH_ROWS, BATCH_CHARACTERS = 2000, 2_000_000


def prepare(data: Data, files: dict[str, list[Path]], root: Path, tokenizer: Any, output: Path) -> tuple[dict[str, Any], Oddities]:
    """Write `train.arrow`, `dev.arrow` and `test.arrow`; the facts about them, and what was odd."""
    odd = Oddities()
    surveys = _surveys(data, files, odd, root)
    names, class_of = classes(data, surveys["train"])
    assigned = {source: assign(source, found.usable, data) for source, found in surveys.items()}
    flags = _flags(surveys, assigned)
    labelled = {split: data.label is not None and surveys.get(split, surveys["train"]).labelled for split in SPLITS}
    kind, no_label = label_kind(data), LABELS[data.label_kind][1]
    background = ThreadPoolExecutor(1)  # tokenises a batch while the rows of the next one are read
    writers = [SplitWriter(output / f"{split}.arrow", tokenizer, data, names, odd, background) for split in SPLITS]
    for source in surveys:
        last = numpy.flatnonzero(assigned[source] != UNUSED)[-1]
        total = int(last) + 1
        flagged = numpy.logical_or.reduce(list(flags[source].values()))
        # one by one an array's values are slow to come by, those of a memoryview are not
        known = zip(range(total), memoryview(assigned[source]), memoryview(flagged), strict=False)
        steps = zip(known, examples(files[source], data, Oddities(), root), strict=False)
        for (row, split, is_odd), example in progress(steps, f"tokenise {source}", total):
            if split != UNUSED:
                if is_odd:
                    for oddity in (name for name, rows in flags[source].items() if rows[row]):
                        odd.add(oddity, example.place, example.texts[0])
                label = kind.encoded(example.label, class_of) if labelled[SPLITS[split]] else no_label
                writers[split].add(example, label)
    splits = {split: {"labelled": labelled[split]} | writer.close() for split, writer in zip(SPLITS, writers, strict=True)}
    _check_train(writers[0])
    rows = {source: found.rows for source, found in surveys.items()}
    return {"label_names": names, "label_kind": data.label_kind, "splits": splits, "rows": rows}, odd


def _surveys(data: Data, files: dict[str, list[Path]], odd: Oddities, root: Path) -> dict[str, Survey]:
    known = set(data.labels) if data.labels is not None else None
    surveys = {"train": survey("train", files["train"], data, known, odd, root)}
    known = set(classes(data, surveys["train"])[1])
    for split in SPLITS[1:]:
        if files.get(split):
            surveys[split] = survey(split, files[split], data, known, odd, root)
            if split == "dev" and data.label and not surveys[split].labelled:
                raise BadData(f"data.dev: no row has a label in column {data.label!r}, and the best checkpoint is chosen by them.")
    return surveys


def _flags(surveys: dict[str, Survey], assigned: dict[str, numpy.ndarray]) -> dict[str, dict[str, numpy.ndarray]]:
    """For every source, the rows that are repetitions within train, or leak from train into another split."""
    hashes, train = surveys["train"].hashes, assigned["train"] == SPLITS.index("train")
    flags: dict[str, dict[str, numpy.ndarray]] = {source: {} for source in surveys}
    flags["train"]["duplicate"] = repeated(hashes, train)
    for source, found in surveys.items():
        trained_on = numpy.isin(found.hashes, hashes[train])
        for split in SPLITS[1:]:
            flags[source][f"leaked_{split}"] = trained_on & (assigned[source] == SPLITS.index(split))
    return flags


def _check_train(train: "SplitWriter") -> None:
    if train.facts["examples"] == 0:
        raise BadData("data.train: nothing is left to train on. Make `dev_fraction` and `test_fraction` smaller, or give more data.")
    if same := train.tally.same():
        raise BadData(
            f"data.label: all {train.facts['examples']} training examples {same}: there is nothing to learn. "
            "Check `label`, `labels` and `where`, and that `limit_train` is not too small."
        )


class SplitWriter:
    """Tokenises and writes one split in batches, and counts along."""

    def __init__(self, path: Path, tokenizer: Any, data: Data, names: list[str], odd: Oddities, background: Executor):
        self.path, self.tokenizer, self.odd, self.background = path, tokenizer, odd, background
        self.pair, self.answers = len(data.text) == 2, len(data.text) == 2 and data.label is None
        self.end = [] if data.end_token is None else [tokenizer.token_to_id(data.end_token)]
        self.beside = path.with_name(f".{path.name}.new")
        kind, self.no_label = LABELS[data.label_kind]
        fields = [("id", pyarrow.int64()), ("input_ids", pyarrow.list_(pyarrow.int32()))]
        # a reader of some rows cannot tell from them how many classes there are
        fields += [pyarrow.field("label", kind, metadata={"classes": str(len(names))})]
        fields += [("text", pyarrow.string()), ("line", pyarrow.int64())]
        if self.pair:
            fields += [("text_pair", pyarrow.string()), ("token_type_ids", pyarrow.list_(pyarrow.int8()))]
        self.schema = pyarrow.schema(fields)
        self.file = pyarrow.ipc.new_file(str(self.beside), self.schema)
        self.waiting: list[tuple[Example, Any]] = []
        self.characters = 0
        self.tokenising: tuple[list[tuple[Example, Any]], Future] | None = None
        self.tally = TALLIES[data.label_kind](names)
        self.facts = Counter(examples=0, tokens=0, longest=0, truncated=0)

    def add(self, example: Example, label: Any) -> None:
        self.waiting.append((example, label))
        self.characters += sum(map(len, example.texts))
        if len(self.waiting) >= BATCH_ROWS or self.characters >= BATCH_CHARACTERS:
            self._flush()

    def close(self) -> dict[str, Any]:
        self._flush()
        self._flush()  # the last batch was only being tokenised
        self.file.close()
        os.replace(self.beside, self.path)
        return dict(self.facts) | self.tally.facts()

    def _flush(self) -> None:
        """Have the waiting batch tokenised, and write the one before meanwhile."""
        before, texts = self.tokenising, [example.texts if self.pair else example.texts[0] for example, _ in self.waiting]
        self.tokenising = (self.waiting, self.background.submit(self.tokenizer.encode_batch_fast, texts)) if texts else None
        self.waiting, self.characters = [], 0
        if before:
            rows, encoded = before
            self._write(rows, encoded.result())

    def _write(self, rows: list[tuple[Example, Any]], encoded: list[Any]) -> None:
        start = self.facts["examples"]
        labels = [label for _, label in rows]
        columns = {
            "id": range(start, start + len(encoded)),
            "input_ids": [encoding.ids + self.end for encoding in encoded],
            "label": labels,
            "text": [example.texts[0] for example, _ in rows],
            "line": [example.line for example, _ in rows],
        }
        if self.pair:
            columns["text_pair"] = [example.texts[1] for example, _ in rows]
            columns["token_type_ids"] = [self._types(encoding) for encoding in encoded]
        self.file.write_batch(pyarrow.record_batch([pyarrow.array(columns[f.name], f.type) for f in self.schema], schema=self.schema))
        self._count(rows, encoded)

    def _types(self, encoding: Any) -> list[int]:
        if not self.answers:
            return encoding.type_ids
        # from the first token of the answer on; not every tokenizer's own types tell prompt and answer apart
        return list(itertools.accumulate((text or 0 for text in encoding.sequence_ids), max)) + [1] * len(self.end)

    def _count(self, rows: list[tuple[Example, Any]], encoded: list[Any]) -> None:
        lengths = [len(encoding.ids) + len(self.end) for encoding in encoded]
        self.facts["examples"] += len(lengths)
        self.facts["tokens"] += sum(lengths)
        self.facts["longest"] = max(self.facts["longest"], *lengths)
        for (example, label), encoding in zip(rows, encoded, strict=True):
            if encoding.overflowing:
                self.facts["truncated"] += 1
                self.odd.add("truncated", example.place, example.texts[0])
            if label != self.no_label:
                self.tally.add(label)
