"""Counts what is odd in the data, and remembers the first few cases of each kind, so that somebody can look at them."""

from collections import Counter

MEANING = {
    "bad_encoding": "lines with bytes that do not fit `data.encoding`; shown as replacement characters",
    "short_row": "rows with fewer fields than the header; the last ones are empty",
    "long_row": "rows with more fields than the header; the surplus is ignored",
    "empty_text": "rows without text; dropped",
    "missing_label": "rows without a label; dropped",
    "unknown_label": "rows whose label is not among the classes; dropped",
    "not_a_number": "rows whose label is not a number; dropped",
    "duplicate": "training examples whose text came before",
    "leaked_dev": "development examples whose text is also trained on",
    "leaked_test": "test examples whose text is also trained on",
    "truncated": "examples cut to `data.max_length` tokens",
}


class Oddities:
    EXAMPLES = 5

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, kind: str, place: str, excerpt: str = "") -> None:
        self.counts[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < self.EXAMPLES:
            shown.append(f"{place}: {excerpt[:80]}" if excerpt else place)

    def add_all(self, kind: str, count: int, first: list[tuple[str, str]]) -> None:
        """So many cases at once; of the first ones place and excerpt."""
        for place, excerpt in first:
            self.add(kind, place, excerpt)
        if count > len(first):
            self.counts[kind] += count - len(first)

    def merge(self, other: "Oddities", without: tuple[str, ...] = ()) -> None:
        for kind in other.counts:
            if kind not in without:
                self.counts[kind] += other.counts[kind]
                self.examples[kind] = (self.examples.get(kind, []) + other.examples[kind])[: self.EXAMPLES]

    def report(self) -> dict[str, dict]:
        return {kind: {"count": self.counts[kind], "what": MEANING[kind], "first": self.examples.get(kind, [])} for kind in MEANING}
