"""From raw rows to tokenised splits on disk, in little memory whatever the size of the data.

Rows are read once: surveyed, tokenised and put aside. When all of them are known, each split takes its own.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pyarrow

from snaketrain.config.schema import Data
from snaketrain.data.sources.data_issues import BadData, DataIssues
from snaketrain.data.text.split_files import SplitWriter
from snaketrain.data.text.splitting import SPLITS, among, assign, repeated
from snaketrain.data.text.spooling import Spool, cases, in_batches, joined, progress, row_schema
from snaketrain.data.text.surveying import Survey, Surveyor, classes
from snaketrain.data.tokenization.opening import open_tokenizer
from snaketrain.data.tokenization.tokenizer import Tokenizer, TokensDiffer, token_schema


class Part(NamedTuple):
    """What a split takes of its source."""

    source: str
    survey: Survey
    spool: Spool
    rows: numpy.ndarray  # their numbers, going up

    @property
    def hashes(self) -> numpy.ndarray:
        return self.survey.hashes[self.rows]


def prepare(
    data: Data, files: dict[str, list[Path]], root: Path, tokenizer: Path, output: Path, cores: int = 1
) -> tuple[dict[str, Any], DataIssues]:
    """Write `train.arrow`, `dev.arrow` and `test.arrow`; the facts about them, and what was odd."""
    try:
        with open_tokenizer(tokenizer, data, cores) as fast:
            return _write(data, files, root, fast, output)
    except TokensDiffer as difference:
        print(f"{difference}. Encoding all texts again as a whole, which is slower but correct.", file=sys.stderr, flush=True)
    with open_tokenizer(tokenizer, data, cores, plain=True) as plain:
        return _write(data, files, root, plain, output)


def _write(data: Data, files: dict[str, list[Path]], root: Path, tokenizer: Tokenizer, output: Path) -> tuple[dict[str, Any], DataIssues]:
    odd = DataIssues()
    with ExitStack() as opened:
        spools = {source: Spool(opened.enter_context(tempfile.TemporaryFile(dir=output))) for source in SPLITS if files.get(source)}
        surveys = _surveys(data, files, root, spools, tokenizer, odd)
        parts = _parts(data, surveys, spools)
        _tell_repetitions(parts, odd)
        names, class_of = classes(data, surveys["train"])
        writers = {}
        for split, part in parts.items():
            batches = joined(part.spool.selected(part.rows))
            if _limited(part.source, data):
                batches = tokenizer.encode(batches)
            writers[split] = SplitWriter(data, names, class_of, data.label is not None and part.survey.labelled)
            writers[split].write(progress(batches, f"write {split}", len(part.rows)), output / f"{split}.arrow", odd)
    _check_train(writers["train"])
    _tell_untrained(names, writers, odd)
    splits = {split: writer.all_facts() for split, writer in writers.items()}
    rows = {source: found.rows for source, found in surveys.items()}
    return {"label_names": names, "label_kind": data.label_kind, "splits": splits, "rows": rows}, odd


def _surveys(
    data: Data, files: dict[str, list[Path]], root: Path, spools: dict[str, Spool], tokenizer: Tokenizer, odd: DataIssues
) -> dict[str, Survey]:
    """What is known of the rows of each source, which are in its spool then."""
    surveys: dict[str, Survey] = {}
    known = set(data.labels) if data.labels is not None else None
    for source, spool in spools.items():
        surveyor, schema = Surveyor(source, data, known), row_schema(data)
        batches = in_batches(surveyor.examples(files[source], root), schema)
        if _limited(source, data):
            spool.fill(progress(batches, f"read {source}"), schema)
        else:
            spool.fill(progress(tokenizer.encode(batches), f"read and tokenise {source}"), pyarrow.schema([*schema, *token_schema(data)]))
        surveys[source] = surveyor.survey(odd)
        if source == "dev" and data.label and not surveys[source].labelled:
            raise BadData(f"data.dev: no row has a label in column {data.label!r}, and the best checkpoint is chosen by them.")
        known = set(classes(data, surveys["train"])[1])
    return surveys


def _limited(source: str, data: Data) -> bool:
    """Whether rows may be left out on purpose: these need no tokens, so that tokenising waits for the choice."""
    splits = {source, *(split for split in SPLITS if source == "train" and getattr(data, split) is None)}
    return any(getattr(data, f"limit_{split}") is not None for split in splits)


def _parts(data: Data, surveys: dict[str, Survey], spools: dict[str, Spool]) -> dict[str, Part]:
    assigned = {source: assign(source, found.usable, data) for source, found in surveys.items()}
    sources = {split: split if split in surveys else "train" for split in SPLITS}
    return {
        split: Part(source, surveys[source], spools[source], numpy.flatnonzero(assigned[source] == SPLITS.index(split)))
        for split, source in sources.items()
    }


def _tell_repetitions(parts: dict[str, Part], odd: DataIssues) -> None:
    """Which examples are repetitions within train, or leak from train into another split."""
    trained_on = parts["train"].hashes
    for split, part in parts.items():
        if split == "train":
            oddity, found = "duplicate", repeated(trained_on)
        else:
            oddity, found = f"leaked_{split}", among(part.hashes, trained_on)
        rows = part.rows[found]
        first = part.spool.selected(rows[: DataIssues.EXAMPLES])
        odd.add_all(oddity, len(rows), [case for batch in first for case in cases(batch)])


def _tell_untrained(names: list[str], writers: dict[str, SplitWriter], odd: DataIssues) -> None:
    """Examples of classes that are known, but of which chance, a limit or the list of labels left none to train on."""
    trained_on = writers["train"].all_facts().get("label_counts", [])
    for split in ("dev", "test"):
        counts = writers[split].all_facts().get("label_counts", [])
        for name, count, trained in zip(names, counts, trained_on, strict=False):
            if not trained:
                odd.add_all("untrained_class", count, [(split, name)][:count])


def _check_train(train: SplitWriter) -> None:
    if train.facts["examples"] == 0:
        raise BadData("data.train: nothing is left to train on. Make `dev_fraction` and `test_fraction` smaller, or give more data.")
    if same := train.tally.same():
        raise BadData(
            f"data.label: all {train.facts['examples']} training examples {same}: there is nothing to learn. "
            "Check `label`, `labels` and `where`, and that `limit_train` is not too small."
        )
