"""Passwords and tokens, planted wherever one may have got to, are nowhere in what MLflow holds."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from workspace import make_workspace

from snaketrain.credentials import hidden
from snaketrain.manifests import write_json, write_text
from snaketrain.settings import Tracking
from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import Store

IN_ADDRESS, IN_ENVIRONMENT, TOKEN = "planted-password-1", "planted-password-2", "planted-token-3"
ADDRESS = f"https://anna:{IN_ADDRESS}@data.example/reviews.csv"


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Path:
    """A finished run whose settings, notes, data, logs, errors and reasons hold passwords."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", IN_ENVIRONMENT)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    everything = f"{ADDRESS} {IN_ENVIRONMENT} {TOKEN}"
    results = make_workspace(tmp_path, {"first": {"data.train.path": ADDRESS, "train.task.arguments": {"key": TOKEN}}})
    training = results / "runs/first/training"
    run = json.loads((training / "run.json").read_text())
    run |= {"notes": everything, "environment": {"host": everything}, "data": run["data"] | {"name": f"phrases {TOKEN}"}}
    write_json(training / "run.json", run)
    (training / "logs").mkdir()
    (training / "logs/rank-0.log").write_text(everything)
    for name in ("code.diff", "packages.txt", "code/own/task.py"):
        write_text(training / name, everything)
    write_json(training.parent / "reasons.json", {"train_model": {"reason": everything}})
    with open(training / "journal.jsonl", "a") as journal:
        journal.write(json.dumps({"event": "end", "status": "FAILED", "error": everything, "time": 1.7e9, "attempt": 1}) + "\n")
    predictions = training.parent / "evaluation/test_predictions.csv"
    predictions.write_text(predictions.read_text() + everything)
    return results


def test_nowhere_in_mlflow(planted):
    folder = planted.parent
    follower = Follower(planted, Store(f"sqlite:///{folder}/mlflow.db"))
    for training in follower.runs():
        follower.update(training)
    follower.show("http://ui")
    held = [folder / "mlflow.db", *(path for path in (folder / "mlartifacts").rglob("*") if path.is_file())]
    assert len(held) > 10 and any(b"https://***@data.example" in path.read_bytes() for path in held)
    for secret in (IN_ADDRESS, IN_ENVIRONMENT, TOKEN):
        assert [path for path in held if secret.encode() in path.read_bytes() or secret in path.name] == []


def test_refused_in_the_settings():
    with pytest.raises(ValidationError, match="MLFLOW_TRACKING_PASSWORD"):
        Tracking(uri=f"https://anna:{IN_ADDRESS}@tracking.example")
    assert Tracking(uri="https://tracking.example:8080/mlflow").uri


def test_what_is_hidden_and_what_is_not(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefgh")
    monkeypatch.setenv("SHORT_TOKEN", "a")
    assert (
        hidden("s3: abcdefgh; https://a:b@host/x, https://host:80/y, mail@example.org")
        == "s3: ***; https://***@host/x, https://host:80/y, mail@example.org"
    )
