"""Dataset classes: the items of each split, the content of batches, and random numbers drawn for an item."""

import random
import re

import numpy as np
import pytest
import torch

from snaketrain.config.schema import Data, Model, Train
from snaketrain.data.cells import BadData
from snaketrain.data.loading.training_data import Items, make_dataset, open_items
from snaketrain.data.preparing import files_of_items, prepare_items
from snaketrain.orchestration import code_digest
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.runtime.manifests import Manifest
from snaketrain.training.building import build, make_task

SOURCE = """
import random
import numpy as np  # noqa: E402
import torch  # noqa: E402

class Squares:
    label_names = ["even", "odd"]

    def __init__(self, count=100, shift=0):
        self.count, self.shift = count, shift

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return float(i + self.shift), i * i

class Noisy(Squares):
    training = False

    def facts(self):
        return {"width": 3}

    def __getitem__(self, i):
        drawn = [torch.rand(()).item(), np.random.rand(), random.random()]
        return {"drawn": np.array(drawn), "training": self.training, "number": i}

class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])

class Texts(Squares):
    def __getitem__(self, i):
        return "a text", i

class Computing(Squares):
    def __init__(self, count=100, name="root", rows=None):
        super().__init__(count)
        self.name, self.rows = name, rows

    def precompute(self, numbers):
        return {self.name: np.sqrt(numbers)[: self.rows], "both": np.stack([numbers, -numbers], 1)}

class Collating(Squares):
    lengths = np.arange(100)

    def collate(self, items):
        return {"longest": torch.tensor([max(number for number, _ in items)] * len(items))}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(folder, use="mine.py:Squares", **changes):
    """The facts, and the splits opened as training and evaluation open them."""
    data = Data.model_validate({"train": {"use": use}} | changes)
    facts = prepare_items(data, folder)
    manifest = Manifest("prepare_data", "", {}, {}, {}, facts, path=str(folder / "manifest.json"))
    return facts, {split: open_items(manifest, split, seed=1) for split, found in facts["splits"].items() if found["examples"]}


def numbers(items: Items) -> list[float]:
    return items.batch(range(len(items)))["inputs"].tolist()


def test_splits_are_exact_disjoint_and_complete_and_depend_only_on_the_seed(here):
    facts, splits = prepared(here, dev_fraction=0.15, test_fraction=0.2)
    assert [facts["splits"][split]["examples"] for split in ("train", "dev", "test")] == [65, 15, 20]
    found = {split: numbers(items) for split, items in splits.items()}
    assert sorted(number for split in found.values() for number in split) == list(range(100))
    assert found == {split: numbers(items) for split, items in prepared(here, dev_fraction=0.15, test_fraction=0.2)[1].items()}
    other = prepared(here, dev_fraction=0.15, test_fraction=0.2, split_seed=1)[1]
    assert numbers(other["dev"]) != found["dev"]
    limited = prepared(here, dev_fraction=0.15, test_fraction=0.2, limit_train=10)[1]
    assert len(limited["train"]) == 10 and set(numbers(limited["train"])) < set(found["train"])
    assert numbers(limited["test"]) == found["test"]


def test_given_splits_are_not_split_again(here):
    dev = {"use": "mine.py:Squares", "arguments": {"count": 7, "shift": 500}}
    facts, splits = prepared(here, dev=dev, test_fraction=0.1)
    assert numbers(splits["dev"]) == list(range(500, 507))
    assert (len(splits["train"]), len(splits["test"])) == (90, 10)
    assert facts["datasets"]["dev"] == dev and facts["datasets"]["test"]["arguments"] == {}
    assert facts["label_names"] == ["even", "odd"]


def test_a_test_set_alone_is_not_split(here):
    facts, splits = prepared(here, train=None, test={"use": "mine.py:Squares", "arguments": {"count": 7}})
    assert [facts["splits"][split]["examples"] for split in ("train", "dev", "test")] == [0, 0, 7]
    assert numbers(splits["test"]) == list(range(7)) and facts["label_names"] == ["even", "odd"]
    manifest = Manifest("prepare_data", "", {}, {}, {}, facts, path=str(here / "manifest.json"))
    assert len(open_items(manifest, "train", seed=1)) == 0


def test_a_batch_has_the_fields_by_name_and_ids(here):
    facts, splits = prepared(here, fields=["x", "y"])
    batch = splits["train"].batch([3, 1])
    assert batch["ids"].tolist() == [3, 1]
    assert batch["x"].dtype == torch.float32 and batch["y"].tolist() == (batch["x"] ** 2).tolist()
    assert facts["splits"]["train"]["fields"] == {"x": {"shape": [], "type": "float32"}, "y": {"shape": [], "type": "int64"}}
    facts, splits = prepared(here, "mine.py:Noisy")
    assert splits["dev"].batch([0, 2])["drawn"].shape == (2, 3) and facts["width"] == 3
    _, splits = prepared(here, "mine.py:Collating")
    assert splits["train"].batch([0, 5, 1])["longest"].tolist() == [splits["train"].lengths[[0, 5, 1]].max()] * 3


def test_random_numbers_of_an_item_depend_only_on_seed_epoch_and_item(here):
    items = prepared(here, "mine.py:Noisy")[1]["train"]
    together = items.batch([4, 9, 2], epoch=1)["drawn"]
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    apart = [items.batch([number], epoch=1)["drawn"][0] for number in (4, 9, 2)]
    assert torch.equal(together, torch.stack(apart))
    assert len({*together.flatten().tolist(), *items.batch([4, 9, 2], epoch=2)["drawn"].flatten().tolist()}) == 18
    evaluated = items.batch([4, 9, 2])["drawn"]
    assert torch.equal(evaluated, items.batch([4, 9, 2])["drawn"])
    items.seed = 2
    assert not torch.equal(together, items.batch([4, 9, 2], epoch=1)["drawn"])
    assert torch.equal(evaluated, items.batch([4, 9, 2])["drawn"]), "an evaluation does not depend on the seed of the training"


def test_random_numbers_elsewhere_are_unaffected(here):
    items = prepared(here, "mine.py:Noisy")[1]["train"]

    def drawn(between):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        between()
        return random.random(), np.random.rand(), torch.rand(()).item()

    assert drawn(lambda: items.batch([1, 2], epoch=0)) == drawn(lambda: None)


def test_what_is_computed_once_for_each_item_is_in_its_batches(here):
    facts, splits = prepared(here, "mine.py:Computing", fields=["inputs", "target"], dev_fraction=0.2)
    assert facts["splits"]["train"]["computed"] == ["root", "both"]
    assert {f"{split}.{name}" for split in ("train", "dev") for name in ("npy", "root.npy", "both.npy")} <= {*files_of_items(facts)}
    assert all((here / name).is_file() for name in files_of_items(facts))
    for items in splits.values():
        batch = items.batch([3, 0])
        assert batch["root"].tolist() == pytest.approx(batch["inputs"].sqrt().tolist()) and batch["root"].dtype == torch.float32
        assert batch["both"].tolist() == [[number, -number] for number in batch["inputs"].tolist()]


@pytest.mark.parametrize(("arguments", "words"), [
    ({"rows": 5}, "`precompute` gives, as `root` of 80 items, an array of float64 with the shape (5,). Give numbers, and a row for each item"),
    ({"name": "a/b"}, "`precompute` names a field 'a/b'"),
    ({"name": "inputs"}, "mine.py:Computing gives `inputs` in its items and by `precompute`"),
])  # fmt: skip
def test_what_cannot_be_computed_once_is_refused(here, arguments, words):
    with pytest.raises((SystemExit, BadData), match=re.escape(words)):
        prepared(here, "mine.py:Computing", fields=["inputs", "target"], train={"use": "mine.py:Computing", "arguments": arguments})


def test_a_dataset_knows_whether_it_is_used_for_training(here):
    items = prepared(here, "mine.py:Noisy")[1]["train"]
    assert items.batch([0], epoch=0)["training"].tolist() == [True]
    assert items.batch([0])["training"].tolist() == [False]


@pytest.mark.parametrize(
    ("use", "changes", "words"),
    [
        ("mine.py:Squares", {"fields": ["a", "b", "c"]}, "data.fields: mine.py:Squares gives 2 values for each item, and `fields` names 3"),
        ("mine.py:Squares", {"fields": ["a"]}, "names 1: a. Name each of them"),
        ("mine.py:Texts", {}, "mine.py:Texts: `inputs` of its items is a tuple after collating"),
        ("mine.py:Squares", {"dev": {"use": "mine.py:Endless"}}, "data.dev.use: mine.py:Endless has no length"),
        ("mine.py:Square", {}, "data.train.use: `mine.py:Square`: mine.py has no `Square`. Did you mean `Squares`?"),
    ],
)
def test_mismatches_are_reported_when_the_data_is_prepared(here, use, changes, words):
    with pytest.raises(SystemExit) as error:
        prepared(here, use, **changes)
    assert words in str(error.value)


def test_wrong_arguments_and_too_few_items_are_errors(here):
    with pytest.raises(SystemExit, match=r"data.train: mine.py:Squares cannot be made with the arguments .* 'cuont'.*Correct them"):
        make_dataset("mine.py:Squares", {"cuont": 3}, "data.train")
    with pytest.raises(BadData, match="data.train: none of the 2 items of mine.py:Squares is left"):
        prepared(here, train={"use": "mine.py:Squares", "arguments": {"count": 2}}, dev_fraction=0.5, test_fraction=0.4)


def test_the_code_of_a_dataset_makes_its_stages_stale(here):
    config = {"data": {"train": {"use": "mine.py:Squares"}}, "select": {"metric": "loss"}}
    config |= {"model": {"use": "torch.nn.Linear"}, "train": {"task": {"use": "base.py:Base", "arguments": {"inner": ["loss.py:f"]}}}}
    (here / "base.py").write_text("class Base:\n    metrics = {'loss': 'min'}\n\n    def __init__(self, inner): pass\n")
    (here / "loss.py").write_text("def f(x): return x\n")

    def planned(stage):
        code_digest._cached_read.cache_clear()
        pipeline = Pipeline(config)
        examine(config)
        (dataset,) = pipeline.datasets
        return pipeline.stages[stage].planned(dataset if stage == "prepare_data" else "default")

    stages = ("prepare_data", "train_model", "evaluate_model")
    before = {stage: planned(stage) for stage in stages}
    for file, stale in (("mine.py", stages), ("loss.py", stages[1:])):
        old = (here / file).read_text()
        (here / file).write_text(old + "\nMORE = 1\n")
        found = [stage for stage in stages if planned(stage) != before[stage]]
        (here / file).write_text(old + "\n# a remark\n")
        assert found == list(stale)
        assert {stage: planned(stage) for stage in stages} == before


def test_a_task_that_needs_text_refuses_items(here):
    facts, _ = prepared(here)
    train, model = Train(), Model(use="transformers.BertForSequenceClassification")
    with pytest.raises(SystemExit, match="train.task: needs `vocab_size`, which this data does not give. Name another task; or"):
        build(make_task(train), train, model, None, facts)
