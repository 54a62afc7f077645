"""Generated answers of sharded models equal those of one process; ranks that need different numbers of tokens wait for each other."""

import csv
import json
import random
from pathlib import Path

import pytest
from distributed.running import train
from distributed.test_language_models import evaluations, run
from grammar import END, WORDS, write_word_tokenizer

from snaketrain.config.schema import Data, Model
from snaketrain.runtime.journal import read_events

T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0, "initializer_factor": 4.0}
LLAMA = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64}
CASES = {
    "seq2seq": (Model(use="transformers.T5ForConditionalGeneration", arguments=T5), {"text": "question", "target": "answer"}, "fsdp"),
    "causal_lm": (
        Model(use="transformers.LlamaForCausalLM", arguments=LLAMA | {"initializer_range": 0.5}),
        {"text": ["question", "answer"]},
        "tensor_parallel",
    ),
    "causal_lm by context": (  # single tokens cannot be cut
        Model(use="transformers.LlamaForCausalLM", arguments=LLAMA | {"initializer_range": 0.5, "num_hidden_layers": 2}),
        {"text": ["question", "answer"]},
        {"use": "mesh", "arguments": {"context": -1, "loss_parallel": True}},
    ),
}


def prepare(folder: Path, columns: dict) -> Path:
    """Answers repeat the first word of the question as often as the question has words."""
    draw = random.Random(0)
    questions = [draw.choices(WORDS, k=draw.randint(1, 4)) for _ in range(60)]
    rows = [{"question": " ".join(words), "answer": " ".join([words[0]] * len(words))} for words in questions]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_word_tokenizer(folder / "tokenizer")
    settings = {"train": {"path": "rows.jsonl"}, "tokenizer": {"path": "tokenizer"}, "label": None, "end_token": END}
    data = Data.model_validate(settings | columns)
    run(folder, "fetch_data", "raw", [], {"data": data.as_json})
    run(folder, "fetch_source", "model", [], {"source": data.tokenizer.as_json})
    run(folder, "prepare_data", "data", ["--raw", "raw/manifest.json", "--tokenizer", "model/manifest.json"], {"data": data.as_json})
    return folder / "data/manifest.json"


def generated(folder: Path, data: Path, processes: int) -> list[str]:
    options = ["--training", "training/manifest.json", "--data", str(data), "--selection", "selection/manifest.json"]
    settings = {"evaluate": {"batch_size": 4, "generate": {"max_new_tokens": 6}}}
    run(folder, "evaluate_model", f"evaluation-{processes}", [*options, "--run-name", "test", "--device", "cpu"], settings, processes)
    with open(folder / f"evaluation-{processes}/dev_predictions.csv", newline="") as file:
        return [row["generated"] for row in csv.DictReader(file)]


@pytest.mark.parametrize("task", ["seq2seq", "causal_lm", pytest.param("causal_lm by context", marks=pytest.mark.slow)])
def test_answers_are_those_of_one_process(tmp_path, task):
    model, columns, strategy = CASES[task]
    data = prepare(tmp_path, columns)
    use = {"use": task.partition(" ")[0], "arguments": {"generate": {"max_new_tokens": 5}}}
    settings = {"model": model, "task": use, "strategy": strategy, "batch_size": 12, "epochs": 2, "evaluations_per_epoch": 1}
    train(data, tmp_path / "training", 2, **settings)
    assert {"exact_match", "bleu"} <= evaluations(tmp_path / "training")[-1].keys()
    run(
        tmp_path,
        "select_checkpoint",
        "selection",
        ["--training", "training/manifest.json", "--data", str(data)],
        {"select": {"metric": "loss"}},
    )
    two = generated(tmp_path, data, 2)
    assert two == generated(tmp_path, data, 1)
    assert len(set(map(len, two))) > 1, "some ranks generate longer than others"
    shown = [line for line in read_events(tmp_path / "training/journal.jsonl")[0] if line["event"] == "samples"]
    assert [line["step"] for line in shown] == [0, 4, 8]
    assert shown[-1]["samples"][0].keys() == {"prompt", "reference", "generated"}
    assert "reference" in (tmp_path / "training/logs/rank-0.log").read_text()
