"""Evaluation sets are prepared on their own, as if with the training data, and make nothing else stale."""

import json
from pathlib import Path

import pyarrow
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData
from snaketrain.data.preparing import TrainedOn, prepare
from snaketrain.data.tokenizer_files import copy_tokenizer
from snaketrain.extras.evaluation_sets.settings import EvaluationSet
from snaketrain.orchestration.pipeline import Pipeline, ranges_and_folders
from snaketrain.orchestration.preflight import examine
from snaketrain.runtime.manifests import Manifest

WORDS = ["film", "plot", "story", "movie"]
DATA = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}, "dev_fraction": 0.25}


def rows(kind: str, count: int) -> str:
    return "".join(f"{kind} {WORDS[n % 4]} {WORDS[n // 4 % 4]} {n % 3},{'ny'[n % 2]}\n" for n in range(count))


@pytest.fixture
def folder(tmp_path, tiny_tokenizer) -> Path:
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")
    (tmp_path / "train.csv").write_text("text,label\n" + rows("good", 40))
    (tmp_path / "test.csv").write_text("text,label\n" + rows("bad", 30) + rows("good", 2))
    return tmp_path


def prepared(folder: Path, data: Data) -> tuple[Manifest, dict]:
    """The training data, and what was counted."""
    files = {split: [folder / source.path] for split, source in data.sources.items()}
    facts, issues = prepare(data, files, folder, folder / "tokenizer", folder)
    return Manifest("prepare_data", "", {}, {}, {}, facts, path=str(folder / "manifest.json")), dict(issues.counts)


def prepared_set(folder: Path, training: Manifest, reading: Data) -> tuple[dict, dict]:
    output = folder / "set"
    output.mkdir(exist_ok=True)
    files = {"test": [folder / reading.test.path]}
    facts, issues = prepare(reading, files, folder, folder / "tokenizer", output, trained_on=TrainedOn.read(training, reading))
    assert [path.name for path in output.iterdir()] == ["test.arrow"]
    return facts, dict(issues.counts)


def table(path: Path) -> list[dict]:
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all().to_pylist()


def test_a_separate_test_set_equals_one_prepared_with_the_training_data(folder):
    data = Data.model_validate(DATA | {"test": {"path": "test.csv"}, "limit_test": 12})
    together, counted = prepared(folder, data)
    wanted, splits = table(folder / "test.arrow"), together.facts["splits"]
    alone, counted_alone = prepared(folder, data.for_training)
    assert alone.facts["splits"]["train"] == splits["train"] and alone.facts["splits"]["dev"] == splits["dev"]
    assert table(folder / "test.arrow") == []
    facts, issues = prepared_set(folder, alone, data.of_set(data.test, data.limit_test))
    assert table(folder / "set/test.arrow") == wanted and len(wanted) == 12
    assert facts["splits"] == {"test": splits["test"]} and facts["label_names"] == ["n", "y"]
    assert counted_alone.get("leaked_test", 0) == 0 and issues.get("leaked_test", 0) == counted.get("leaked_test", 0)


def test_texts_of_the_training_data_are_counted(folder):
    data = Data.model_validate(DATA | {"test_fraction": 0, "dev_fraction": 0})
    training, _ = prepared(folder, data)
    _, issues = prepared_set(folder, training, EvaluationSet(path="test.csv").reading(data))
    assert issues["leaked_test"] == 2


def test_texts_of_the_development_set_are_counted_too(folder):
    """A result on them would not be independent: they choose the checkpoint."""
    data = Data.model_validate(DATA | {"dev": {"path": "test.csv"}, "test": {"path": "test.csv"}})
    training, _ = prepared(folder, data.for_training)
    _, dev_too = prepared_set(folder, training, data.of_set(data.test, None))
    assert dev_too["test_in_dev"] == 32


def test_a_set_may_have_other_columns_and_other_names_for_the_classes(folder):
    data = Data.model_validate(DATA)
    training, _ = prepared(folder, data)
    (folder / "other.jsonl").write_text("".join(json.dumps({"tweet": f"a film {n}", "mood": "-+"[n > 0]}) + "\n" for n in range(5)))
    other = EvaluationSet(path="other.jsonl", text="tweet", label="mood", labels={"+": "y", "-": "n"}, where={})
    facts, _ = prepared_set(folder, training, other.reading(data))
    assert [row["label"] for row in table(folder / "set/test.arrow")] == [0, 1, 1, 1, 1]
    assert facts["splits"]["test"]["label_counts"] == [1, 4]
    with pytest.raises(BadData, match="^data.labels: 'x' is not among the classes of the training data: n, y"):
        prepared_set(folder, training, other.model_copy(update={"labels": {"+": "x"}}).reading(data))
    with pytest.raises(BadData, match=r"is of class '-', which no training row has"):
        prepared_set(folder, training, other.model_copy(update={"labels": None}).reading(data))


def configuration(**changes: object) -> dict:
    return {"data": DATA | {"test": {"path": "test.csv"}}, "runs": {"small": {}}} | changes


def test_another_test_set_or_a_further_one_changes_nothing_that_a_training_reads():
    given = [
        configuration(),
        configuration(data=DATA | {"test": {"path": "other.csv"}, "limit_test": 3, "test_fraction": 0.3}),
        configuration(evaluation_sets={"more": {"path": "more.csv", "checkpoints": "all"}}),
    ]
    plain, *others = (Pipeline(config, reads_files=False) for config in given)
    (data,) = plain.datasets
    for other in others:
        assert list(other.datasets) == [data]
        for stage, name in (("fetch_data", data), ("prepare_data", data), ("train_model", "small"), ("select_checkpoint", "small")):
            assert other.stages[stage].planned(name) == plain.stages[stage].planned(name)
            assert other.stages[stage].reads(name) == plain.stages[stage].reads(name)
    tested, further = others
    of_test = [each.stages["evaluate_model"].reads("small")["set"] for each in (plain, tested, further)]
    assert of_test[1] != of_test[0] == of_test[2]
    assert further.stages["evaluate_set"].jobs == ["small/more"] and further.results("small")[:-1] == plain.results("small")
    assert further.results("small")[-1] == "results/runs/small/sets/more/manifest.json"
    assert set(further.stages["evaluate_set"].reads("small/more")) == {"data", "selection", "set", "training"}


def test_data_without_a_test_set_of_its_own_keeps_its_folder():
    """Results that were made before test sets were prepared on their own stay valid."""
    data = Data.model_validate(DATA | {"limit_test": 5})
    assert data.for_training is data
    alone = Data.model_validate({"test": {"path": "test.csv"}, "labels": {"n": "n", "y": "y"}, "tokenizer": {"path": "tokenizer"}})
    assert alone.for_training is alone, "nothing is trained that could be spared"


def test_the_executor_knows_the_folder_of_each_evaluation():
    pipeline = Pipeline(configuration(evaluation_sets={"more": {"path": "more.csv"}}), reads_files=False)
    assert ranges_and_folders(pipeline)[1]["evaluate_set small_more"] == Path("results/runs/small/sets/more")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"test": {"path": "test.csv"}}, "evaluation_sets: 'test' is the name of a split of `data`"),
        ({"more": {}}, "evaluation_sets.more: names nothing"),
        ({"a b": {"path": "test.csv"}}, "evaluation_sets: 'a b' cannot be a name"),
        ({"more": {"path": "missing.csv"}}, "evaluation_sets.more: path 'missing.csv': no file there"),
        ({"more": {"path": "train.csv"}}, "train.csv is among the files of data.train too"),
        ({"more": {"path": "test.csv", "text": ["text", "label"]}}, "evaluation_sets.more.text names 2 columns, but data.text names 1"),
        (
            {"more": {"path": "test.csv", "text": "review"}},
            "evaluation_sets.more.text: test file",
        ),
        (
            {"more": {"path": "test.csv", "columns": ["text"]}},
            "evaluation_sets.more.columns: is for files without a header, but",
        ),
        ({"more": {"path": "test.csv", "label": "stars"}}, "evaluation_sets.more.label: test file"),
        ({"more": {"path": "test.csv", "target": "text"}}, "evaluation_sets.more.target names a column, but data.target is null"),
        (
            {"more": {"use": "torch.utils.data.TensorDataset"}},
            "evaluation_sets.more is a dataset class, but the training data is files of text",
        ),
        ({"more": {"path": "test.csv", "chekpoints": "all"}}, "chekpoints"),
    ],
)
def test_errors_show_before_any_job(folder, monkeypatch, sets, message):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigurationError) as found:
        examine({"data": DATA, "model": {"use": "transformers.BertForSequenceClassification"}, "evaluation_sets": sets})
    assert message in str(found.value)


def test_two_evaluations_of_one_name_on_a_cluster_are_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    more = {"path": "test.csv"}
    runs = {"a": {"evaluation_sets.b_c": more}, "a_b": {"evaluation_sets.c": more}}
    config = {"data": DATA, "model": {"use": "transformers.BertForSequenceClassification"}, "runs": runs}
    with pytest.raises(ConfigurationError, match="are both a_b_c on a cluster"):
        examine(config)
    with pytest.raises(ConfigurationError, match="are both a_b_c on a cluster") as both:  # all errors are reported at once
        examine(config | {"select": {"metric": "no_such"}})
    assert "no_such" in str(both.value)
