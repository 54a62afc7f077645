"""Steps whose weights an edit does not change are not repeated: the result equals a training from the start, bit for bit."""

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from distributed import forking
from distributed.running import MODEL, arguments, interrupted, log_of, losses, train
from safetensors.torch import load_file

from snaketrain.runtime.journal import read_events

pytest.importorskip("snaketrain.extras.shared_steps")

BASE: dict[str, Any] = {"epochs": 2, "schedule": "constant", "warmup": 5, "evaluate_every": 4}
# the edit, and the step after which it trains; the training has 22 steps, and keeps the checkpoints of 16 and 22
EDITS: dict[str, tuple[dict[str, Any], int]] = {
    "more epochs": ({"epochs": 3}, 22),
    "fewer epochs": ({"epochs": 1.5}, 16),
    "evaluated more often": ({"evaluate_every": 2}, 22),
    "saved more often": ({"save_every": 3}, 22),
    "no rollbacks": ({"rollbacks_allowed": 0}, 22),
    "a decay at the end": ({"schedule": {"use": "warmup_stable_decay", "arguments": {"decay": 0.2}}}, 16),
    "a patience that was never used up": ({"early_stopping": {"patience": 30}}, 22),
    "another metric": ({"metrics": {"mcc": {"use": "matthews_correlation"}}}, 22),
    "another seed": ({"seed": 1}, 0),
    "another rate": ({"learning_rate": 2e-3}, 0),
    "larger batches": ({"batch_size": 32}, 0),
}
MORE_EDITS: dict[str, tuple[dict[str, Any], int]] = {
    "a number of steps": ({"steps": 30}, 22),
    "fewer steps": ({"steps": 18}, 16),
    "evaluated by the epoch": ({"evaluate_every": None, "evaluations_per_epoch": 3}, 22),
    "saved by the clock": ({"save_every_minutes": 5}, 22),
    "no bad steps": ({"bad_steps_allowed": 0}, 22),
    "a decay in steps": ({"schedule": {"use": "warmup_stable_decay", "arguments": {"decay": 4}}}, 16),
    "a linear decay": ({"schedule": "linear"}, 0),  # its rates differ before the first checkpoint that is kept
    "a longer warm-up": ({"warmup": 8}, 0),
    "no weight decay": ({"weight_decay": 0.0}, 0),
    "no clipping": ({"clip_norm": None}, 0),
    "frozen embeddings": ({"freeze": ["bert.embeddings.*"]}, 0),
    "another optimizer": ({"optimizer": "torch.optim.SGD"}, 0),
    "a group of parameters": ({"groups": [{"match": "*.bias", "rate_scale": 0.5}]}, 0),
    "a group with a schedule": ({"groups": [{"match": "*.bias", "schedule": "linear"}]}, 0),
    "smoothed labels": ({"task": {"use": "text_classification", "arguments": {"label_smoothing": 0.1}}}, 0),
    "deterministic operations": ({"deterministic": True}, 0),
    "recomputed activations": ({"recompute_activations": True}, 0),
    "averaged weights": ({"callbacks": [{"use": "snaketrain.training.weight_average.Ema"}]}, 0),
    "batches by tokens": ({"batch_tokens": 200}, 0),
    "a wider model": ({"model": MODEL.model_copy(update={"arguments": MODEL.arguments | {"intermediate_size": 32}})}, 0),
}
ALL_EDITS = EDITS | MORE_EDITS


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    """A workspace with one finished run."""
    folder = tmp_path_factory.mktemp("finished")
    train(data, folder / "results/runs/first/training", **BASE)
    return folder


def weights(training: Path) -> dict:
    last = max((training / "checkpoints").glob("step-*"))
    return load_file(last / "model.safetensors") | {"step": int(last.name[5:])}


def attempts(training: Path) -> list[int]:
    return [line["resume_step"] for line in read_events(training / "journal.jsonl")[0] if line["event"] == "attempt"]


def assert_same(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.pop("step") == second.pop("step")
    assert all((first[name] == second[name]).all() for name in first)
    assert losses(one) == losses(other)


@pytest.mark.parametrize("edit", [*EDITS, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE_EDITS)])
def test_steps_of_the_same_trajectory_are_not_repeated(data, finished, tmp_path, edit):
    changes, expected = ALL_EDITS[edit]
    shutil.copytree(finished, tmp_path / "workspace")
    training = tmp_path / "workspace/results/runs/first/training"
    train(data, training, **BASE | changes)
    assert attempts(training) == [expected]
    if expected or edit in EDITS:  # of those that begin again, some are enough
        train(data, tmp_path / "fresh", **BASE | changes)
        assert_same(training, tmp_path / "fresh")


def test_another_metric_is_measured_at_the_kept_checkpoints(data, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "workspace")
    training = tmp_path / "workspace/results/runs/first/training"
    metrics = {"mcc": {"use": "matthews_correlation"}}
    train(data, training, **BASE | {"metrics": metrics})
    train(data, tmp_path / "fresh", **BASE | {"metrics": metrics})
    ours, fresh = (
        {line["step"]: line["metrics"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == "eval"}
        for folder in (training, tmp_path / "fresh")
    )
    assert sorted(ours) == [16, 22] and all(ours[step] == fresh[step] and "mcc" in ours[step] for step in ours)
    (reused,) = [line for line in read_events(training / "journal.jsonl")[0] if line["event"] == "reused"]
    assert reused["unknown"] == [4, 8, 12, 20]  # their weights were not kept
    assert "not evaluated: 4 steps that the settings ask for (4, 8, 12, 20), whose weights were not kept" in log_of(training).read_text()


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stopping_ends_where_it_would_have(data, finished, tmp_path, patience):
    shutil.copytree(finished, tmp_path / "workspace")
    training = tmp_path / "workspace/results/runs/first/training"
    settings = BASE | {"early_stopping": {"patience": patience, "min_change": 0.02}}
    train(data, training, **settings)
    train(data, tmp_path / "fresh", **settings)
    assert_same(training, tmp_path / "fresh")


def test_another_run_begins_where_it_branches_off_the_first(data, finished, tmp_path):
    """Also while the first one's last checkpoint is damaged."""
    shutil.copytree(finished, tmp_path / "workspace")
    runs = tmp_path / "workspace/results/runs"
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    train(data, runs / "longer/training", **BASE | {"epochs": 3})
    assert attempts(runs / "longer/training") == [22]
    assert {path: path.stat().st_mtime_ns for path in before} == before, "the first run's files are as they were"
    damaged = runs / "first/training/checkpoints/step-00000022/model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.unlink()
    damaged.write_bytes(content)
    shutil.rmtree(runs / "longer")
    train(data, runs / "longer/training", **BASE | {"epochs": 3})
    assert attempts(runs / "longer/training") == [16]
    assert "step-00000022 is not reused" in log_of(runs / "longer/training").read_text()
    train(data, tmp_path / "fresh", **BASE | {"epochs": 3})
    assert_same(runs / "longer/training", tmp_path / "fresh")


def test_a_colleague_trains_only_the_steps_that_nobody_has_shared(data, tmp_path):
    """Of another workspace, through a folder in which the first training has left its checkpoints; equal to a training from the start."""
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (tmp_path / "members").write_text(f"alice {key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()}\n")
    cache = json.dumps({"at": str(tmp_path / "cache"), "members": str(tmp_path / "members"), "key": str(tmp_path / "key")})
    theirs, mine = (tmp_path / f"{name}/results/runs/first/training" for name in ("alice", "bob"))
    for training, settings in ((theirs, BASE), (mine, BASE | {"epochs": 3})):
        training.parent.mkdir(parents=True)
        assert forking.run([*arguments(data, training, **settings), "--steps-cache", cache], 1, log_of(training)) == [0]
    assert attempts(mine) == [22] and reused_event(mine)["message"] == "took over 22 of 33 steps from the cache: run first of alice"
    train(data, tmp_path / "fresh", **BASE | {"epochs": 3})
    assert_same(mine, tmp_path / "fresh")


OWN_STRATEGY = """
from snaketrain.strategies.ddp import Single# noqa: E402
from snaketrain.strategies.ddp import Single


class Mine(Single):
    def __init__(self, every=1, **others):
        super().__init__(**others)
        self.every = every
"""


def test_runs_that_are_executed_otherwise_take_their_own_steps(data, finished, tmp_path):
    """Each with its own speed, and losses that equal those of a training alone, also where only an argument of an own strategy differs."""
    shutil.copytree(finished, tmp_path / "workspace")
    runs = tmp_path / "workspace/results/runs"
    (tmp_path / "mine.py").write_text(OWN_STRATEGY)
    others: dict[str, tuple[int, dict[str, Any]]] = {
        "in two": (2, {}),
        "sharded": (2, {"strategy": "fairscale_oss"}),
        "accumulated": (1, {"accumulate": 2}),
        "every 1": (1, {"strategy": {"use": f"{tmp_path}/mine.py:Mine", "arguments": {"every": 1}}}),
        "every 16": (1, {"strategy": {"use": f"{tmp_path}/mine.py:Mine", "arguments": {"every": 16}}}),
    }
    for name, (processes, settings) in others.items():
        train(data, runs / name / "training", processes, **BASE | settings)
        assert attempts(runs / name / "training") == [0], name
        assert len(speeds(runs / name / "training")) == 22
    train(data, runs / "in two, longer/training", 2, **BASE | {"epochs": 3})
    assert attempts(runs / "in two, longer/training") == [22]
    assert reused_event(runs / "in two, longer/training")["message"] == "took over 22 of 33 steps from run in two"


def test_what_is_taken_over_has_no_speed_and_no_time_of_the_other(data, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "workspace")
    began, training = time.time(), tmp_path / "workspace/results/runs/longer/training"
    train(data, training, **BASE | {"epochs": 3})
    events = read_events(training / "journal.jsonl")[0]
    taken_over = [event for event in events if event["attempt"] <= 0]
    assert sorted(losses(training)) == list(range(1, 34))
    assert min(event["time"] for event in events) >= began and "system" not in {event["event"] for event in taken_over}
    assert sorted(speeds(training)) == list(range(23, 34)) and not any("spent" in event for event in taken_over)


def speeds(training: Path) -> dict[int, float]:
    lines = [line for line in read_events(training / "journal.jsonl")[0] if line["event"] == "train"]
    return {line["step"]: line["metrics"]["examples_per_second"] for line in lines if "examples_per_second" in line["metrics"]}


def reused_event(training: Path) -> dict[str, Any]:
    (event,) = [line for line in read_events(training / "journal.jsonl")[0] if line["event"] == "reused"]
    return event


def test_a_branch_says_why_it_does_not_continue_its_trunk(data, tmp_path):
    settings: dict[str, Any] = {"warmup": 3, "schedule": {"use": "warmup_stable_decay", "arguments": {"decay": 4}}, "steps": 12}
    trunk, branch = tmp_path / "results/trunks/8-steps/training", tmp_path / "results/runs/branch/training"
    train(data, trunk, 2, **settings)
    branch.parent.mkdir(parents=True)
    words = [*arguments(data, branch, **settings), "--trunk", str(trunk / "manifest.json")]
    assert forking.run(words, 1, log_of(branch)) == [0]
    assert attempts(branch) == [0]
    expected = "no step of trunk 8-steps is taken over: it is executed otherwise (strategy Ddp, here Single; processes 2, here 1)"
    assert expected in log_of(branch).read_text()


def test_reusing_steps_starts_over_after_a_kill(data, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "workspace")
    runs = tmp_path / "workspace/results/runs"
    half = runs / "second/training"
    shutil.copytree(runs / "first/training/checkpoints/step-00000022", half / "checkpoints/step-00000022")
    (half / "checkpoints/.step-00000016").mkdir()
    (half / "reused.json").write_text("{}")
    (half / "journal.jsonl").write_text('{"event": "train", "step": 1, "metrics": {"loss": 1}, "attempt": -1}\n')
    train(data, half, **BASE | {"epochs": 3})
    assert attempts(half) == [22] and sorted(losses(half)) == list(range(1, 34))


def test_branches_of_a_trunk_equal_trainings_from_the_start(data, tmp_path):
    """Each is killed and resumed once."""
    decay = {"use": "warmup_stable_decay", "arguments": {"decay": 4}}
    settings: dict[str, Any] = {"warmup": 3, "schedule": decay, "evaluate_every": 5}
    runs, trunk = tmp_path / "results/runs", tmp_path / "results/trunks/19-steps/training"
    trunk.parent.mkdir(parents=True)
    words = [*arguments(data, trunk, steps=26, **settings), "--branch-steps", "9", "19"]
    assert interrupted(forking.start(words, 1, log_of(trunk)), signal.SIGKILL, (trunk / "checkpoints/step-00000010").exists)
    assert forking.run(words, 1, log_of(trunk)) == [0]
    assert (trunk / "checkpoints/step-00000009").exists() and weights(trunk)["step"] == 19
    for steps, leaves in ((12, 9), (22, 19), (26, 19)):
        branch, fresh = runs / f"{steps}/training", tmp_path / f"fresh-{steps}"
        branch.parent.mkdir(parents=True)
        words = [*arguments(data, branch, steps=steps, **settings), "--trunk", str(trunk / "manifest.json")]
        interrupted(forking.start(words, 1, log_of(branch)), signal.SIGKILL, (branch / "reused.json").exists)
        assert forking.run(words, 1, log_of(branch)) == [0]
        train(data, fresh, steps=steps, **settings)
        assert_same(branch, fresh)
        assert evaluations_of(branch) == evaluations_of(fresh)
        assert [path.name for path in sorted(branch.glob("checkpoints/*"))] == [path.name for path in sorted(fresh.glob("checkpoints/*"))]
        assert attempts(branch)[0] == leaves and json.loads((branch / "trunk.json").read_text())["trunk"] == "19-steps"
    assert forking.run(arguments(data, branch, steps=steps, **settings), 1, log_of(branch)) == [0]
    assert not (branch / "trunk.json").exists(), "this start had no trunk"


def evaluations_of(training: Path) -> dict[int, dict[str, float]]:
    return {line["step"]: line["metrics"] for line in read_events(training / "journal.jsonl")[0] if line["event"] == "eval"}
