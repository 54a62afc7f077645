"""Turns raw rows into tokenised splits on disk, with little memory for data of any size.

Rows are read once: surveyed, tokenised and spooled. Once all are known, each split selects its own.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy
import pyarrow

from snaketrain.config.schema import Data
from snaketrain.config.schema.data import stream_data_problems
from snaketrain.config.schema.of_extras import hooks
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.loading import open_table, split_files
from snaketrain.data.reading import check_columns, readable
from snaketrain.data.reading import rows as read
from snaketrain.data.split_files import SplitWriter, Spool, cases, full_batches, in_batches, progress, row_schema
from snaketrain.data.splitting import SPLITS, Keys, among, assign, repeated, splits_of
from snaketrain.data.surveying import Survey, Surveyor, check_train, classes, text_hash
from snaketrain.data.tokenizer import Tokenizer, token_schema
from snaketrain.data.tokenizer_files import with_tokenizer
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from snaketrain.data.loading.streams import IterableDataset

Case: TypeAlias = tuple[str, str]  # a location and an excerpt
DUPLICATE, TEST_IN_DEV = ("duplicate", "train", None), ("test_in_dev", "test", "dev")

# --- What the training data says about the examples of other sets: their classes, and whether their texts are trained on.


@dataclass(frozen=True)
class TrainedOn:
    label_names: list[str]
    label_counts: list[int]  # of the training examples, by class; empty if nothing is trained
    hashes: numpy.ndarray  # of their texts
    selecting: numpy.ndarray  # the hashes of the texts of the development set

    @classmethod
    def read(cls, prepared: Manifest, data: Data) -> "TrainedOn":
        """From prepared training data, which was read by the settings `data`, or by ones with the same texts."""
        names, trained = prepared.facts["label_names"], trained_splits(prepared.facts["splits"])
        counts = summed(facts.get("label_counts", []) for split, facts in prepared.facts["splits"].items() if split in trained)
        hashes = numpy.concatenate([_hashes(prepared, split, data) for split in trained])
        return cls(names, counts, hashes, _hashes(prepared, "dev", data))

    def classes(self, data: Data) -> dict[str, int]:
        """The number of each label's class, where another set calls it by `data.labels`."""
        labels = data.labels if data.labels is not None else {name: name for name in self.label_names}
        if unknown := next((name for name in labels.values() if name not in self.label_names), None):
            raise BadData(
                f"data.labels: {unknown!r} is not among the classes of the training data: {', '.join(self.label_names)}. Name one of them."
            )
        return {label: self.label_names.index(name) for label, name in labels.items()}


def trained_splits(splits: Iterable[str]) -> list[str]:
    """`train`, and those of `train_sets_of_extras`."""
    return [split for split in splits if split not in SPLITS[1:]]


def summed(counts: Iterable[list[int]]) -> list[int]:
    """Class by class; empty where nothing is trained."""
    return [sum(of_class) for of_class in zip(*filter(any, counts), strict=True)]


def _hashes(prepared: Manifest, split: str, data: Data) -> numpy.ndarray:
    batches = open_table(split_files(prepared, split)).to_batches()
    texts = (zip(*(batch[name].to_pylist() for name in data.text_columns), strict=True) for batch in batches)
    return numpy.fromiter((text_hash(each) for batch in texts for each in batch), numpy.int64)


class SplitPart(NamedTuple):
    """The rows of its source that make up a split."""

    source: str
    survey: Survey
    spool: Spool
    rows: numpy.ndarray  # their numbers, ascending

    @property
    def hashes(self) -> numpy.ndarray:
        return self.survey.hashes[self.rows]

    def cases(self, positions: list[int]) -> Iterator[Case]:
        for batch in self.spool.selected(self.rows[positions]):
            yield from cases(batch)


def prepare(
    data: Data, files: dict[str, list[Path]], root: Path, tokenizer: Path, output: Path, cores: int = 1, trained_on: TrainedOn | None = None
) -> tuple[JsonObject, DataIssues]:
    """Write `train.arrow`, `dev.arrow` and `test.arrow`, or an evaluation set's `test.arrow` alone if it is known what was trained on.

    Returns the facts about them, and the data issues.
    """
    return with_tokenizer(tokenizer, data, cores, lambda opened: _write(data, files, root, opened, output, trained_on))


def _write(
    data: Data, files: dict[str, list[Path]], root: Path, tokenizer: Tokenizer, output: Path, trained_on: TrainedOn | None
) -> tuple[JsonObject, DataIssues]:
    issues = DataIssues()
    written = (*SPLITS, *data.train_sets_of_extras) if trained_on is None else ("test",)
    with ExitStack() as opened:
        spools = {source: Spool(opened.enter_context(tempfile.TemporaryFile(dir=output))) for source in written if files.get(source)}
        surveys = _surveys(data, files, root, spools, tokenizer, issues, trained_on)
        parts = _parts(data, surveys, spools)
        names, class_of = (trained_on.label_names, trained_on.classes(data)) if trained_on else classes(data, _train_labels(surveys))
        writers: dict[str, SplitWriter] = {}
        for split in written:  # also those without an example, which later stages pass over
            part = parts.get(split)
            batches = full_batches(part.spool.selected(part.rows)) if part else iter(())
            if part and _limited(part.source, data):
                batches = tokenizer.encode(batches)
            labelled = part is not None and len(part.rows) > 0 and data.label is not None and part.survey.labelled
            writers[split] = SplitWriter(data, names, class_of, labelled)
            writers[split].write(progress(batches, f"write {split}", len(part.rows) if part else 0), output / f"{split}.arrow", issues)
        if "train" in parts:
            check_train(writers["train"].counts["examples"], writers["train"].tally)
            selecting = parts["dev"].hashes if "dev" in parts else numpy.array([], numpy.int64)
            trained = trained_splits(parts)
            counts = summed(label_counts(writers[split]) for split in trained)
            trained_on = TrainedOn(names, counts, numpy.concatenate([parts[split].hashes for split in trained]), selecting)
        if trained_on:
            hashes = {"trained": trained_on.hashes, "dev": trained_on.selecting} | {split: part.hashes for split, part in parts.items()}
            leaks = [(f"leaked_{split}", split, "trained") for split in parts if split in SPLITS[1:]]
            repetitions = [*([DUPLICATE] if "train" in parts else []), *leaks, *([TEST_IN_DEV] if "test" in parts else [])]
            keys = {split: [Keys.of(of_split.view(numpy.uint64))] for split, of_split in hashes.items()}
            report_repetitions(repetitions, keys.__getitem__, lambda split, rows: parts[split].cases(rows), issues)
            report_untrained({split: label_counts(writer) for split, writer in writers.items()}, trained_on, issues)
    splits = {split: writer.facts() for split, writer in writers.items()}
    rows = {source: found.rows for source, found in surveys.items()}
    return {"label_names": names, "label_kind": data.label_kind, "splits": splits, "rows": rows}, issues


def _surveys(
    data: Data, files: dict[str, list[Path]], root: Path, spools: dict[str, Spool], tokenizer: Tokenizer, issues: DataIssues,
    trained_on: TrainedOn | None,
) -> dict[str, Survey]:  # fmt: skip
    """Read each source into its spool, and survey its rows."""
    surveys: dict[str, Survey] = {}
    known = set(data.labels) if data.labels is not None else None
    if trained_on and trained_on.label_names:
        known = set(trained_on.classes(data))
    for source, spool in spools.items():
        # of all files: a column that one of them lacks would be read as empty, and its rows dropped
        if problems := check_columns(data, source, readable(files[source], data), most=len(files[source])):
            raise BadData("\n".join(problems))
        surveyor, schema = Surveyor(source, data, known, hashed=True), row_schema(data)
        batches = in_batches(surveyor.examples(read(files[source], data, surveyor.issues, root)), schema)
        if _limited(source, data):
            spool.fill(progress(batches, f"read {source}"), schema)
        else:
            spool.fill(progress(tokenizer.encode(batches), f"read and tokenise {source}"), pyarrow.schema([*schema, *token_schema(data)]))
        surveys[source] = surveyor.survey(issues)
        if source == "test" and not trained_on and "train" not in surveys and data.label and not surveys[source].labelled:
            raise BadData(f"data.test: no row has a label in column {data.label!r}, and nothing else is evaluated. Name the right column.")
        known = set(classes(data, _train_labels(surveys))[1])
    return surveys


def _limited(source: str, data: Data) -> bool:
    """Whether a limit may leave rows out: then only the selected rows are tokenised, later."""
    return any(getattr(data, f"limit_{split}", None) is not None for split in splits_of(source, data))


def _parts(data: Data, surveys: dict[str, Survey], spools: dict[str, Spool]) -> dict[str, SplitPart]:
    parts: dict[str, SplitPart] = {}
    for source, survey in surveys.items():
        assigned = assign(source, survey.usable, data) if source in SPLITS else None
        for split in splits_of(source, data):
            chosen = assigned == SPLITS.index(split) if split in SPLITS else survey.usable
            parts[split] = SplitPart(source, survey, spools[source], numpy.flatnonzero(chosen))
    return parts


def _train_labels(surveys: dict[str, Survey]) -> Iterable[str]:
    return surveys["train"].label_counts if "train" in surveys else ()


def report_repetitions(
    wanted: Iterable[tuple[str, str, str | None]], keys: Callable[[str], list[Keys]], cases_of: Callable[[str, list[int]], Iterable[Case]],
    issues: DataIssues,
) -> None:  # fmt: skip
    """`wanted`: each kind of data issue, with the split that has such examples, and the one that has them too; None: the same one before."""
    for kind, split, other in wanted:
        count, first = among(keys(split), keys(other), DataIssues.SHOWN) if other else repeated(keys(split), DataIssues.SHOWN)
        issues.add_all(kind, count, list(cases_of(split, first)))


def report_untrained(counts: dict[str, list[int]], trained_on: TrainedOn, issues: DataIssues) -> None:
    """Report examples of known classes that chance, a limit or the list of labels left out of train; `counts`: of each class, by split."""
    for split, of_split in counts.items():
        for name, count, trained in zip(trained_on.label_names, of_split, trained_on.label_counts, strict=False):
            if split != "train" and not trained:
                issues.add_all("untrained_class", count, [(split, name)][:count])


def label_counts(writer: SplitWriter) -> list[int]:
    return writer.facts().get("label_counts", [])


# --- Which items of a dataset class make up which split: their numbers are written down, the items stay where they are.
#
# A stream has no numbers: it is the training data as it is, and the other splits are given.


def prepare_items(data: Data, output: Path, splits: Sequence[str] = SPLITS, cores: int = 1) -> JsonObject:
    """Write `train.npy`, `dev.npy` and `test.npy`, or only those that are asked for, and what is computed once for their items; returns the facts
    about them."""
    import torch

    from snaketrain.data.loading.streams import is_stream
    from snaketrain.data.loading.training_data import Items, described, make, numbered, own_facts, precomputed

    torch.set_num_threads(cores)  # each item is made on one, whatever this is
    given = {split: source for split in SPLITS if (source := getattr(data, split))}
    made = {split: make(source.use, source.arguments, f"data.{split}") for split, source in given.items()}
    if is_stream(stream := made.get("train")):
        return _prepare_stream(data, stream, output)
    datasets = {split: numbered(dataset, given[split].use, f"data.{split}") for split, dataset in made.items()}
    assigned = {split: assign(split, numpy.ones(len(dataset), bool), data) for split, dataset in datasets.items()}
    main = next(iter(given))  # the training data, or what a model is evaluated on as it is
    own = {split: own_facts(dataset) for split, dataset in datasets.items()}
    for split, dataset in datasets.items():
        if callable(check := getattr(dataset, "check", None)):
            check()
        check_classes(f"data.{split}", own[split]["label_names"], own[main]["label_names"])
    facts: JsonObject = own[main] | {"name": data.name, "label_kind": data.label_kind, "odd": {}}
    facts |= {"fields": data.fields, "datasets": {}, "splits": {}}
    for split in splits:
        origin = split if split in given else main
        use, chosen, texts = (
            given[origin].use,
            numpy.flatnonzero(assigned[origin] == SPLITS.index(split)),
            getattr(datasets[origin], "texts", None),
        )
        if not len(chosen) and split != "test" and "train" in given:
            raise BadData(f"data.{split}: none of the {len(datasets[origin])} items of {use} is left for it. Give more.")
        facts["datasets"][split] = {"use": use, "arguments": given[origin].arguments}
        facts["splits"][split] = {"examples": len(chosen), "labelled": True}
        if len(chosen):  # a look at the first one, so that items that cannot be read show here and not in the training
            first = Items(datasets[origin], use, chosen, data.fields, 0).batch([0])
            computed = precomputed(datasets[origin], use, chosen)
            if computed:  # a field that the items have too is refused there
                Items(datasets[origin], use, chosen, data.fields, 0, computed).batch([0])
            facts["splits"][split] |= {"fields": described(first)} | ({"computed": [*computed]} if computed else {})
            for name, values in computed.items():
                numpy.save(output / f"{split}.{name}.npy", values)
        numpy.save(output / f"{split}.npy", chosen)
        if texts is not None:
            facts["splits"][split]["texts"] = True
            _write_texts(output / f"{split}.arrow", [str(texts[number]) for number in chosen])
    return facts


def files_of_items(facts: JsonObject) -> list[str]:
    """What `prepare_items` has written."""
    splits = {split: found for split, found in facts["splits"].items() if not found.get("stream")}
    return [
        f"{split}.{ending}"
        for split, found in splits.items()
        for ending in ("npy", *(f"{name}.npy" for name in found.get("computed", ())), *(["arrow"] if found.get("texts") else []))
    ]


def check_classes(setting: str, names: list[str], trained: list[str]) -> None:
    """Class 1 of one dataset must not be class 2 of another."""
    if names and trained and names != trained:
        raise BadData(
            f"{setting}: the classes of its dataset are {', '.join(names)}, and those of the training data {', '.join(trained)}. Let both have the "
            "same ones in the same order, also those of which one has no item."
        )


def _write_texts(path: Path, texts: list[str]) -> None:
    """What stands for each item in tables, such as the name of its file."""
    table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string())})
    with pyarrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def _prepare_stream(data: Data, stream: "IterableDataset", output: Path) -> JsonObject:
    """The facts with a stream as the training data; the other splits are prepared as without it."""
    from snaketrain.data.loading.streams import Stream
    from snaketrain.data.loading.training_data import described, own_facts

    source = data.train
    assert source and source.use, "what makes the stream"
    problems = list(stream_data_problems(data))
    if hasattr(stream, "precompute"):
        problems.append(
            f"data.train: {source.use} has `precompute`, but is a stream, whose items have no numbers. Give it a length and indices."
        )
    if problems:
        raise BadData("\n".join(problems))
    facts = prepare_items(data.model_copy(update={"train": None}), output, SPLITS[1:])
    if not facts["splits"]["dev"]["examples"]:
        raise BadData(f"data.dev: {facts['datasets']['dev']['use']} has no items. Give some, since a checkpoint is selected on them.")
    first = Stream(stream, source.use, data.fields, 0, batch_size=1).batch([0])
    fields = described(first)
    facts |= {name: value for name, value in own_facts(stream).items() if value}  # a stream without label names leaves those of the dev set
    facts["datasets"] = {"train": {"use": source.use, "arguments": source.arguments}} | facts["datasets"]
    facts["splits"] = {"train": {"stream": True, "examples": None, "labelled": True, "fields": fields}} | facts["splits"]
    return facts


# --- What extras do where data is prepared: their `preparing.py` has `add_arguments(parser)` and `joined(preparation)`, for what other jobs have prepared.


@dataclass(frozen=True)
class Preparation:
    """A start of `prepare_data`: nothing is read yet, nor verified."""

    arguments: argparse.Namespace  # of the command line, with those that the extras have added
    data: Data
    raw: Manifest
    folder: Path


@dataclass(frozen=True)
class Joined:
    """Splits whose files other jobs have made and whose rows need not be read again."""

    found: JsonObject  # the facts about the splits, as of `prepare`
    issues: DataIssues
    files: dict[str, str]  # digests, by their names in the folder
    clean_up: Callable[[], None]  # once the manifest names the files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for add_arguments_of_extra in hooks("preparing", "add_arguments"):
        add_arguments_of_extra(parser)


def joined(preparation: Preparation) -> Joined | None:
    """None: the rows are to be read here."""
    found = (joined(preparation) for joined in hooks("preparing", "joined"))
    return next(filter(None, found), None)
