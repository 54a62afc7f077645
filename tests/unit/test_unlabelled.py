"""Rows without labels become the same tokens as the rows of the training data, and keep the user's ids."""

import pyarrow
import pytest

from snaketrain.config.runs import strings
from snaketrain.config.schema import Data, Model, ReadInputs, Train
from snaketrain.data.sources.formats import BadData
from snaketrain.data.text.preparing import prepare
from snaketrain.data.text.unlabelled import prepare_unlabelled
from snaketrain.data.tokenization.files import copy_tokenizer
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.evaluation.unlabelled import Predictor
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.strategies.single import Single

PAIRS = [("a good film", "a bad film"), ("the story", "never really good"), ("this plot was very boring", "it is great")]


def settings(**changes) -> Data:
    common = {"train": {"path": "x"}, "tokenizer": {"path": "x"}, "dev_fraction": 0, "test_fraction": 0}
    return Data.model_validate(common | changes)


def table(path):
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()


def test_pairs_are_tokenised_as_in_training(tmp_path, tiny_tokenizer):
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer", pair=True)
    data = settings(text=["first", "second"], max_length=9, columns=["first", "second", "label"], where={"first": "a good film"})
    train, new = tmp_path / "train.csv", tmp_path / "new.csv"
    train.write_text("".join(f"{first},{second},{n % 2}\n" for n, (first, second) in enumerate(PAIRS * 2)))
    new.write_text("b,key,a\n" + "".join(f"{second},k{n},{first}\n" for n, (first, second) in enumerate(PAIRS)))
    prepare(data.model_copy(update={"where": {}}), {"train": [train]}, tmp_path, tmp_path / "tokenizer", tmp_path)
    given = ReadInputs(text=["a", "b"], id="key", columns=[])
    found = prepare_unlabelled(data, given, [new], tmp_path, tmp_path / "tokenizer", ["0", "1"], tmp_path / "new.arrow")
    trained, predicted = (
        {row["text"]: (row["text_pair"], row["input_ids"], row["token_type_ids"]) for row in table(tmp_path / name).to_pylist()}
        for name in ("train.arrow", "new.arrow")
    )
    assert predicted == trained
    assert found.ids == ["k0", "k1", "k2"]
    assert found.issues.counts["truncated"] == 1
    assert set(table(tmp_path / "new.arrow")["label"].to_pylist()) == {-100}


def test_rows_without_a_text_are_left_out_and_reported(tmp_path, tiny_tokenizer):
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")
    file = tmp_path / "new.jsonl"
    file.write_text('{"text": "a film"}\n{"text": " "}\n{"label": 1}\n{"text": "the plot"}\n')
    found = prepare_unlabelled(settings(), ReadInputs(), [file], tmp_path, tmp_path / "tokenizer", [], tmp_path / "new.arrow")
    assert found.ids == ["0", "3"]
    assert found.issues.examples["empty_text"] == ["new.jsonl, line 2", "new.jsonl, line 3"]
    file.write_text('{"text": ""}\n')
    with pytest.raises(BadData, match=r"no row with a text in new.jsonl. Check the file"):
        prepare_unlabelled(settings(), ReadInputs(), [file], tmp_path, tmp_path / "tokenizer", [], tmp_path / "new.arrow")


@pytest.mark.parametrize("writes", [{"target": "summary", "label": None}, {"messages": "chat", "label": None}])
def test_a_model_that_writes_text_is_refused(tmp_path, writes):
    trained = TrainedModel(
        "small", [*strings("data", settings(**writes)), *strings("model", Model()), *strings("train", Train())], {}, "fp32"
    )
    with pytest.raises(SystemExit, match=r"the model writes text, which is not predicted here yet. Load the folder with transformers"):
        Predictor.load(trained, tmp_path, None, Single("cpu", "fp32"), 8, 1)


def test_what_is_predicted_makes_no_other_result_stale():
    data = {"train": {"path": "x"}, "tokenizer": {"path": "x"}}
    without, given = ({"data": data, **predict} for predict in ({}, {"predict": {"new": {"path": "new.csv"}, "old": {"path": "old.csv"}}}))
    plain, predicting = (Pipeline(config, reads_files=False) for config in (without, given))
    for stage in ("train_model", "select_checkpoint", "evaluate_model"):
        assert plain.strings(stage, "default") == predicting.strings(stage, "default")
    assert plain.results("default") == predicting.results("default")[:-1]
    names = list(predicting.inputs)
    assert predicting.unlabelled("default") == [f"results/inputs/{name}/manifest.json" for name in names]
    assert [name.partition("-")[0] for name in names] == ["new.csv", "old.csv"]
    changed = Pipeline({"data": data, "predict": {"new": {"path": "new.csv", "id": "key"}, "old": {"path": "old.csv"}}}, reads_files=False)
    assert changed.strings("fetch_input", names[0]) == predicting.strings("fetch_input", names[0])
    assert set(changed.strings("predict_inputs", "default")) - set(predicting.strings("predict_inputs", "default")) == {
        *strings("predict.new", changed.runs["default"].predict["new"])
    } - {*strings("predict.new", predicting.runs["default"].predict["new"])}
