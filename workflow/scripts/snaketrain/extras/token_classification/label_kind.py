"""`data.label_kind: tags`, an IOB2 tag for each word of a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from snaketrain.extras.token_classification import NO_BREAK, NO_LABEL, NO_TOKEN, SPACE
from snaketrain.extras.token_classification.entities import OUTSIDE, READINGS, TAG, all_figures, by_type, counts, figures, types_of
from snaketrain.labels.base import MISSING, UNKNOWN, VALID, Head, LabelKind, Parser, Report, as_text
from snaketrain.labels.classes import ClassTally

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame
    from tokenizers import Tokenizer as LibraryTokenizer
    from torch import Tensor

    from snaketrain.data.tokenizer import BatchTokenizer
    from snaketrain.labels.base import Rows, Sums
    from snaketrain.runtime.strict_json import Json, JsonObject


def parts_of(cell: object) -> list[str]:
    """A list, or the parts of a text between white space; missing: none."""
    if isinstance(cell, list):
        return [part if isinstance(part, str) else as_text(part) for part in cell]
    return as_text(cell).split()


class TagsParser(Parser[tuple[str, ...] | None, list[int]]):
    """A cell has the tags of a sentence, and the cell of its text the words: lists, or texts that white space divides."""

    raw, prepared = "string[]", "int64[]"
    token_lists = ("word_starts",)

    @staticmethod
    def text(cell: object) -> str:
        return SPACE.join(word.replace(SPACE, NO_BREAK) for word in parts_of(cell))

    def parse(self, cell: object) -> tuple[str, ...] | None:
        tags = tuple(map(as_text, parts_of(cell)))
        if not tags and not isinstance(cell, list):
            return None
        for number, (tag, name) in enumerate(zip(tags, self._names(tags), strict=True), 1):
            listed = self.data.labels is None or tag in self.data.labels
            if listed and not TAG.fullmatch(name):
                raise ValueError(f"tag {number}, {name!r}, is neither O nor B-TYPE nor I-TYPE; data.labels can name tags, such as numbers")
        return tags

    def parse_beside(self, cell: object, texts: tuple[str, ...]) -> tuple[str, ...] | None:
        tags, words = self.parse(cell), texts[0].split(SPACE)
        if tags is not None and len(tags) != len(words):
            raise ValueError(f"{len(tags)} tags for {len(words)} words")
        return tags

    def state(self, label: tuple[str, ...] | None, known: set[str] | None) -> int:
        if label is None:
            return MISSING
        return VALID if known is None or known.issuperset(label) else UNKNOWN

    def classes(self, label: tuple[str, ...] | None) -> Iterable[str]:
        return dict.fromkeys(label or ())

    def encode(self, label: tuple[str, ...] | None, class_of: Mapping[str, int]) -> list[int]:
        return [class_of[tag] for tag in label or ()]

    def oddity(self, label: tuple[str, ...] | None, texts: tuple[str, ...]) -> str | None:
        before = OUTSIDE
        for number, (name, word) in enumerate(zip(self._names(label or ()), texts[0].split(SPACE), strict=True), 1):
            if not word:
                return f"tag {number}, {name}, is that of an empty word"
            if name.startswith("I-") and before[2:] != name[2:]:
                return f"tag {number}, {name}, continues no entity, which is not IOB2"
            before = name
        return None

    def tokenizer(self, library: LibraryTokenizer) -> BatchTokenizer:
        from snaketrain.extras.token_classification.tokenizer import WordTokenizer

        return WordTokenizer(library, self.data)

    def _names(self, tags: Sequence[str]) -> list[str]:
        return [(self.data.labels or {}).get(tag, tag) for tag in tags]


class TagsTally(ClassTally[list[int]]):
    """Counts the sentences in which each tag occurs."""

    def add(self, label: list[int]) -> None:
        for number in set(label):
            self.counts[number] += 1

    def same(self) -> str | None:
        present = [name for name, count in zip(self.names, self.counts, strict=True) if count]
        return f"have the tag {present[0]} alone" if len(present) == 1 else None


class TagsHead(Head):
    """Of logits with a row for each word of each sentence."""

    problem_type = "token_classification"
    metrics: Mapping[str, str] = {
        "loss": "min", "f1": "max", "precision": "max", "recall": "max", "macro_f1": "max",
        "strict_f1": "max", "strict_precision": "max", "strict_recall": "max", "strict_macro_f1": "max", "word_accuracy": "max",
    }  # fmt: skip

    def __init__(self, names: Sequence[str] = ()):
        self.names, self.types = names, types_of(names)

    def model_fields(self, label_names: list[str]) -> JsonObject:
        by_number = dict(enumerate(label_names))
        return {"num_labels": len(label_names), "id2label": by_number, "label2id": {name: number for number, name in by_number.items()}}

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum over the words of each sentence."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=NO_LABEL).sum(1)

    def sums(self, predicted: Tensor, labels: Tensor) -> Sums:
        """`predicted`: the classes, or NO_TOKEN."""
        import torch

        true, guessed = self.tags(labels), self.tags(predicted)
        entities, words = counts(true, guessed, self.types), word_counts(true, guessed)
        return {"entities": torch.from_numpy(entities.sum(0)), "words": torch.from_numpy(words.sum(0))}

    def measure(self, sums: Sums) -> dict[str, float]:
        right, words = sums["words"].tolist()
        return all_figures(sums["entities"].cpu().numpy()) | {"word_accuracy": right / words}

    def predict(self, predicted: Tensor) -> dict[str, Tensor]:
        return {"words_without_token": (predicted == NO_TOKEN).sum(1)}

    def tags(self, classes: Tensor) -> list[list[str]]:
        named = {NO_TOKEN: OUTSIDE} | dict(enumerate(self.names))
        return [[named[number] for number in row if number != NO_LABEL] for row in classes.tolist()]


def word_counts(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> np.ndarray:
    """The words of each sentence that are right, and all of them."""
    import numpy as np

    return np.array([(sum(map(str.__eq__, tags, guesses)), len(tags)) for tags, guesses in zip(true, predicted, strict=True)], float)


def split(cells: Iterable[str]) -> list[list[str]]:
    return [cell.split() for cell in cells]


def entity_metric(name: str) -> Callable[[DataFrame], Callable[[np.ndarray], float]]:
    """A metric of the counts of all sentences, each times its weight."""
    reading = int(name.startswith(READINGS[1]))

    def make(table: DataFrame) -> Callable[[np.ndarray], float]:
        true, predicted = split(table["label"]), split(table["predicted"])
        found = counts(true, predicted, types_of(tag for tags in (*true, *predicted) for tag in tags))[:, reading]
        return lambda weights: figures((weights @ found.reshape(len(found), -1)).reshape(found.shape[1:]), READINGS[reading])[name]

    return make


def word_accuracy(table: DataFrame) -> Callable[[np.ndarray], float]:
    right, words = word_counts(split(table["label"]), split(table["predicted"])).T
    return lambda weights: float(weights @ right / (weights @ words))


class TagsReport(Report):
    of_weights: Mapping[str, Callable[[DataFrame], Callable[[np.ndarray], float]]] = {
        "word_accuracy": word_accuracy,
        **{name: entity_metric(name) for name in TagsHead.metrics if name not in ("loss", "word_accuracy")},
    }

    def fits(self, rows: Rows) -> bool:
        return bool(self.names) and "predicted" in rows and rows["predicted"].dtype.kind == "U"

    def labels(self, column: list[Json]) -> np.ndarray:
        import numpy as np

        found = np.empty(len(column), object)
        found[:] = column
        return found

    def known(self, labels: np.ndarray) -> np.ndarray:
        import numpy as np

        return np.array([label is not None for label in labels], bool)

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> JsonObject:
        types, true, keys = types_of(self.names), self._named(labels), ("precision", "recall", "f1", "examples")
        found = counts(true, split(rows["predicted"]), types).sum(0)
        cells = zip(*by_type(found[0]).tolist(), found[0][2].astype(int).tolist(), strict=True)
        classes = {name: dict(zip(keys, row, strict=True)) for name, row in zip(types, cells, strict=True)}
        without = int(rows["words_without_token"].sum())
        return {**all_figures(found), "words": sum(map(len, true)), "words_without_token": without, "classes": classes}

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        import numpy as np

        tags = [tag for tags in self._named(labels) for tag in tags]
        none = dict.fromkeys(all_figures(np.zeros((len(READINGS), 3, 1))), 0.0)
        return {"majority": {"answer": f"always {OUTSIDE}", "word_accuracy": tags.count(OUTSIDE) / len(tags)} | none}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        found = {"label": list(map(SPACE.join, self._named(labels))), "predicted": rows["predicted"].tolist()}
        if self.known(labels).any():
            sizes = zip(found["label"], rows["words_without_token"].tolist(), strict=True)
            found["tokens"] = [str(len(tags.split()) - without) for tags, without in sizes]  # by which means of the loss are weighted
            found["loss"] = ["" if math.isnan(loss) else f"{loss:.9g}" for loss in rows["loss"].tolist()]
        return found

    def _named(self, labels: np.ndarray) -> list[list[str]]:
        return [[self.names[number] for number in label if number is not None] if label is not None else [] for label in labels]


KIND = LabelKind("tags", TagsParser, TagsTally, TagsHead(), TagsReport)
