"""From the configuration to runs, and from settings to JSON and back."""

import json

import pytest
import yaml
from pydantic import Field

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read_runs
from snaketrain.config.schema import Data, Section, Settings, Train
from snaketrain.config.schema.base import is_null
from snaketrain.data.surveying import classes
from snaketrain.orchestration.names import data_name
from snaketrain.runtime.manifests import digest
from snaketrain.runtime.stages import by_name

DATA = {"train": {"path": "a.csv"}, "tokenizer": {"path": "tokenizer"}}


def read(**config) -> dict[str, Settings]:
    return read_runs({"data": DATA} | config)


def test_without_runs_there_is_a_default_run():
    assert list(read()) == ["default"]


def test_runs_change_the_common_sections_and_leave_each_other_alone():
    runs = read(train={"seed": 7, "epochs": 5}, runs={"a": {"train.seed": 1}, "b": {"train": {"seed": 2}}, "c": None})
    assert {name: (run.train.seed, run.train.epochs) for name, run in runs.items()} == {"a": (1, 5), "b": (2, 5), "c": (7, 5)}


def test_dotted_keys_replace_and_nested_ones_are_merged():
    model = {"use": "x.Y", "arguments": {"layers": 2, "heads": 4}}
    runs = read(model=model, runs={"dotted": {"model.arguments": {"layers": 3}}, "nested": {"model": {"arguments": {"layers": 3}}}})
    assert runs["dotted"].model.arguments == {"layers": 3}
    assert runs["nested"].model.arguments == {"layers": 3, "heads": 4}


def test_a_dotted_key_makes_the_sections_that_it_passes():
    assert read(runs={"a": {"train.optimizer.use": "torch.optim.SGD"}})["a"].train.optimizer.use == "torch.optim.SGD"


def test_a_sweep_is_the_product_of_its_values_named_after_them():
    runs = read(runs={"plain": {}}, sweeps={"rate": {"train.learning_rate": [3e-5, 1e-4], "train.seed": [0, 1]}})
    assert list(runs) == [
        "plain",
        "rate-learning_rate=3e-05-seed=0",
        "rate-learning_rate=3e-05-seed=1",
        "rate-learning_rate=0.0001-seed=0",
        "rate-learning_rate=0.0001-seed=1",
    ]
    assert (runs["rate-learning_rate=0.0001-seed=0"].train.learning_rate, runs["rate-learning_rate=0.0001-seed=0"].train.seed) == (1e-4, 0)


def test_values_that_cannot_be_in_a_name_are_numbered():
    runs = read(sweeps={"file": {"data.train": [{"path": "a/b.csv"}, {"path": "c d.csv"}]}})
    assert {name: run.data.train.path for name, run in runs.items()} == {"file-train=0": "a/b.csv", "file-train=1": "c d.csv"}


def test_data_sets_are_picked_by_name_instead_of_the_common_one():
    datasets = {"imdb": DATA | {"max_length": 9}, "sst": DATA | {"name": "treebank"}}
    runs = read(data=DATA | {"max_length": 5}, datasets=datasets, runs={"a": {"data": "imdb"}, "b": {"data": "sst"}, "c": {}})
    assert {name: (run.data.name, run.data.max_length) for name, run in runs.items()} == {
        "a": ("imdb", 9),
        "b": ("treebank", 128),
        "c": ("data", 5),
    }


def test_a_data_set_picked_by_name_can_be_changed():
    datasets = {"imdb": DATA, "sst": DATA}
    runs = read(data="imdb", datasets=datasets, sweeps={"s": {"data": ["imdb", "sst"], "data.max_length": [8, 9]}})
    assert [(run.data.name, run.data.max_length) for run in runs.values()] == [("imdb", 8), ("imdb", 9), ("sst", 8), ("sst", 9)]
    assert read(data="imdb", datasets=datasets, runs={"a": {"data.max_length": 7}})["a"].data.max_length == 7


def test_data_sets_are_for_the_tasks_of_the_runs_that_pick_them():
    """They were refused before, since the default task does not read their targets."""
    written = DATA | {"label": None, "target": "summary"}
    runs = read(
        datasets={"kind": DATA, "written": written}, runs={"a": {"data": "kind"}, "b": {"data": "written", "train.task": "seq2seq"}}
    )
    assert runs["b"].data.target == "summary"
    with pytest.raises(ConfigurationError, match=r"runs.b.data.target \(summary\) is not read by train.task text_classification"):
        read(datasets={"written": written}, runs={"b": {"data": "written"}})


def test_another_order_of_the_labels_is_other_data():
    """Since it numbers the classes: with two, metrics such as `f1` are those of the second."""
    orders = [{0: "unkind", 1: "kind"}, {1: "kind", 0: "unkind"}]
    first, second = (Data.model_validate(DATA | {"labels": labels}) for labels in orders)
    assert data_name(first) != data_name(second) and digest(first.as_json) != digest(second.as_json)
    for data, names in ((first, ["unkind", "kind"]), (second, ["kind", "unkind"])):
        assert classes(Data.model_validate(json.loads(json.dumps(data.as_json, sort_keys=True))))[0] == names


@pytest.mark.parametrize(
    "labels",
    [
        None,
        {},
        {0: "negative", 1: "positive"},
        {"a.b": "x", "c=d": "y"},
        {"one": "1", "two": "2"},
        {"class": "for", "": "nothing", "a b": "space"},
        {"schön": "ü", '"': "'", "$(x)": "a\nb"},
    ],
)
def test_settings_survive_conversion_to_json(labels):
    data = Data.model_validate(DATA | {"labels": labels, "where": {"source": "x=y.z"}, "columns": ["a b", "c.d"]})
    assert Data.model_validate(json.loads(json.dumps(data.as_json))) == data


def test_arguments_survive_conversion_to_json():
    given = {"eps": 1e-8, "betas": [0.9, 0.999], "inner": {"deep": {"a": None}, "odd key": True}, "empty": {}}
    train = Train.model_validate({"optimizer": {"use": "torch.optim.AdamW", "arguments": given}})
    assert Train.model_validate(json.loads(json.dumps(train.as_json))) == train


def test_numbers_that_yaml_reads_as_text_are_numbers_in_arguments():
    written = yaml.safe_load("{use: x.Y, arguments: {eps: 1e-8, betas: [0.9, 1E3], deep: {big: -.5e+3}, word: 1e-8th, version: '1.10'}}")
    assert written["arguments"]["eps"] == "1e-8"
    found = read(train={"optimizer": written})["default"].train.optimizer.arguments
    assert found == {"eps": 1e-8, "betas": [0.9, 1000.0], "deep": {"big": -500.0}, "word": "1e-8th", "version": "1.10"}


def test_key_order_and_notation_of_numbers_change_nothing():
    one, other = (Train.model_validate(given) for given in ({"seed": 1, "epochs": 2}, {"epochs": 2.0, "seed": 1}))
    assert json.dumps(one.as_json) == json.dumps(other.as_json)


def test_settings_have_full_names():
    train = Train.model_validate({"optimizer": {"use": "torch.optim.AdamW", "arguments": {"eps": 1e-8, "odd": {"a.b": 1}, "empty": {}}}})
    found = by_name({"train": train.as_json})
    assert found["train.seed"] == train.seed and found["train.optimizer.arguments.eps"] == 1e-8
    assert found["train.optimizer.arguments.odd"] == {"a.b": 1} and found["train.optimizer.arguments.empty"] == {}


class Grown(Section):
    """A section that got two settings in a later version."""

    rate: float = 1.0
    newer: int | None = Field(None, exclude_if=is_null)
    nested: Train | None = Field(None, exclude_if=is_null)


def test_a_setting_that_was_added_later_is_compared_only_where_it_is_given():
    assert Grown().as_json == {"rate": 1.0}
    assert Grown(newer=3).as_json == {"rate": 1.0, "newer": 3}
    assert Grown.model_validate(Grown().as_json) == Grown()
