"""The section `data`."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, field_validator

from snaketrain.config.schema.base import Fraction, Name, OneOrMore, Positive, Section, Seed, is_null
from snaketrain.config.schema.model import Examples, Source
from snaketrain.config.schema.of_extras import constants, hooks
from snaketrain.labels import label_kind, label_kinds
from snaketrain.labels.base import as_text
from snaketrain.runtime.strict_json import Json

if TYPE_CHECKING:
    LabelKindName = str
    Format = str
else:
    LabelKindName = Literal[tuple(label_kinds())]
    Format = Literal["auto", "csv", "tsv", "jsonl", "parquet", "text", *constants("file_format", "NAME")]

TEST_SET = "data.test"  # the place of the test set, for messages
SLICE = "slice:"  # begins the names of `Data.slice_columns`
FOR_FILES = (
    "format",
    "text_unit",
    "encoding",
    "columns",
    "text",
    "labels",
    "slices",
    "label_separator",
    "where",
    "tokenizer",
    "max_length",
    "end_token",
)


def in_order(value: dict[str, str]) -> dict[str, str]:
    return {column: as_text(cell) for column, cell in sorted(value.items())}


def as_in_files(value: dict[str, str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for label, name in value.items():
        if not name.strip():
            raise ValueError(f"the class of {label!r} has an empty name: give it one")
        if named.setdefault(as_text(label), name) != name:
            raise ValueError(f"{label!r} and another way to write it have different names: they are one label, keep one of them")
    return named


CellByColumn = Annotated[dict[str, str], AfterValidator(in_order)]


def in_pairs(value: dict[str, str]) -> dict[str, str] | list[tuple[str, str]]:
    """As JSON, whose keys have no order where it is compared: that of the labels numbers the classes."""
    return value if list(value) == sorted(value) else list(value.items())


def from_pairs(value: Json) -> Json:
    """Of texts alone, as `in_pairs` writes them."""
    are_pairs = (
        isinstance(value, list) and value and all(isinstance(pair, list | tuple) and [*map(type, pair)] == [str, str] for pair in value)
    )
    return dict(value) if are_pairs else value


NameByLabel = Annotated[
    dict[str, str], AfterValidator(as_in_files), BeforeValidator(from_pairs), PlainSerializer(in_pairs, when_used="json-unless-none")
]


class Data(Section):
    """Raw text or a dataset class, and how it becomes examples. Changing it prepares the data again, and reruns all later stages.

    A `test` set beside `train` is prepared on its own, so changing `test` or `limit_test` then trains nothing.
    """

    name: Name = Field("data", description="the folder of the prepared data is named after it, followed by a digest of this section")
    train: Examples | None = Field(None, description="the training examples; null: nothing is trained, `train.steps: 0`")
    dev: Examples | None = Field(None, description="the development examples; null: split off from `train` by `dev_fraction`")
    test: Examples | None = Field(
        None,
        description="the test examples, with or without labels; null: split off from `train` by `test_fraction`, which may be 0: no test",
    )
    format: Format = Field("auto", description="`auto` goes by the file's ending; `text` is plain text")
    text_unit: Literal["line", "paragraph", "file"] = Field(
        "line",
        description="what one example is in plain text files: a line, a paragraph (up to an empty line) or the whole file; the last two keep their line breaks",
    )
    encoding: str = Field("utf-8", description="of the text files")
    columns: list[str] | None = Field(None, description="column names, for files without a header line, such as CSV and TSV")
    text: Annotated[list[str], OneOrMore] = Field(
        ["text"], description="the column of the text; two of them for pairs of sentences", min_length=1, max_length=2
    )
    messages: str | None = Field(
        None,
        exclude_if=is_null,
        description="for chats, instead of `text`: the column with lists of messages, each with a `role` and a `content`; the tokenizer's chat template "
        "turns them into text. Only the assistant's messages are learnt, and `label` is null",
    )
    target: str | None = Field(
        None,
        exclude_if=is_null,
        description="for sequence to sequence: the column of the text to generate, such as a summary of `text`; `label` is then null",
    )
    label: str | None = Field("label", description="the column of the label; null for language modelling and for sequence to sequence")
    label_kind: LabelKindName = Field(
        "class", description="what the label is: one class, any number of classes, a number, or what an extra adds"
    )
    label_separator: str = Field("|", description="separates the names of several classes, in text files", min_length=1)
    labels: NameByLabel | None = Field(
        None, description="class names by the label in the file, such as `{0: negative, 1: positive}`; null: the labels found, sorted"
    )
    slices: list[str] = Field(
        [],
        exclude_if=lambda value: value == [],
        description="columns by whose values the comparison shows the metric of the test set, such as `[source, year]`; no model sees them",
    )
    where: CellByColumn = Field({}, description="keep only rows whose columns have these values")
    dev_fraction: Fraction = Field(0.1, description="share of `train` split off for development if `dev` is not given")
    test_fraction: Fraction = Field(0.1, description="share of `train` split off for the test if `test` is not given")
    split_seed: Seed = Field(42, description="seed of that split")
    limit_train: Positive | None = Field(None, description="use only this many training examples, drawn by `split_seed`")
    limit_dev: Positive | None = Field(None, description="the same for the development examples")
    limit_test: Positive | None = Field(None, description="the same for the test examples")
    tokenizer: Source | None = Field(None, description="a folder with `tokenizer.json`; needed for text, not for a dataset class")
    max_length: Positive | None = Field(
        128,
        description="longest example in tokens; longer ones are truncated and counted; null (only where `label` is null): nothing is truncated",
    )
    max_target_length: Positive | None = Field(128, exclude_if=lambda value: value == 128, description="the same for `target`")
    end_token: str | None = Field(
        None,
        description="if `label` is null: a token of the tokenizer's vocabulary that is appended to each text, or to each `target`, such as "
        "`<|endoftext|>`; with `messages`, the token with which the template ends an answer, such as `<|im_end|>`",
    )

    fields: list[str] = Field(
        ["inputs", "target"], description="names of the elements of an item, in order, if a dataset class returns tuples", min_length=1
    )

    @property
    def by_class(self) -> bool:
        """Whether the examples come from a dataset class."""
        return any(source.use is not None for source in self.sources.values())

    @property
    def sources(self) -> dict[str, Examples]:
        """Those that are given, by split."""
        return {split: source for split in ("train", "dev", "test") if (source := getattr(self, split))} | self.train_sets_of_extras

    @property
    def train_sets_of_extras(self) -> dict[str, Examples]:
        """Training examples beside `train`, by their settings, such as `train_sets.code`: each set is a split of its own."""
        return {setting: source for train_sets in hooks("train_sets", "train_sets") for setting, source in train_sets(self).items()}

    @property
    def own_test_set(self) -> "Data | None":
        """How the test set is read, if it has files of its own: it is prepared alone, so that another one makes no training stale."""
        return self.of_set(self.test, self.limit_test) if self.train and self.test else None

    @property
    def for_training(self) -> "Data":
        """What is prepared for the training: everything but a separate test set."""
        without_test = {"test": None, "test_fraction": 0.0, "limit_test": None}
        return self.model_copy(update=without_test) if self.own_test_set else self

    @property
    def finds_classes(self) -> bool:
        """Whether the classes are those that occur in the training data, rather than listed ones."""
        return self.label is not None and self.labels is None and label_kind(self.label_kind).has_classes

    def of_set(self, examples: Examples, limit: int | None, **differences: object) -> "Data":
        """How a set is read that is prepared on its own: as a single split, `test`, with the settings of the training data except for `differences`."""
        nothing_else: dict[str, object] = dict.fromkeys(("train", "dev", "limit_train", "limit_dev"))
        nothing_else |= {"dev_fraction": 0.0, "test_fraction": 0.0}
        nothing_else |= {name: type(self).model_fields[name].default for name in self.of_extras}
        return self.model_copy(update={**nothing_else, "test": examples, "limit_test": limit, **differences})

    @property
    def pair(self) -> bool:
        """Whether two texts are joined in one sequence."""
        return len(self.text) == 2

    @property
    def text_columns(self) -> dict[str, str]:
        """The columns of the raw data that hold text, by their names in the prepared data."""
        if self.messages:
            return {"text": self.messages}
        columns = dict(zip(("text", "text_pair"), self.text, strict=False))
        return columns | ({"target": self.target} if self.target else {})

    @property
    def has_token_types(self) -> bool:
        """Whether the tokens of an example are of two types, such as those of a prompt and of its answer."""
        return self.pair or self.messages is not None

    def setting_of(self, name: str) -> str:
        """The setting that names the column of a text, by its name in the prepared data."""
        return "target" if name == "target" else "messages" if self.messages else "text"

    @property
    def slice_columns(self) -> list[str]:
        """Their names in the prepared data and among the predictions."""
        return [f"{SLICE}{name}" for name in self.slices]

    @field_validator("text", "columns", "fields", "slices")
    @classmethod
    def _each_once(cls, value: list[str] | None) -> list[str] | None:
        if twice := [name for name, count in Counter(value or ()).items() if count > 1]:
            raise ValueError(f"names {twice[0]!r} more than once: every column needs a name of its own")
        return value

    def contradictions(self) -> Iterator[str]:
        if self.tokenizer is None and not self.by_class:
            yield "`tokenizer` is missing, and text needs one: name a folder with `tokenizer.json`"
        if self.columns == []:
            yield "`columns` is empty: name each column of the file, or remove it where the file has a header line"
        yield from self._unread_settings()
        yield from self._label_problems()
        yield from self._target_problems()
        yield from self._message_problems()
        yield from self._split_problems()
        yield from self._language_modelling_problems()

    def _unread_settings(self) -> Iterator[str]:
        fields = type(self).model_fields
        changed = {name for name in (*FOR_FILES, "fields") if getattr(self, name) != fields[name].default}
        if self.by_class and (given := [name for name in FOR_FILES if name in changed]):
            yield f"`{given[0]}` is for files, but the examples come from a dataset class: remove it; what the class needs goes into its `arguments`"
        if not self.by_class and "fields" in changed:
            yield "`fields` names the elements of a dataset class's items, but the examples come from files: remove it"
        if self.label_separator != fields["label_separator"].default and self.label_kind != "classes":
            yield f"`label_separator` is for `label_kind: classes`, but `label_kind` is {self.label_kind}: remove it"
        if self.columns and self.format in ("jsonl", "parquet", "text"):
            yield f"`columns` is for CSV and TSV, but `format` is {self.format}: remove it"

    def _label_problems(self) -> Iterator[str]:
        if self.label is None and self.label_kind != "class":
            yield f"`label_kind` is {self.label_kind}, but `label` is null: name a column, or remove `label_kind`"
        if self.labels is not None and not label_kind(self.label_kind).has_classes:
            yield f"`labels` names classes, but `label_kind` is {self.label_kind}: remove one of them"
        if self.labels is not None and self.label is None:
            yield "`labels` names classes, but `label` is null: name a column, or remove `labels`"
        if self.labels is not None and len(set(self.labels.values())) < min(2, len(self.labels)):
            yield "`labels` has one name for all labels: give each class a name of its own"
        if self.label is not None and self.label in self.text and not self.by_class:
            yield f"`text` and `label` name the same column ({self.label}): the text would contain the answer; name two columns"
        if self.text_unit != "line" and self.format not in ("auto", "text"):
            yield f"`text_unit` is for plain text, but `format` is {self.format}: remove one of them"

    def _target_problems(self) -> Iterator[str]:
        if self.target is None:
            if self.max_target_length != 128:
                yield "`max_target_length` has no effect without `target`: name the column of the text to generate, or remove it"
            return
        if self.by_class:
            yield "`target` names a column, but the examples come from a dataset class: remove one of them"
        if self.label is not None:
            yield f"`target` is for sequence to sequence, but `label` names a column ({self.label}): set `label: null`, or remove `target`"
        if self.pair:
            yield "`target` is generated from one text, but `text` names two columns: name one"
        if self.target in self.text:
            yield f"`text` and `target` name the same column ({self.target}): the source would contain the answer; name two columns"

    def _message_problems(self) -> Iterator[str]:
        if self.messages is None:
            return
        if self.text != ["text"]:
            yield f"`messages` ({self.messages}) and `text` ({', '.join(self.text)}) both name the training text: keep one of them"
        if self.target is not None:
            yield "`messages` contains the answers, so `target` has no effect: remove one of them"
        if self.by_class:
            yield "`messages` names a column, but the examples come from a dataset class: remove one of them"
        if self.label is not None:
            yield f"`messages` is for language models, but `label` names a column ({self.label}): set `label: null`, or remove `messages`"
        if self.format not in ("auto", "jsonl", "parquet"):
            yield f"`messages` are lists, which only JSON and Parquet files can hold, but `format` is {self.format}: convert the file"

    def _split_problems(self) -> Iterator[str]:
        kinds = {split: "files" if source.use is None else "a dataset class" for split, source in self.sources.items()}
        if others := [split for split, kind in kinds.items() if kind != next(iter(kinds.values()))]:
            first = next(iter(kinds))
            yield f"`{first}` is {kinds[first]}, but `{others[0]}` is {kinds[others[0]]}: use the same kind for both"
        if (
            self.train is None
            and self.label is not None
            and self.labels is None
            and not self.by_class
            and label_kind(self.label_kind).has_classes
        ):
            yield "`labels` is missing: without `train` it must list the classes of the model in their order, such as {0: negative, 1: positive}"
        if (0 if self.dev else self.dev_fraction) + (0 if self.test else self.test_fraction) >= 1:
            yield "`dev_fraction` and `test_fraction` together leave nothing to train on"

    def _language_modelling_problems(self) -> Iterator[str]:
        if self.label is None:
            return
        if self.end_token is not None:
            yield f"`end_token` is for language modelling, but `label` names a column ({self.label}): remove one of them"
        if self.max_length is None:
            yield "`max_length` is null, which is for language modelling, where `label` is null: give a number of tokens"


def stream_data_problems(data: Data) -> Iterator[str]:
    """Settings that contradict a stream: a dataset class without a length and without indices."""
    use = data.train.use if data.train else None
    if data.dev is None:
        yield f"data.dev: is missing, and nothing can be split off from data.train, since {use} is a stream. Name a dataset class with a length."
    if data.test is None and data.test_fraction:
        yield (
            f"data.test: is missing, and nothing can be split off from data.train, since {use} is a stream. Name a dataset class with a length, "
            "or set data.test_fraction to 0."
        )
    if data.limit_train is not None:
        yield f"data.limit_train: has no meaning for {use}, which is a stream. Remove it: train.steps limits what is read."
