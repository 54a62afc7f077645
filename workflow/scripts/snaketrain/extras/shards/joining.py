"""Joins the parts of all files, which shards have prepared: their examples follow one another in the order of the files, and nothing is copied."""

import shutil
from collections.abc import Iterable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.loading import open_table
from snaketrain.data.preparing import DUPLICATE, TEST_IN_DEV, Case, Joined, Preparation, TrainedOn, report_repetitions, report_untrained
from snaketrain.data.splitting import SPLITS
from snaketrain.data.surveying import Surveyor, check_train
from snaketrain.extras.shards.parts import RawFile, raw_files, read_keys
from snaketrain.labels import label_kind
from snaketrain.labels.base import Tally
from snaketrain.runtime.manifests import Manifest, read_manifest, verify
from snaketrain.runtime.strict_json import JsonObject

ARROW = tuple(f"{split}.arrow" for split in SPLITS)


def join(preparation: Preparation, shards: list[Manifest]) -> Joined:
    verify(*shards)
    data, folder = preparation.data, preparation.folder
    parts = parts_of(raw_files(preparation.raw, data), shards, folder)
    found, issues = join_parts(data, parts)
    files = {f"parts/{part.folder.name}/{name}": sha256 for part in parts for name, sha256 in part.files.items() if name in ARROW}
    return Joined(found, issues, files, partial(remove_others, folder, parts, shards))


def parts_of(files: list[RawFile], shards: list[Manifest], output: Path) -> list[Manifest]:
    """In the order of the files, which were dealt to the shards one by one."""
    turns = zip_longest(*(shard.facts["parts"] for shard in shards))
    parts = [read_manifest(output / "parts" / name / "manifest.json") for turn in turns for name in turn if name]
    if [part.inputs for part in parts] != [{file.title: file.sha256} for file in files]:
        raise ValueError(
            f"the {len(shards)} shards do not have each raw file once: a file has changed while they were prepared. Delete {output / 'shards'} and "
            "start snakemake again, which prepares what has changed."
        )
    return parts


def remove_others(output: Path, parts: list[Manifest], shards: list[Manifest]) -> None:
    """Remove the parts of earlier files, settings and code, and the shards of another number of them."""
    kept = {part.folder.name for part in parts} | {shard.folder.name for shard in shards}
    for folder in [*(output / "parts").iterdir(), *(output / "shards").iterdir()]:
        if folder.is_dir() and folder.name not in kept:
            shutil.rmtree(folder)


# --- The facts about the splits, and the data issues.

COUNTS = ("examples", "tokens", "longest", "truncated", "target_tokens", "longest_target")  # of a split; the longest are no sums
LARGEST = ("longest", "longest_target")


def join_parts(data: Data, parts: list[Manifest]) -> tuple[JsonObject, DataIssues]:
    """The facts about the splits, and the data issues; `parts` in the order of their files."""
    rows, issues = _joined_rows(data, parts)
    names: list[str] = parts[0].facts["label_names"]  # the same for all
    tallies = {split: label_kind(data.label_kind).tally(names) for split in SPLITS}
    for part in parts:
        for split, state in part.facts["tallies"].items():
            tallies[split].merge(state)
    splits = {split: _joined_facts(_of(parts, split), split, tally, data.label is not None) for split, tally in tallies.items()}
    check_train(splits["train"]["examples"], tallies["train"])
    for split in ("dev", "test"):
        check_share(data, split, splits[split]["examples"])
    # equal texts of one source stay together: only files of their own can have texts of others
    leaks = [(f"leaked_{split}", split, "train") for split in data.sources if split != "train"]
    repetitions = [DUPLICATE, *leaks, *([TEST_IN_DEV] if data.dev else [])]
    report_repetitions(
        repetitions, lambda split: read_keys((part.folder for part in _of(parts, split)), split), partial(_cases_of_parts, parts), issues
    )
    counts = {split: facts.get("label_counts", []) for split, facts in splits.items()}
    nothing = numpy.array([], numpy.int64)
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


def _joined_rows(data: Data, parts: list[Manifest]) -> tuple[dict[str, int], DataIssues]:
    """The rows of each source, and the data issues of all files."""
    rows: dict[str, int] = {}
    issues = DataIssues()
    for source in dict.fromkeys(part.facts["source"] for part in parts):
        of_source = [part.facts for part in parts if part.facts["source"] == source]
        surveyor = Surveyor(source, data, None)
        for facts in of_source:
            surveyor.issues.merge(DataIssues.of(facts["odd"]))
        rows[source] = sum(facts["rows"] for facts in of_source)
        surveyor.refuse_unusable(rows[source], any(facts["labelled"] for facts in of_source))
        issues.merge(surveyor.issues)
    return rows, issues


def _joined_facts(parts: list[Manifest], split: str, tally: Tally[Any], labelled: bool) -> JsonObject:
    counts: JsonObject = {}
    for name in COUNTS:
        values = [facts[name] for facts in (part.facts["splits"][split] for part in parts) if name in facts]
        if values or name in COUNTS[:4]:
            counts[name] = max(values, default=0) if name in LARGEST else sum(values)
    return {"labelled": labelled and counts["examples"] > 0} | counts | tally.facts()


def _cases_of_parts(parts: list[Manifest], split: str, positions: Iterable[int]) -> Iterable[Case]:
    parts = _of(parts, split)
    ends = numpy.cumsum([part.facts["splits"][split]["examples"] for part in parts])
    for position in positions:
        number = int(numpy.searchsorted(ends, position, side="right"))
        part = parts[number]
        row = position - (int(ends[number - 1]) if number else 0)
        table = open_table([part.file(f"{split}.arrow")])
        yield f"{next(iter(part.inputs))}, line {table['line'][row].as_py()}", table["text"][row].as_py()
