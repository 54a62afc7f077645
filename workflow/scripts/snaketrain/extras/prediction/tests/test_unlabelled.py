"""Rows without labels become the same tokens as the rows of the training data, and keep the user's ids."""

import json
from argparse import Namespace

import numpy as np
import pyarrow
import pytest
from unit.test_chats import CHAT, MARKED, PLAIN, SETTINGS, prepared  # noqa: F401
from unit.test_many_classes import MANY, facts_of

from snaketrain.config.schema import Data, Model, Train
from snaketrain.data.cells import BadData
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer_files import copy_tokenizer
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.extras.prediction import predictor as predicting
from snaketrain.extras.prediction.predict import default_output, local_source, predict
from snaketrain.extras.prediction.predictor import Predictor, write_predictions
from snaketrain.extras.prediction.rows import prepare_unlabelled
from snaketrain.extras.prediction.settings import ReadInputs
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.strategies.ddp import Single
from snaketrain.tasks.base import Task
from snaketrain.tasks.predicting_tokens import split_answer
from snaketrain.training.state import TrainState

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


def test_ids_are_the_users_own(tmp_path, tiny_tokenizer):
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")

    def ids(content: str, ending: str, **given) -> list[str]:
        (file := tmp_path / f"new.{ending}").write_text(content)
        arguments = [file], tmp_path, tmp_path / "tokenizer", [], tmp_path / "new.arrow"
        return prepare_unlabelled(settings(), ReadInputs(**given), *arguments).ids

    rows = [f"a film,{n}\n" for n in range(200)]
    rows[5] = "a film, a plot,5\n"  # an unquoted comma: the row is dropped, and those after it keep their numbers
    assert ids("text,key\n" + "".join(rows), "csv") == [str(n) for n in range(200) if n != 5]
    texts = "text,key\na film,1.0\na film,1\na film, x \n"
    assert ids(texts, "csv", id="key") == ["1.0", "1", " x "], "as they are in the file"
    assert ids('{"text": "a film", "key": 1}\n{"text": "a film", "key": 2.5}\n', "jsonl", id="key") == ["1", "2.5"]


@pytest.mark.parametrize("longest", [None, 9])
def test_prompts_are_tokenised_as_in_training(tmp_path, tiny_tokenizer, longest):
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer", pair=True)
    data = settings(text=["first", "second"], label=None, max_length=longest, end_token="[PAD]")
    train, new = tmp_path / "train.csv", tmp_path / "new.csv"
    train.write_text("first,second\n" + "".join(f"{first},{second}\n" for first, second in PAIRS))
    new.write_text("prompt\n" + "".join(f"{first}\n" for first, _ in PAIRS) + "a " * 20 + "\n")
    prepare(data, {"train": [train]}, tmp_path, tmp_path / "tokenizer", tmp_path)
    given = ReadInputs(text="prompt")
    assert given.asks_for_text(data) and not ReadInputs(text=["first", "second"]).asks_for_text(data)
    found = prepare_unlabelled(
        data, given, [new], tmp_path, tmp_path / "tokenizer", [], tmp_path / "new.arrow", generates=given.asks_for_text(data)
    )
    expected = {
        row["text"]: split_answer(row["input_ids"], row["token_type_ids"])[0] for row in table(tmp_path / "train.arrow").to_pylist()
    }
    prompts = {row["text"]: row["input_ids"] for row in table(tmp_path / "new.arrow").to_pylist()}
    *whole, long = prompts
    for text in whole:  # a pair was truncated together with its answer
        assert prompts[text][: len(expected[text]) - 1] == expected[text][:-1] and prompts[text][-1] == expected[text][-1]
    assert len(prompts[long]) == (longest or 22)
    assert (found.issues.counts["truncated"], found.ids) == (1 if longest else 0, ["0", "1", "2", "3"])


@pytest.mark.parametrize(
    ("given", "name"), [("raw/new.jsonl", "new"), ("raw/new-*.jsonl", "new-all"), ("raw/[ab]?.csv", "all"), (".", None)]
)
def test_predictions_by_hand_are_named_after_the_input(tmp_path, monkeypatch, given, name):
    monkeypatch.chdir(tmp_path)
    assert str(default_output(given)) == f"{name or tmp_path.name}-predictions"


def test_addresses_are_left_to_the_workflow():
    with pytest.raises(ValueError, match="^--input: address 's3://bucket/new.jsonl' is not on this machine. Copy its files here, or "):
        local_source("s3://bucket/new.jsonl")


def test_a_model_of_a_dataset_class_predicts_no_files(tmp_path):
    data = Data.model_validate({"name": "items", "train": {"use": "my_data.py:Items"}})
    TrainedModel("small", {"data": data.as_json}, {}, "fp32").write(tmp_path)
    with pytest.raises(
        SystemExit, match="^--model: .* was trained on a dataset class, and only files of text are predicted here. Load its"
    ):
        predict(Namespace(model=tmp_path))


def test_a_task_of_another_kind_generates_no_text(tmp_path):
    given = {"data": settings(target="summary", label=None).as_json, "model": Model().as_json, "train": Train().as_json}
    state = TrainState(Task(), Single("cpu", "fp32"), {})
    predictor = Predictor(TrainedModel("small", given, {}, "fp32"), tmp_path, state, 8)
    with pytest.raises(SystemExit, match="its task text_classification is not derived from Seq2seq or CausalLm, so it generates no text"):
        predictor.predict_files(ReadInputs(), [], tmp_path, tmp_path, "new")


@pytest.mark.parametrize(
    ("at_once", "given", "limits"),
    [
        ({"examples": 4, "tokens": 1000}, None, (4, 1000)),
        ({"examples": 4, "tokens": None}, None, (4, None)),
        ({"examples": 4, "tokens": 1000}, 8, (8, 6000)),
        (None, None, (64, 6000)),
    ],
    ids=["as its training", "limited by examples", "given", "of an earlier version"],
)
def test_predictions_are_computed_in_batches_that_fitted_in_the_training(tmp_path, monkeypatch, at_once, given, limits):
    settings_given = {"data": settings().as_json, "model": Model().as_json, "train": Train(batch_tokens=6000).as_json}
    asked = []

    def predict(state, examples, *options):
        asked.append(options[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(predicting, "predict", predict)
    monkeypatch.setattr(predicting, "TextExamples", lambda *_: None)
    monkeypatch.setattr(Predictor, "_prepare", lambda *_, **__: [])
    trained = TrainedModel("small", settings_given, {"pad_token_id": 0}, "fp32", at_once)
    predictor = Predictor(trained, tmp_path, TrainState(Task(), Single("cpu", "fp32"), {}), given)
    with pytest.raises(KeyboardInterrupt):
        predictor.predict_files(ReadInputs(), [], tmp_path, tmp_path, "new")
    assert asked == [limits]


def test_inputs_generate_as_the_evaluation_does_unless_they_say_otherwise():
    data = {"train": {"path": "x"}, "tokenizer": {"path": "x"}, "target": "summary", "label": None}
    config = {"data": data, "train": {"task": "seq2seq"}, "evaluate": {"generate": {"num_beams": 4}}, "select": {"metric": "loss"}}
    config |= {"predict": {"new": {"path": "a.csv"}, "old": {"path": "b.csv", "generate": {"num_beams": 2}}}}
    given = Pipeline(config, reads_files=False).stages["predict_inputs"].settings("default")["predict"]
    assert {name: inputs["generate"]["num_beams"] for name, inputs in given.items()} == {"new": 4, "old": 2}


def test_predictions_make_no_other_result_stale():
    data = {"train": {"path": "x"}, "tokenizer": {"path": "x"}}
    without, given = ({"data": data, **predict} for predict in ({}, {"predict": {"new": {"path": "new.csv"}, "old": {"path": "old.csv"}}}))
    plain, with_predictions = (Pipeline(config, reads_files=False) for config in (without, given))
    for stage in ("train_model", "select_checkpoint", "evaluate_model"):
        assert plain.stages[stage].planned("default") == with_predictions.stages[stage].planned("default")
    assert set(plain.results("default")) == set(with_predictions.results("default")) - {"results/runs/default/predictions/manifest.json"}
    names = list(with_predictions.inputs)
    assert with_predictions.stages["predict_inputs"].fetched("default") == [f"results/inputs/{name}/manifest.json" for name in names]
    assert [name.partition("-")[0] for name in names] == ["new.csv", "old.csv"]
    changed = Pipeline({"data": data, "predict": {"new": {"path": "new.csv", "id": "key"}, "old": {"path": "old.csv"}}}, reads_files=False)
    assert changed.stages["fetch_input"].planned(names[0]) == with_predictions.stages["fetch_input"].planned(names[0])
    now, before = (each.stages["predict_inputs"].settings("default")["predict"] for each in (changed, with_predictions))
    assert now["old"] == before["old"] and now["new"] == before["new"] | {"id": "key"}


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_the_prompt_of_a_chat_is_what_stands_before_its_last_answer(prepared, tmp_path, template):  # noqa: F811
    examples, *_ = prepared([CHAT], template)
    expected, _ = split_answer(*(examples.rows(name, [0])[0].tolist() for name in ("input_ids", "token_type_ids")))
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"turns": chat}) + "\n" for chat in ([], CHAT, CHAT[:-1], CHAT[-1:])))
    data, given = Data.model_validate(SETTINGS | {"max_length": 4}), ReadInputs(text="turns")
    found = prepare_unlabelled(
        data, given, [tmp_path / "new.jsonl"], tmp_path, tmp_path / "tokenizer", [], tmp_path / "new.arrow", generates=True
    )
    prompts = TextExamples(tmp_path / "new.arrow", pad_token_id=0)
    assert [prompts.rows("input_ids", [number])[0].tolist() for number in (0, 1)] == [expected, expected]
    assert found.ids == ["1", "2"] and found.issues.counts == {"empty_text": 2, "answered": 2}
    assert [json.loads(text) for text in prompts.column("text")] == [CHAT[:-1]] * 2


@pytest.mark.parametrize("kind", ["class", "classes"])
def test_unlabelled_texts_have_names_of_classes_as_text(tmp_path, capsys, kind):
    """Even where they look like numbers."""
    table = pyarrow.table({"text": ["a", "b"], "label": pyarrow.array([-100, -100] if kind == "class" else [None, None])})
    probabilities = np.eye(MANY)[[7, 3]]
    write_predictions(tmp_path, "new", ["0", "1"], table, {"ids": np.arange(2), "probabilities": probabilities}, facts_of(kind, MANY))
    found = pyarrow.parquet.read_table(tmp_path / "new.parquet").to_pydict()
    assert found["predicted"] == found["predicted_1"] == ["7", "3"] and found["probability_1"] == [1.0, 1.0]
    assert not {"label_probability", "largest_error", "p_0"} & found.keys()
    said = capsys.readouterr().out
    assert "1,001 classes" in said and "confusion" not in said
