"""Joins the parts of all files to prepared data: their examples follow one another in the order of the files, and nothing is copied."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.prepared_files import open_table
from snaketrain.data.preparing import TrainedOn, check_train, report_untrained
from snaketrain.data.splitting import SPLITS, among, read_keys, repeated
from snaketrain.data.surveying import Surveyor, nothing_usable, refuse_unusable_labels
from snaketrain.labels import label_kind
from snaketrain.labels.base import Tally
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.strict_json import JsonObject

COUNTS = ("examples", "tokens", "longest", "truncated", "target_tokens", "longest_target")  # of a split; the longest are no sums
LARGEST = ("longest", "longest_target")


def join_parts(data: Data, parts: list[Manifest]) -> tuple[JsonObject, DataIssues]:
    """The facts about the splits, and the data issues; `parts` in the order of their files."""
    rows, issues = _rows(data, parts)
    names: list[str] = parts[0].facts["label_names"]  # the same for all
    tallies = {split: _tally(data, parts, split, names) for split in SPLITS}
    splits = {split: _facts(_of(parts, split), split, tally, data.label is not None) for split, tally in tallies.items()}
    check_train(splits["train"]["examples"], tallies["train"])
    for split in ("dev", "test"):
        check_share(data, split, splits[split]["examples"])
    _report_repetitions(data, parts, issues)
    counts = {split: facts.get("label_counts", []) for split, facts in splits.items()}
    nothing = np.array([], np.int64)
    report_untrained(counts, TrainedOn(names, counts["train"], nothing, nothing), issues)
    return {"label_names": names, "label_kind": data.label_kind, "splits": splits, "rows": rows}, issues


def check_share(data: Data, split: str, examples: int) -> None:
    """Few texts may leave a split empty, and a training without a development set would select nothing at its end."""
    if not examples and getattr(data, split) is None and (fraction := getattr(data, f"{split}_fraction")):
        raise BadData(
            f"data.{split}: no text was drawn for it, since there are few different ones. Make `{split}_fraction` larger than {fraction}, name files "
            f"as data.{split}, or remove `shards`, without which each split has an example at least."
        )


def _of(parts: list[Manifest], split: str) -> list[Manifest]:
    return [part for part in parts if split in part.facts["splits"]]


def _rows(data: Data, parts: list[Manifest]) -> tuple[dict[str, int], DataIssues]:
    """The rows of each source, and the data issues of all files."""
    rows: dict[str, int] = {}
    issues = DataIssues()
    for source in dict.fromkeys(part.facts["source"] for part in parts):
        of_source = [part.facts for part in parts if part.facts["source"] == source]
        surveyor = Surveyor(source, data, None)
        for facts in of_source:
            surveyor.issues.merge(DataIssues.of(facts["odd"]))
            for label, (count, location) in facts["labels"].items():
                surveyor.label_counts[label] += count
                surveyor.first_locations.setdefault(label, location)
        rows[source] = sum(facts["rows"] for facts in of_source)
        if not any(facts["labelled"] for facts in of_source):
            raise nothing_usable(source, rows[source], surveyor.issues)
        refuse_unusable_labels(source, data, rows[source], surveyor.issues)
        if source == "train" and data.labels is None:
            surveyor.report_single_rows()
        issues.merge(surveyor.issues)
    return rows, issues


def _tally(data: Data, parts: list[Manifest], split: str, names: list[str]) -> Tally[Any]:
    tally = label_kind(data.label_kind).tally(names)
    for part in _of(parts, split):
        tally.merge(part.facts["tallies"][split])
    return tally


def _facts(parts: list[Manifest], split: str, tally: Tally[Any], labelled: bool) -> JsonObject:
    counts: JsonObject = {"examples": 0, "tokens": 0, "longest": 0, "truncated": 0}
    for facts in (part.facts["splits"][split] for part in parts):
        for name in COUNTS:
            if name in facts:
                before = counts.get(name, 0)
                counts[name] = max(before, facts[name]) if name in LARGEST else before + facts[name]
    return {"labelled": labelled and counts["examples"] > 0} | counts | tally.facts()


def _report_repetitions(data: Data, parts: list[Manifest], issues: DataIssues) -> None:
    """Report examples that repeat within train, that leak from train into files of their own, or that dev's own files share with test.

    Equal texts of one source stay together.
    """
    train = read_keys((part.folder for part in _of(parts, "train")), "train")
    count, first = repeated(train, DataIssues.SHOWN)
    issues.add_all("duplicate", count, list(_cases(parts, "train", first)))
    pairs = [(f"leaked_{split}", split, "train") for split in data.sources if split != "train"]
    for kind, split, other in [*pairs, *([("test_in_dev", "test", "dev")] if data.dev else [])]:
        of_split, of_other = (read_keys((part.folder for part in _of(parts, each)), each) for each in (split, other))
        count, first = among(of_split, of_other, DataIssues.SHOWN)
        issues.add_all(kind, count, list(_cases(parts, split, first)))


def _cases(parts: list[Manifest], split: str, positions: Iterable[int]) -> Iterable[tuple[str, str]]:
    """The location and the text of each of these examples of a split."""
    parts = _of(parts, split)
    ends = np.cumsum([part.facts["splits"][split]["examples"] for part in parts])
    for position in positions:
        number = int(np.searchsorted(ends, position, side="right"))
        part = parts[number]
        row = position - (int(ends[number - 1]) if number else 0)
        table = open_table([part.file(f"{split}.arrow")])
        yield f"{part.facts['file']}, line {table['line'][row].as_py()}", table["text"][row].as_py()
