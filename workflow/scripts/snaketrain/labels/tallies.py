"""What the labels of one split amount to: facts for the report, for baselines, and to notice that there is nothing to learn."""

import math
from collections import Counter
from typing import Any

MOST_SETS = 100_000  # different sets of classes that are counted; memory stays small whatever the data


class OneClassTally:
    """How many examples are of each class."""

    def __init__(self, names: list[str]):
        self.names = names
        self.examples = 0
        self.counts = [0] * len(names)

    def add(self, label: int) -> None:
        self.examples += 1
        self.counts[label] += 1

    def facts(self) -> dict[str, Any]:
        return {"label_counts": self.counts}

    def same(self) -> str | None:
        """What the examples have in common, where all have the same label."""
        present = [name for name, count in zip(self.names, self.counts, strict=True) if count]
        return f"are of one class, {present[0]!r}" if len(present) == 1 else None


class SeveralClassesTally(OneClassTally):
    """How many examples are of each class, and which classes most often come together."""

    def __init__(self, names: list[str]):
        super().__init__(names)
        self.sets: Counter[tuple[int, ...]] = Counter()

    def add(self, label: list[int]) -> None:
        self.examples += 1
        for number in label:
            self.counts[number] += 1
        key = tuple(label)
        if key in self.sets or len(self.sets) < MOST_SETS:
            self.sets[key] += 1

    def facts(self) -> dict[str, Any]:
        # of equally frequent ones the first in order, so that the order of the rows does not matter
        common = min(self.sets, key=lambda key: (-self.sets[key], key), default=())
        return super().facts() | {"without_class": self.sets[()], "most_common_labels": [self.names[number] for number in common]}

    def same(self) -> str | None:
        if len(self.sets) != 1:
            return None
        return f"have the same classes, {', '.join(self.facts()['most_common_labels']) or 'none'}"


class NumberTally:
    """Mean, spread and range."""

    def __init__(self, names: list[str]):
        self.examples = 0
        self.mean = self.squares = 0.0
        self.least, self.most = math.inf, -math.inf

    def add(self, label: float) -> None:
        # Welford's way: no large sums that lose small differences
        self.examples += 1
        distance = label - self.mean
        self.mean += distance / self.examples
        self.squares += distance * (label - self.mean)
        self.least, self.most = min(self.least, label), max(self.most, label)

    def facts(self) -> dict[str, Any]:
        if not self.examples:
            return {}
        deviation = math.sqrt(self.squares / self.examples)
        return {"label_mean": self.mean, "label_deviation": deviation, "label_least": self.least, "label_most": self.most}

    def same(self) -> str | None:
        return f"have the number {self.mean:g}" if self.examples and self.least == self.most else None


TALLIES = {"class": OneClassTally, "classes": SeveralClassesTally, "number": NumberTally}
