"""Models that write text as MLflow serves them: the answers are those of `snaketrain predict` and of the evaluation."""

import csv
import json
from types import SimpleNamespace

import mlflow
import pandas
import pytest
import torch
from mlflow.exceptions import MlflowException
from pipeline.test_examples import GENERATING, configuration, run_together, write_chats, write_summaries
from pyarrow import parquet
from unit.test_chats import CHAT, MARKED, PLAIN, SHORT, write_tokenizer
from unit.test_generation import SIZES

from snaketrain.config.schema import Data, Model, Train
from snaketrain.config.schema.evaluation import Generate
from snaketrain.data.tokenizer_files import copy_tokenizer
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.extras.registry import serving
from snaketrain.extras.registry.serving import Served, save, served_as, writer
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.stages import by_name
from snaketrain.strategies.ddp import Single
from snaketrain.tracking.mlflow_store import Store
from snaketrain.training.building import make_task

LLAMA, T5 = "LlamaForCausalLM", "T5ForConditionalGeneration"
SENTENCES = ["a good film", "the story", "the plot is very boring and the film is cold", "it"]  # the third one is longer than `max_length`
CHATS = [CHAT[:-1], SHORT[:1], CHAT[:2]]
GENERATE = {"max_new_tokens": 5, "repetition_penalty": 1.3}


def trained(folder, tokenizer, task: str, **data) -> tuple[TrainedModel, Served]:
    """A random model in the folder, as a run leaves it, and how it is served."""
    given = Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}, "label": None, "max_length": 9} | data)
    copy_tokenizer(tokenizer, folder, pair=given.pair)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    facts = {"vocab_size": len(vocabulary), "pad_token_id": 0, "max_length": given.max_length, "label_names": [], "label_kind": "class"}
    facts |= {"end_token_id": vocabulary[given.end_token], "tokenizer_folder": str(folder)}
    name = T5 if task == "seq2seq" else LLAMA
    model, train = Model(use=f"transformers.{name}", arguments=SIZES[name]), Train(task={"use": task, "arguments": {"generate": GENERATE}})
    torch.manual_seed(1)
    made = make_task(train)
    module = made.build(model.as_json, None, facts)["model"]
    module.save_pretrained(folder)
    found = TrainedModel("tiny", {"data": given.as_json, "model": model.as_json, "train": train.as_json}, facts, "fp32")
    found.write(folder)
    torch.save({}, folder / "task.memory.pt")
    return found, writer(task, by_name({"data": given.as_json}), facts, Generate.model_validate(GENERATE))


def predicted(folder, model: TrainedModel, column: str, prompts: list, **generate) -> list[str]:
    """By `snaketrain predict`."""
    predicting = pytest.importorskip("snaketrain.extras.prediction.predictor")
    (folder / "new.jsonl").write_text("".join(json.dumps({column: prompt}) + "\n" for prompt in prompts))
    state = predicting.load_state(model, folder / "model", folder / "model", Single("cpu", "fp32"))
    inputs = predicting.ReadInputs(text=[column], generate=GENERATE | generate)
    predicting.Predictor(model, folder / "model", state, 3).predict_files(inputs, [folder / "new.jsonl"], folder, folder, "new")
    return parquet.read_table(folder / "new.parquet")["generated"].to_pylist()


def saved(folder, served: Served):
    (folder / "mlflow").mkdir()
    save(folder / "model", folder / "mlflow/saved", served, "tiny", "m-1")
    return mlflow.pyfunc.load_model(str(folder / "mlflow/saved"))


@pytest.mark.parametrize(
    ("task", "data"),
    [("causal_lm", {"text": ["text", "answer"]}), ("seq2seq", {"target": "answer"}), ("causal_lm", {})],
    ids=["prompts", "sources", "running text"],
)
def test_answers_are_those_of_predict(tmp_path, tiny_tokenizer, task, data):
    model, served = trained(tmp_path / "model", tiny_tokenizer, task, end_token="[PAD]", **data)
    loaded = saved(tmp_path, served)
    answers = loaded.predict(SENTENCES)
    assert answers == predicted(tmp_path, model, "text", SENTENCES) and len(set(answers)) > 2
    assert loaded.predict(pandas.DataFrame({"prompt": SENTENCES})) == answers
    beams = {"num_beams": 3, "max_new_tokens": 3, "length_penalty": 2.0}
    assert loaded.predict(SENTENCES * 9, params=beams) == predicted(tmp_path, model, "text", SENTENCES, **beams) * 9
    with pytest.raises(MlflowException, match="A prompt is empty"):
        loaded.predict(["a film", " "])
    if task == "seq2seq":  # transformers has no pipeline for it
        parts = mlflow.transformers.load_model(str(tmp_path / "mlflow/saved"), return_type="components")
        assert (type(parts["model"]).__name__, parts["tokenizer"].is_fast) == (T5, True)
    else:
        pipeline = mlflow.transformers.load_model(str(tmp_path / "mlflow/saved"))
        with pytest.raises(
            MlflowException, match="has 2048 positions, but 900. are needed: shorten the text, or make max_new_tokens smaller"
        ):
            loaded.predict(["it"], params={"max_new_tokens": 9000})
        assert pipeline.task == "text-generation" and type(pipeline.model).__name__ == LLAMA


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_chats_are_answered_as_by_predict(tmp_path, template):
    write_tokenizer(tmp_path / "source", template)
    model, served = trained(tmp_path / "model", tmp_path / "source", "causal_lm", messages="chat", end_token="<|im_end|>")
    loaded = saved(tmp_path, served)
    answers = loaded.predict(list(map(json.dumps, CHATS)))
    assert answers == predicted(tmp_path, model, "chat", CHATS) and len(set(answers)) > 1
    if template == PLAIN:  # the other one ignores that a prompt is asked for
        pipeline = mlflow.transformers.load_model(str(tmp_path / "mlflow/saved"))
        greedily = pipeline(CHATS, do_sample=False, return_full_text=False, **GENERATE)
        assert [found["generated_text"].removesuffix("<|im_end|>").strip() for (found,) in greedily] == answers
    assert json.loads(loaded.input_example[0])[0]["role"] == "user"
    with pytest.raises(MlflowException, match="up to where the assistant is to speak"):
        loaded.predict([json.dumps(CHAT)])


@pytest.mark.parametrize(
    ("label", "kind", "task", "code"),
    [
        ("label", "class", "text_classification", "served_classifier.py"),
        ("label", "classes", "text_classification", None),
        (None, "class", "causal_lm", "served_writer.py"),
        (None, "class", "seq2seq", "served_writer.py"),
        (None, "class", "masked_lm", None),
    ],
)
def test_what_is_served(tmp_path, monkeypatch, label, kind, task, code):
    """`label_kind` has its default also where nothing is classified."""
    prepared = SimpleNamespace(settings={"data": {"text": ["text"], "label": label}}, facts={"label_kind": kind, "pad_token_id": 0})
    monkeypatch.setattr(serving.tracked, "prepared", lambda *_: prepared)
    folder = tmp_path / "runs/tiny"
    write_checked(folder / "training/run.json", {"settings": {"train": {"task": {"use": task, "arguments": {}}}}})
    (folder / "selection/model").mkdir(parents=True)
    assert served_as(folder) is None
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (folder / "selection/model" / name).write_text("")
    found = served_as(folder)
    assert (found.code if found else None) == code


@pytest.mark.slow
def test_answers_are_those_of_the_evaluation_in_the_workflow(tmp_path):
    """Which registers the champion of each data set by itself."""
    write_summaries(tmp_path)
    write_chats(tmp_path)
    run_together(tmp_path, GENERATING, {name: {"train": configuration(name)["train"] | {"epochs": 2}} for name in ("summaries", "chats")})
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(store.uri)
    found = {}
    for model in store.client.search_registered_models():
        version = store.client.get_model_version_by_alias(model.name, "champion")
        name, loaded = version.tags["pipeline.run"].partition("-")[0], mlflow.pyfunc.load_model(f"models:/{model.name}@champion")
        with open(tmp_path / f"results/runs/{version.tags['pipeline.run']}/evaluation/test_predictions.csv", newline="") as file:
            rows = list(csv.DictReader(file))[:20]
        texts = [json.dumps(json.loads(row["text"])[:-1]) if name == "chats" else row["text"] for row in rows]
        assert loaded.predict(texts) == [row["generated"] for row in rows]
        found[name] = {param.name: param.default for param in loaded.metadata.signature.params if param.default is not None}
    assert found == {
        "answers": {"max_new_tokens": 5, "num_beams": 1},
        "summaries": {"max_new_tokens": 5, "num_beams": 2},
        "chats": {"max_new_tokens": 5, "num_beams": 1},
    }
