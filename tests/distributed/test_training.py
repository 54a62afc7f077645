"""Real processes: the same losses on any number of them, and resuming."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import limits
import pyarrow
import pytest
import torch
from distributed import forking
from distributed.running import MODEL, command, interrupted, launch, log_of, losses, start, train
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from transformers import BertConfig, BertForSequenceClassification

from snaketrain.config.schema import Model
from snaketrain.runtime.journal import ACTIVITIES, goodput, read_events
from snaketrain.runtime.manifests import damage, read_manifest


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    train(data, folder)
    return folder


@pytest.mark.parametrize(("processes", "accumulate"), [(1, 3), (2, 1), (2, 2), (4, 1)])
def test_losses_are_equal_on_any_number_of_processes(data, alone, tmp_path, processes, accumulate):
    run = launch if (processes, accumulate) == (2, 1) else train  # once with torchrun
    found, expected = run(data, tmp_path, processes, accumulate=accumulate), losses(alone)
    assert len(expected) > 20
    assert found == pytest.approx(expected, rel=1e-5)
    last = [json.loads((folder / "manifest.json").read_text())["facts"]["checkpoints"] for folder in (tmp_path, alone)]
    for step, metrics in last[1].items():
        if step in last[0]:
            assert last[0][step] == pytest.approx(metrics, rel=1e-4)


def test_the_journal_has_the_development_metrics_that_transformers_computes(data, tmp_path):
    """The metrics of the saved weights, text by text in a plain loop; the model has dropout, which an evaluation must switch off."""
    dropout = MODEL.arguments | {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    train(data, tmp_path, model=Model(use=MODEL.use, arguments=dropout), epochs=3)
    weights = load_torch(max((tmp_path / "checkpoints").glob("step-*")) / "model.safetensors")
    model = BertForSequenceClassification(BertConfig.from_pretrained(tmp_path / "description")).eval()
    model.load_state_dict(weights)
    rows = pyarrow.ipc.open_file(str(data.parent / "dev.arrow")).read_all().to_pylist()
    with torch.no_grad():
        logits = torch.cat([model(torch.tensor([row["input_ids"]])).logits for row in rows])
    labels = torch.tensor([row["label"] for row in rows])
    found = [line["metrics"] for line in read_events(tmp_path / "journal.jsonl")[0] if line["event"] == "eval"][-1]
    assert found["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-4)
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


@pytest.mark.slow
def test_save_every_minutes_saves_at_the_same_steps_on_all_ranks(data, tmp_path):
    """With torchrun: rank 0's clock decides. If another rank did not save, this test would hang."""
    seconds = 0.2
    launch(data, tmp_path, 2, save_every_minutes=seconds / 60, evaluate_every=1000, steps=150)
    saved = [line for line in read_events(tmp_path / "journal.jsonl")[0] if line["event"] == "checkpoint"]
    assert [line["step"] for line in saved] == sorted({line["step"] for line in saved}) and saved[-1]["step"] == 150
    assert len(saved) > 3, "no evaluation asks for any but the last"
    between = saved[-2]["time"] - saved[0]["time"]  # on a busy machine a save may be reported late, just before the next one
    assert between > (len(saved) - 3) * seconds / 2


def test_a_training_stopped_by_a_signal_resumes_bit_for_bit(data, tmp_path):
    """With dropout, for which a resumed training must draw the same numbers as an uninterrupted one."""
    model = Model(use=MODEL.use, arguments=MODEL.arguments | {"hidden_dropout_prob": 0.1})
    longer = {"epochs": 12, "evaluations_per_epoch": 1, "model": model}
    train(data, tmp_path / "whole", **longer)
    pids = start(data, tmp_path / "parts", **longer)
    assert interrupted(pids, signal.SIGTERM, lambda: len(losses(tmp_path / "parts")) >= 20) == [75]  # to be started again
    reached = max(losses(tmp_path / "parts"))
    assert reached < max(losses(tmp_path / "whole"))
    train(data, tmp_path / "parts", **longer)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")


def test_a_killed_training_resumes_bit_for_bit(data, tmp_path):
    longer = {"epochs": 12, "evaluations_per_epoch": 1}
    train(data, tmp_path / "whole", **longer)
    pids = start(data, tmp_path / "parts", **longer)
    assert interrupted(pids, signal.SIGKILL, lambda: list((tmp_path / "parts/checkpoints").glob("step-*"))) == [-signal.SIGKILL]
    train(data, tmp_path / "parts", **longer)
    assert [line["event"] for line in read_events(tmp_path / "parts/journal.jsonl")[0]].count("attempt") == 2
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")


def test_the_seconds_of_a_training_killed_and_resumed_add_up(data, tmp_path):
    longer, began = {"epochs": 30, "evaluations_per_epoch": 1}, time.time()
    process = subprocess.Popen(command(data, tmp_path, **longer), env=os.environ | {"OMP_NUM_THREADS": "1"})
    limits.until(lambda: (tmp_path / "checkpoints").is_dir() and max(losses(tmp_path), default=0) % 12 > 8, process=process)
    process.kill()
    process.wait()
    time.sleep(1)
    train(data, tmp_path, **longer)
    events = read_events(tmp_path / "journal.jsonl")[0]
    found = goodput(events)
    assert found.pop("wall") == pytest.approx(events[-1]["time"] - began, rel=0.02)
    share = found.pop("goodput")
    assert 0 < share < 1 and sum(found.values()) == pytest.approx(events[-1]["time"] - began, rel=0.02)
    assert found["away"] > 1 and found["recomputed"] > 0 and all(found[name] > 0 for name in ACTIVITIES)


def test_other_settings_start_fresh_and_move_the_old_folder_aside(data, tmp_path):
    first = train(data, tmp_path / "run/training", epochs=1)
    second = train(data, tmp_path / "run/training", epochs=1, seed=5)
    assert first != second
    (aside,) = (tmp_path / "run/superseded").iterdir()
    assert losses(aside) == first


def test_the_previous_checkpoint_replaces_a_damaged_one(data, tmp_path):
    train(data, tmp_path, epochs=1)
    *_, before, last = sorted((tmp_path / "checkpoints").glob("step-*"))
    content = bytearray((last / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (last / "model.safetensors").write_bytes(content)
    log_of(tmp_path).unlink()
    train(data, tmp_path, epochs=1)
    (told,) = (line for line in log_of(tmp_path).read_text().splitlines() if line.startswith(f"warning: {last / 'model.safetensors'}: "))
    assert "the steps from there on are repeated" in told
    attempts = [line["resume_step"] for line in read_events(tmp_path / "journal.jsonl")[0] if line["event"] == "attempt"]
    assert attempts == [0, int(before.name.removeprefix("step-"))]


def test_an_edited_earlier_checkpoint_of_an_unfinished_training_is_noticed(data, tmp_path):
    """Whose metrics would make it the best one: a resume reads the last alone."""
    longer = {"epochs": 12, "evaluations_per_epoch": 1}
    pids, folder = start(data, tmp_path, **longer), tmp_path / "checkpoints"
    interrupted(pids, signal.SIGKILL, lambda: len(list(folder.glob("step-*/state.json"))) > 1)
    path = min(folder.glob("step-*/state.json"))
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"metrics": {name: float(name != "loss") for name in state["metrics"]}}))
    train(data, tmp_path, **longer)
    assert damage(read_manifest(tmp_path / "manifest.json")) == {str(path.relative_to(tmp_path)): "is not what was written"}
    log_of(tmp_path).unlink()
    train(data, tmp_path, **longer)
    assert f"warning: {path}: is not what was written; the steps from there on are repeated" in log_of(tmp_path).read_text()
    assert damage(read_manifest(tmp_path / "manifest.json")) == {}


READS = """
from pathlib import Path

from snaketrain import Callback


class Reads(Callback):
    def on_train_start(self, state):
        Path(__file__).with_name("factor.txt").read_text()
"""


def test_a_file_that_own_code_has_read_may_not_change_in_the_middle(data, tmp_path):
    """Nor may the steps that followed from it be taken over."""
    own, training = tmp_path / "own", tmp_path / "run/training"
    own.mkdir()
    (own / "reads.py").write_text(READS)
    (own / "factor.txt").write_text("1")
    longer = {"epochs": 12, "evaluations_per_epoch": 1, "callbacks": [{"use": f"{own}/reads.py:Reads"}]}

    interrupted(start(data, training, **longer), signal.SIGKILL, (training / "loaded.json").exists)
    (own / "factor.txt").write_text("2")
    train(data, training, **longer)
    assert [line["resume_step"] for line in read_events(training / "journal.jsonl")[0] if line["event"] == "attempt"] == [0]
    assert len(list((tmp_path / "run/superseded").iterdir())) == 1
    assert f"belonged to other settings or code (code.({own}/factor.txt))" in log_of(training).read_text()


def assert_same_weights(one: Path, other: Path) -> None:
    files = [max((folder / "checkpoints").glob("step-*")) / "model.safetensors" for folder in (one, other)]
    first, second = map(load_file, files)
    assert files[0].parent.name == files[1].parent.name
    assert all((first[name] == second[name]).all() for name in first)


def test_a_failure_is_the_last_line_of_the_journal(data, tmp_path):
    assert forking.wait(start(data, tmp_path, optimizer={"use": "torch.optim.AdamW", "arguments": {"epsilon": 1}})) == [1]
    last = read_events(tmp_path / "journal.jsonl")[0][-1]
    assert (last["event"], last["status"]) == ("end", "FAILED")
    assert "epsilon" in last["error"]
    assert "the training failed" in (tmp_path / "logs/rank-0.log").read_text()


def test_it_stops_early_when_the_metric_no_longer_improves(data, tmp_path):
    train(data, tmp_path, epochs=10, learning_rate=1e-9, early_stopping={"patience": 2, "min_change": 0.01})
    done = json.loads((tmp_path / "manifest.json").read_text())["facts"]["steps"]
    events = read_events(tmp_path / "journal.jsonl")[0]
    evaluated = [line["step"] for line in events if line["event"] == "eval"]
    assert evaluated[-1] == done and len(evaluated) == 1 + 3  # the first evaluation, and two without improvement
    assert events[-1]["why"].endswith("has not improved in 2 evaluations")
