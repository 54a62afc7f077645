"""A real training is verified, and each of its steps is looked at."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import limits
import pyarrow
import pytest
import torch
from distributed.running import MODEL, losses, train
from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY, prepared
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from unit.points import make, module_of

from snaketrain.data.loading.training_data import Items
from snaketrain.extras.reproduce import inspect_step
from snaketrain.extras.reproduce.replaying import Recorded
from snaketrain.extras.reproduce.verify import draw
from snaketrain.runtime.manifests import damage, read_checked, read_manifest, write_checked, write_json
from snaketrain.tasks.base import Task
from snaketrain.training.checkpoints.publishing import LISTING, flushed, read_listing
from snaketrain.training.trainer import Trainer

FOLDER = REPOSITORY / "workflow/scripts/snaketrain/extras/reproduce"
DROPOUT = MODEL.model_copy(update={"arguments": MODEL.arguments | {"hidden_dropout_prob": 0.1}})


@pytest.fixture(scope="module")
def made(made_once, tmp_path_factory) -> Path:
    """A workspace with a training of 22 steps, which has kept some of its checkpoints."""
    folder = Path(shutil.copytree(made_once("prepared", prepared), tmp_path_factory.mktemp("made") / "workspace", symlinks=True))
    (data,) = folder.glob("results/data/*/manifest.json")
    train(data, folder / "results/runs/first/training", model=DROPOUT, evaluate_every=6)
    return folder


@pytest.fixture
def workspace(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "workspace", symlinks=True))


def command(folder: Path, script: str, *words: object) -> list[str]:
    return [warm_python(), str(FOLDER / f"{script}.py"), "first", "--results", str(folder / "results"), *map(str, words)]


def run(folder: Path, script: str, *words: object, code: int = 0) -> str:
    done = subprocess.run(command(folder, script, *words), capture_output=True, text=True, timeout=limits.seconds(300))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def training(folder: Path) -> Path:
    return folder / "results/runs/first/training"


def checkpoints(folder: Path) -> list[int]:
    return Recorded(folder / "results", "first").checkpoints


def test_intervals_are_replayed_and_equal(workspace):
    kept = checkpoints(workspace)
    told = run(workspace, "verify", "--segments", 2, "--seed", 1, "--jobs", 2)
    assert f"first: replays 2 of {len(kept) - 1} intervals, " in told and "2 of 2 intervals are equal, bit for bit" in told
    found = read_checked(training(workspace) / "verified.json")
    assert [each["differences"] for each in found["intervals"]] == [[], []] and not found["damage"]
    assert all(each["compared"] > 40 and each["last"] == kept[kept.index(each["first"]) + 1] for each in found["intervals"])
    assert damage(read_manifest(training(workspace) / "manifest.json")) == {}
    assert checkpoints(workspace) == kept
    assert (
        "There are: first."
        in subprocess.run(
            [sys.executable, FOLDER / "verify.py", "frist", "--results", workspace / "results"], capture_output=True, text=True
        ).stderr
    )


def test_a_flipped_bit_and_an_edited_line_are_told_by_step(workspace):
    first, last = checkpoints(workspace)[-2:]
    checkpoint = training(workspace) / f"checkpoints/step-{last:08d}"
    weights = load_file(checkpoint / "model.safetensors")
    name = max(weights, key=lambda each: weights[each].numel())
    weights[name].view(-1).view(torch.int32)[5] ^= 1  # the last bit of a number
    (checkpoint / "model.safetensors").unlink()
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    told = run(workspace, "verify", code=1)
    assert f"step {last}: the checkpoint is damaged: model.safetensors is not what was written" in told
    write_json(checkpoint / LISTING, {file: flushed(checkpoint / file) for file in read_listing(checkpoint) or {}})
    journal = training(workspace) / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    (edited,) = (line for line in lines if line["event"] == "train" and line["step"] == 3)
    edited["metrics"]["loss"] -= 1e-9
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = run(workspace, "verify", code=1)
    assert "journal.jsonl: is not what was written" in told  # by the digest in the manifest
    assert f"step 3: train/loss is {edited['metrics']['loss']!r} in the journal" in told
    assert f"step {last}: model: {name}: element 5 is " in told and f"steps {first + 1} to {last}: replayed in " in told


@pytest.mark.slow
def test_the_weights_that_an_interval_begins_with_count_too(workspace):
    """Here only the last checkpoint is found to differ: what comes before it is not drawn."""
    first, last = checkpoints(workspace)[-2:]
    checkpoint = training(workspace) / f"checkpoints/step-{first:08d}"
    weights = load_file(checkpoint / "model.safetensors")
    name = next(each for each in weights if each.endswith("intermediate.dense.weight"))
    weights[name].view(-1)[0] += 1e-3
    (checkpoint / "model.safetensors").unlink()
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    write_json(checkpoint / LISTING, {file: flushed(checkpoint / file) for file in read_listing(checkpoint) or {}})
    told = run(workspace, "verify", code=1)
    assert f"steps {first + 1} to {last}: replayed in " in told and f"step {first}: model: {name}: element 0" in told
    assert f"step {last}: model: " in told


def test_ctrl_c_ends_the_replays(workspace):
    verifying = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, *command(workspace, "verify")[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(workspace)},
    )
    limits.until(lambda: list(workspace.glob("verify-*/*/training.log")), 60)
    verifying.send_signal(signal.SIGINT)
    _, told = verifying.communicate(timeout=limits.seconds(60))
    assert verifying.returncode == 130 and "its replays were ended" in told
    assert not list(workspace.glob("verify-*")) and not (training(workspace) / "verified.json").exists()
    time.sleep(0.5)
    assert not [each for each in Path("/proc").glob("[0-9]*/cmdline") if str(workspace).encode() in read(each)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def test_a_step_is_shown_with_its_examples(workspace, tmp_path):
    kept = checkpoints(workspace)[1]
    told = run(workspace, "inspect_step", "--step", kept + 2, "--examples", 3, "--csv", tmp_path / "all.csv").splitlines()
    assert told[0] == f"first: continues from step {kept}, 1 steps before step {kept + 2}"
    assert told[1].startswith(f"steps {kept + 1} to {kept + 1}: replayed in ")
    assert told[3] == "the loss in its line of the journal is equal, bit for bit"
    assert sum("sentences.csv, line " in line for line in told) == 3, told
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    hardest = [float(row["loss"]) for row in rows]
    assert len(rows) == 16 and hardest == sorted(hardest, reverse=True)
    assert f"mean of their losses is {sum(hardest) / 16:.6g}" in told[4]
    assert "--step: 23 is not one of the steps" in run(workspace, "inspect_step", "--step", 23, code=1)


def test_a_step_before_the_first_line_of_the_journal_can_be_shown(workspace, monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(inspect_step, "losses", lambda events: {})
    monkeypatch.setattr(inspect_step, "reached", lambda recorded, step, folder: asked.append(step))
    monkeypatch.setattr(inspect_step, "taken", lambda *given: [])
    monkeypatch.chdir(workspace)  # which it makes the working directory
    monkeypatch.setattr("sys.argv", ["inspect", "first", "--step", str(checkpoints(workspace)[-1])])
    assert inspect_step.main() == 0 and asked == [checkpoints(workspace)[-1]]


def test_a_batch_whose_examples_are_compared_is_not_divided(workspace, monkeypatch, tmp_path):
    monkeypatch.chdir(workspace)
    given: list[int] = []
    monkeypatch.setattr(Trainer, "from_settings", lambda train, *_, **__: given.append(train.accumulate))
    recorded = Recorded(workspace / "results", "first")
    recorded.run["environment"]["processes"] = 2
    for whole in (False, True):
        monkeypatch.setattr(Task, "whole_batches", whole)
        inspect_step.trainer_of(recorded.replay(0, 1, tmp_path))
    assert given == [2, 1]


def test_an_example_by_itself_has_the_loss_and_gradient_of_a_plain_loop(tmp_path):
    trainer = make(tmp_path)
    model = module_of(trainer)
    for number in range(5):
        batch = trainer.data.train.batch([number])
        loss = cross_entropy(model(batch["places"]), batch["classes"])
        norm = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]).norm()
        assert inspect_step.by_itself(trainer, number, 0) == (pytest.approx(loss.item()), pytest.approx(norm.item()), 1)
        assert all(parameter.grad is None for parameter in model.parameters())


def test_an_example_of_a_mixture_is_shown_from_its_own_set(tmp_path, monkeypatch):
    """Its sets are not in the order of the configuration."""
    monkeypatch.chdir(tmp_path)
    Path("web.csv").touch()
    table = pyarrow.table({"line": [7, 8, 2], "text": ["a question", "b", "c"], "text_pair": ["its context", "d", "e"]})
    examples = SimpleNamespace(table=table, lengths=SimpleNamespace(sets={"code": [1, 1], "train": [1]}))
    trainer = SimpleNamespace(train=SimpleNamespace(block_length=None), data=SimpleNamespace(train=examples))
    data = {"train": {"path": "web.csv"}, "train_sets": {"code": {"path": "code-*.csv"}}}
    describe = inspect_step.descriptions(trainer, SimpleNamespace(settings={"data": data}))
    assert [describe(number) for number in (0, 2)] == [("code, line 7", "a question | its context"), ("web.csv, line 2", "c | e")]


def test_examples_that_a_loss_compares_have_none_by_themselves(monkeypatch, capsys):
    trainer = SimpleNamespace(planned=SimpleNamespace(stream=None), state=SimpleNamespace(task=SimpleNamespace(whole_batches=True)))
    assert inspect_step.each_example(trainer, None, None) == [] and "none has one by itself" in capsys.readouterr().out


@pytest.mark.parametrize(("texts", "text"), [({"texts": ["a", "a prompt", "c"]}, "a prompt"), ({}, "")])
def test_an_item_of_a_dataset_class_is_shown_by_its_text(texts, text):
    items = Items(SimpleNamespace(**texts), "train", [2, 1], [], 0)
    trainer = SimpleNamespace(train=SimpleNamespace(block_length=None), data=SimpleNamespace(train=items))
    assert inspect_step.descriptions(trainer, SimpleNamespace(facts={"datasets": {}}))(1) == ("item 1", text)


def test_texts_are_shown_on_a_line_without_control_characters(capsys):
    inspect_step.show([inspect_step.Example(3, 0.5, 1.0, 1, "line 4", "good\nfilm\x1b[2J\u202e" + 100 * "x")], 1)
    *_, line = capsys.readouterr().out.splitlines()
    assert "line 4" in line and r"good\nfilm\x1b[2J\u202exxx" in line and line.endswith("xxx...") and line.isprintable()


def test_what_cannot_be_equal_is_told_first(workspace, capsys, monkeypatch):
    monkeypatch.chdir(workspace)
    first, second, *_ = checkpoints(workspace)[1:]
    journal = training(workspace) / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    alone = lines[0] | {"resume_step": first}
    lines[0]["execution"] = lines[0]["execution"] | {"processes": 2}
    at = next(n for n, line in enumerate(lines) if line.get("step") == first + 1)
    journal.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:at], alone, *lines[at:]]))
    recorded = Recorded(workspace / "results", "first")
    drawn = draw(recorded, 9, 0)
    assert drawn[0].first == first and len(drawn) == len(recorded.checkpoints) - 2
    assert (
        f"not replayed: steps 1 to {first}, which were executed otherwise than the last ones: processes 2, here 1"
        in capsys.readouterr().out
    )
    recorded.run["mixed"] = [{"step": first, "changed": ["train.seed"]}]
    assert draw(recorded, 9, 0)[0].first == second
    recorded.run["environment"]["device"], recorded.run["versions"] = "cuda", recorded.run["versions"] | {"numpy": "1.0"}
    recorded.run["code"] = {"snaketrain.training.step": "0123", "own/task.py": "4567"}
    write_checked(training(workspace) / "microbatches.json", {"microbatches": 2})
    recorded.tell_differences()
    told = capsys.readouterr().out
    assert "note: the memory ran out, and later steps were computed in 2 microbatches" in told
    assert "differs: the code: snaketrain.training.step was changed" in told and "own/task.py was changed" in told
    assert "differs: versions: numpy 1.0 (now " in told and "on a GPU without train.deterministic" in told


def opened(folder: Path, step: int, at: Path) -> float:
    """The loss of a step, from the lines that are printed."""
    recorded = Recorded(folder / "results", "first")
    replay = inspect_step.reached(recorded, step, at)
    inspect_step.taken(replay, step, losses(training(folder))[step])
    return losses(replay.made)[step]


@pytest.mark.slow
def test_the_losses_of_all_steps_are_those_of_the_journal(workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(sys, "executable", warm_python())
    expected = losses(training(workspace))
    assert len(expected) == 22
    assert {step: opened(workspace, step, tmp_path / str(step)) for step in expected} == expected
