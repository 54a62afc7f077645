"""Data prepared file by file, against the same rows prepared at once and against plain counts."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Data, Examples
from snaketrain.data.cells import BadData
from snaketrain.data.loading import split_files
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.preparing import TrainedOn, prepare
from snaketrain.data.surveying import text_hash
from snaketrain.data.tokenizer_files import copy_tokenizer
from snaketrain.evaluation.scoring import ScoredSet
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.extras.shards.joining import join_parts, parts_of
from snaketrain.extras.shards.parts import RawFile, assign_by_key, prepare_parts, text_key
from snaketrain.orchestration.names import data_name
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.runtime.manifests import Manifest, digest

SPLITS = ("train", "dev", "test")
WORDS = ["film", "plot", "story", "movie", "really", "never"]
DATA = {
    "train": {"path": "*.jsonl"}, "tokenizer": {"path": "x"}, "shards": 2, "max_length": 6, "dev_fraction": 0.2, "test_fraction": 0.1,
    "labels": {10: "10", "no": "no"},
}  # fmt: skip


def rows(start: int, count: int) -> list[dict]:
    """Some texts occur twice, in another case; their labels are those of the file."""
    texts = [f"{WORDS[n % 6]} {WORDS[n // 6 % 6]} {'is' if n % 3 else 'IS'} {n % 90} good" for n in range(start, start + count)]
    return [{"text": text, "label": "no" if n % 2 else 10} for n, text in enumerate(texts)]


class Folder:
    """Raw files, and what is prepared of them."""

    def __init__(self, folder: Path, tokenizer: Path, **changes):
        self.folder, self.data = folder, Data.model_validate(DATA | changes)
        copy_tokenizer(tokenizer, folder / "tokenizer")

    def write(self, name: str, rows: list[dict], source: str = "train") -> None:
        (self.folder / source).mkdir(exist_ok=True)
        (self.folder / source / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def files(self) -> list[RawFile]:
        found = [path for source in ("train", "dev") for path in sorted((self.folder / source).glob("*.jsonl"))]
        return [RawFile(path.parent.name, f"{path.parent.name}/{path.name}", path, digest(path.read_text())) for path in found]

    def parts(self) -> list[Manifest]:
        files = self.files()
        wanted = {self.folder / "parts" / digest(file.title, file.sha256): file for file in files}
        made = prepare_parts(self.data, wanted, self.folder, self.folder / "tokenizer")
        return [made[file.title] for file in files]

    def prepared(self) -> tuple[dict[str, list[dict]], dict, dict]:
        """The rows by split, the facts, and the data issues."""
        parts = self.parts()
        facts, issues = join_parts(self.data, parts)
        names = {f"parts/{part.folder.name}/{name}": "" for part in parts for name in part.files}
        manifest = Manifest("prepare_data", "", {}, {}, names, path=str(self.folder / "manifest.json"))
        opened = {split: TextExamples(split_files(manifest, split), 0) for split in SPLITS}
        rows = {split: examples.table.to_pylist() for split, examples in opened.items()}
        for split, of_split in rows.items():
            table = ScoredSet(split, manifest, split).table(len(of_split))
            assert table == {name: [row[name] for row in of_split] for name in ("text", "label")}
        trained_on = TrainedOn.read(replace(manifest, facts=facts), self.data)
        assert trained_on.hashes.tolist() == [text_hash((row["text"],)) for row in rows["train"]]
        return rows, facts, dict(issues.counts)


@pytest.fixture
def folder(tmp_path, tiny_tokenizer):
    def make(**changes) -> Folder:
        made = Folder(tmp_path, tiny_tokenizer, **changes)
        for number in range(3):
            made.write(f"part-{number}.jsonl", rows(100 * number, 100))
        return made

    return make


def test_parts_hold_what_is_prepared_at_once(folder, tmp_path):
    made = folder()
    splits, facts, issues = made.prepared()
    at_once = tmp_path / "at_once"
    at_once.mkdir()
    whole = made.data.model_copy(update={"shards": None})
    wanted, _ = prepare(whole, {"train": [file.path for file in made.files()]}, tmp_path, tmp_path / "tokenizer", at_once)
    known = {row["text"]: row for split in SPLITS for row in TextExamples(at_once / f"{split}.arrow", 0).table.to_pylist()}
    found = [row for split in SPLITS for row in splits[split]]
    assert len(found) == 300 and facts["rows"] == wanted["rows"] == {"train": 300}
    assert all(row["input_ids"] == known[row["text"]]["input_ids"] and row["label"] == known[row["text"]]["label"] for row in found)
    assert facts["label_names"] == wanted["label_names"] == ["10", "no"] and facts["label_kind"] == wanted["label_kind"]
    for split in SPLITS:
        lengths = [len(row["input_ids"]) for row in splits[split]]
        assert facts["splits"][split] == {
            "labelled": True,
            "examples": len(lengths),
            "tokens": sum(lengths),
            "longest": max(lengths),
            "truncated": len(lengths),
            "label_counts": [sum(row["label"] == number for row in splits[split]) for number in (0, 1)],
        }
        assert set(facts["splits"][split]) == set(wanted["splits"][split])
    normal = Counter(row["text"].lower() for row in splits["train"])
    assert issues["duplicate"] == normal.total() - len(normal) > 0
    assert issues["truncated"] == 300


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"label_kind": "number", "labels": None}, lambda n: {"text": f"film {n}", "label": n / 4 - 1}),
        (
            {"label_kind": "classes", "labels": {name: name for name in "abc"}},
            lambda n: {"text": f"film {n}", "label": ["a", "b", "c"][: n % 4]},
        ),
        ({"label": None, "labels": None, "max_length": None}, lambda n: {"text": f"film {n}"}),
        ({"label": None, "labels": None, "target": "short"}, lambda n: {"text": f"film {n}", "short": "good " * (n % 7 + 1)}),
        (
            {"text": ["text", "more"], "labels": {number: f"c{number}" for number in range(3)}},
            lambda n: {"text": f"film {n}", "more": "good", "label": n % 3},
        ),
    ],
    ids=["number", "classes", "language", "target", "pair"],
)
def test_all_kinds_of_examples_are_those_prepared_at_once(tmp_path, tiny_tokenizer, changes, row):
    made = Folder(tmp_path, tiny_tokenizer, dev_fraction=0, test_fraction=0, **changes)
    for number in range(2):
        made.write(f"{number}.jsonl", [row(n) for n in range(20 * number, 20 * number + 20)])
    facts, issues = join_parts(made.data, parts := made.parts())
    whole = made.data.model_copy(update={"shards": None})
    wanted, counted = prepare(whole, {"train": [file.path for file in made.files()]}, tmp_path, tmp_path / "tokenizer", tmp_path)
    assert facts == wanted and issues.report() == counted.report()
    rows = [
        TextExamples(files, 0).table.drop_columns("id").to_pylist()
        for files in ([p.file("train.arrow") for p in parts], tmp_path / "train.arrow")
    ]
    assert rows[0] == rows[1]


def test_a_split_depends_on_the_text_alone(folder):
    made = folder()
    before = made.prepared()[0]
    shutil.rmtree(made.folder / "parts")
    made.write("a-new.jsonl", rows(1000, 50))
    after = made.prepared()[0]
    for split in SPLITS:
        texts = [row["text"] for row in before[split]]
        assert [row["text"] for row in after[split]][-len(texts) :] == texts, "the new file is the first"
        others = {row["text"].lower() for other in SPLITS if other != split for row in after[other]}
        assert not others & {row["text"].lower() for row in after[split]}, "equal texts stay together"


def test_shares_are_near_the_fractions_and_follow_the_seed():
    keys = np.array([text_key([f"text {n}"]) for n in range(20_000)], np.uint64)

    def assigned(**changes) -> np.ndarray:
        return assign_by_key(keys, "train", Data.model_validate(DATA | changes))

    first = assigned()
    assert np.bincount(first) / len(keys) == pytest.approx([0.7, 0.2, 0.1], abs=0.01)
    assert ((assigned(dev_fraction=0.4) == 2) == (first == 2)).all(), "another dev_fraction leaves the test set alone"
    assert 0.4 < (assigned(split_seed=1) == first).mean() < 0.6
    assert not (assigned(test={"path": "y"}) == 2).any() and (assign_by_key(keys, "dev", Data.model_validate(DATA)) == 1).all()


def test_development_files_of_their_own_are_kept_apart_and_leaks_are_counted(folder):
    made = folder(dev={"path": "dev"}, labels={"no": "n", 10: "t"})
    made.write("own.jsonl", [*rows(0, 50), {"text": "never seen this", "label": "no"}], "dev")
    splits, facts, issues = made.prepared()
    trained = {row["text"].lower() for row in splits["train"]}
    assert len(splits["dev"]) == 51 and facts["rows"] == {"train": 300, "dev": 51} and facts["label_names"] == ["n", "t"]
    assert issues["leaked_dev"] == sum(row["text"].lower() in trained for row in splits["dev"]) > 0
    chosen_by = {row["text"].lower() for row in splits["dev"]}
    assert issues["test_in_dev"] == sum(row["text"].lower() in chosen_by for row in splits["test"]) > 0


def test_shards_that_do_not_have_each_file_once_are_refused(folder, monkeypatch):
    """As where a file came between two jobs, which then deal others."""
    made = folder()
    whole = made.files()
    parts = made.parts()
    names = [part.folder.name for part in parts]

    def gathered(*shards: list[str]) -> list[Manifest]:
        return parts_of(whole, [Manifest("prepare_shard", "", {}, {}, {}, {"parts": list(names)}) for names in shards], made.folder)

    assert len(names) == 3 and gathered(names[0::2], names[1::2]) == gathered(names) == parts
    for wrong in (names[:-1], [*names, names[0]], names[::-1], [*names[:-1], names[0]]):
        with pytest.raises(
            ValueError, match=r"the 1 shards do not have each raw file once: a file has changed .* Delete .*/shards and start"
        ):
            gathered(wrong)
    monkeypatch.setattr(made, "files", lambda: [file._replace(sha256="other") for file in whole])
    with pytest.raises(ValueError, match="do not have each raw file once"):
        parts_of(made.files(), [Manifest("prepare_shard", "", {}, {}, {}, {"parts": names})], made.folder)


def test_only_new_and_damaged_files_are_prepared(folder, capsys):
    made = folder()
    parts = made.parts()
    content = {
        path: path.read_bytes() for path in (made.folder / "parts").rglob("*") if path.suffix == ".arrow" or path.name == "manifest.json"
    }
    capsys.readouterr()
    (parts[0].folder / "train.arrow").write_bytes(b"damaged")
    (parts[1].folder / "manifest.json").write_text("{")
    (parts[0].folder.parent / f".{parts[0].folder.name}.new").mkdir()  # of a job that was killed
    made.write("more.jsonl", rows(500, 10))
    assert [part.folder for part in made.parts()][1:] == [part.folder for part in parts]
    printed = capsys.readouterr().out
    assert "1 of 4 files were prepared before" in printed and printed.count(" rows\n") == 3
    assert {path: path.read_bytes() for path in content} == content


def test_repetitions_are_shown_with_their_places(folder):
    made = folder()
    made.write("part-1.jsonl", [{"text": "film film", "label": "no"}] * 2 + rows(0, 5))
    _, issues = join_parts(made.data, made.parts())
    assert "train/part-1.jsonl, line 2: film film" in issues.examples["duplicate"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "film", "label": ""}], r"no usable example among its 1 rows \(1 missing label\)"),
        ([{"text": "film", "label": "no"}, {"text": "plot", "label": "no"}], "there is nothing to learn"),
    ],
)
def test_data_without_anything_to_learn_is_refused(tmp_path, tiny_tokenizer, rows, message):
    made = Folder(tmp_path, tiny_tokenizer, dev_fraction=0, test_fraction=0)
    made.write("a.jsonl", rows)
    with pytest.raises(BadData, match=message):
        made.prepared()


def test_labels_that_are_not_listed_are_dropped_only_while_they_are_rare(folder):
    with pytest.raises(
        BadData, match="data.labels: 150 of the 300 rows of train have a label that is not listed, such as train/part-0.jsonl"
    ):
        folder(labels={"no": "n", "yes": "y"}).prepared()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_split_that_few_texts_leave_empty_is_refused(folder, split):
    made = folder(**{f"{split}_fraction": 1e-9})
    with pytest.raises(BadData, match=f"data.{split}: no text was drawn for it, .* Make `{split}_fraction` larger than 1e-09"):
        made.prepared()
    assert len(folder(**{f"{split}_fraction": 0}).prepared()[0]["train"]) > 200, "no share at all is no mistake"


def test_the_number_of_shards_is_not_part_of_the_name():
    def name(**changes) -> str:
        return data_name(Data.model_validate(DATA | changes))

    assert name(shards=2) == name(shards=5) != name(shards=None)
    assert name(shards=2, test={"path": "t"}) == name(shards=3, test={"path": "u"})


def test_an_evaluation_set_is_the_same_whether_or_not_the_training_data_is_prepared_in_shards():
    def reading(**changes) -> dict:
        data = Data.model_validate(DATA | changes)
        return data.of_set(Examples(path="further.jsonl"), None).as_json

    assert reading(shards=2) == reading(shards=None) and "shards" not in reading(shards=2)


def test_a_trained_model_can_be_read_where_this_extra_is_not_there(tmp_path):
    settings = {"data": Data.model_validate(DATA).as_json}
    prepared = Manifest("prepare_data", "", settings, {}, {}, {})
    facts = {"run": "small", "precision": "fp32"}
    training = Manifest("train_model", "", {"train": {}, "model": {}}, {}, {}, facts, path=str(tmp_path / "manifest.json"))
    TrainedModel.of(training, prepared).write(tmp_path)
    found = TrainedModel.read(tmp_path)
    assert found.settings["data"] == {name: value for name, value in settings["data"].items() if name != "shards"} != settings["data"]
    assert found.data.max_length == 6


def test_a_change_of_how_shards_are_joined_prepares_no_file_again():
    """It concerns `prepare_data` alone, and only of data in shards."""
    pipeline = Pipeline({"data": DATA, "runs": {"whole": {"data.shards": None}, "shards": {}}}, reads_files=False)
    whole, in_shards = (pipeline.data_names[run] for run in ("whole", "shards"))
    code = {name: pipeline.stages["prepare_data"].code(name) for name in (whole, in_shards)}
    assert code[in_shards].keys() - code[whole].keys() >= {"snaketrain.extras.shards.joining", "snaketrain.extras.shards.parts"}
    assert not any(name.startswith("snaketrain.extras.shards") for name in code[whole])
    shards = pipeline.stages["prepare_shard"]
    assert list(shards.jobs) == [f"{in_shards}/0000{number}-of-00002" for number in (0, 1)]
    assert not any(name.endswith(".joining") for job in shards.jobs for name in shards.code(job))
    assert pipeline.added("prepare_data", in_shards)["shards"] == list(map(shards.manifest, shards.jobs))
    assert pipeline.added("prepare_data", whole)["shards"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit_test": 5}, "`limit_test` draws from all rows"),
        ({"limit_train": 5}, "`limit_train` draws from all rows, but with `shards` each file is prepared separately"),
        ({"train": {"use": "torch.utils.data.TensorDataset"}}, "`shards` divides files among jobs, but the examples come from a dataset class"),
        ({"train": None, "test": {"path": "rows.jsonl"}}, "`shards` divides the files of `train`"),
        ({"shards": 3}, "data.shards: 3 is more than the files of data.train: 1. Set data.shards: 1, or divide large files"),
        ({"labels": None}, "with `shards` each file is prepared by itself, so that all must have the same classes: list them in `labels`"),
    ],
)  # fmt: skip
def test_settings_that_contradict_shards_are_refused(tmp_path, tiny_tokenizer, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(0, 10)))
    shutil.copytree(tiny_tokenizer, tmp_path / "tokenizer")
    data = DATA | {"train": {"path": "rows.jsonl"}, "tokenizer": {"path": "tokenizer"}, "name": "rows"} | changes
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        examine({"data": data, "model": {"use": "transformers.BertForSequenceClassification", "arguments": {"num_hidden_layers": 1}}})
