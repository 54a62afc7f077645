"""Passwords and tokens, planted wherever one could be, do not occur in MLflow's records."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import limits
import pytest
from pydantic import ValidationError
from workspace import make_workspace

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import from_strings
from snaketrain.config.schema import Tracking
from snaketrain.runtime.credentials import CONCEALED, CannotTellApart, Concealing, conceal, hidden, hidden_setting
from snaketrain.runtime.journal import Journal
from snaketrain.runtime.manifests import Manifest, read_manifest, write_json, write_manifest, write_text
from snaketrain.runtime.provenance import copy_of
from snaketrain.tracking.following import Follower
from snaketrain.tracking.limits import folder_name
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


def test_passwords_are_nowhere_in_mlflow(planted):
    folder = planted.parent
    follower = Follower(planted, Store(f"sqlite:///{folder}/mlflow.db"))
    for training in follower.runs():
        follower.update(training)
    follower.label()
    held = [folder / "mlflow.db", *(path for path in (folder / "mlartifacts").rglob("*") if path.is_file())]
    assert len(held) > 10 and any(b"https://***@data.example" in path.read_bytes() for path in held)
    for secret in (IN_ADDRESS, IN_ENVIRONMENT, TOKEN):
        assert [path for path in held if secret.encode() in path.read_bytes() or secret in path.name] == []


def test_passwords_are_refused_in_the_settings():
    with pytest.raises(ValidationError, match="MLFLOW_TRACKING_PASSWORD"):
        Tracking(uri=f"https://anna:{IN_ADDRESS}@tracking.example")
    assert Tracking(uri="https://tracking.example:8080/mlflow").uri


def test_secrets_are_hidden_and_ordinary_text_is_not(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefgh")
    monkeypatch.setenv("SHORT_TOKEN", "a")
    assert (
        hidden("s3: abcdefgh; https://a:b@host/x, https://host:80/y, mail@example.org")
        == "s3: ***; https://***@host/x, https://host:80/y, mail@example.org"
    )


# --- forms


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@ss@host/x", "https://***@host/x"),
        ("https://TOKEN@host/x", "https://***@host/x"),
        ("ftp://u:pa/ss@host/x", "ftp://***@host/x"),
        ("https://host/x?token=abc&password=d&page=2", "https://host/x?token=***&password=***&page=2"),
        ("https://host/x?X-Amz-Signature=0af&sig=b#top", "https://host/x?X-Amz-Signature=***&sig=***#top"),
        ("jdbc:postgresql://host/db?user=u&password=p", "jdbc:postgresql://host/db?user=u&password=***"),
        ("host=h user=u password=geheim", "host=h user=u password=***"),
        ("export DB_PASS=geheim", "export DB_PASS=***"),
        ("PASSWD='geheim'", "PASSWD='***'"),
        ("GITLAB_PAT: geheim", "GITLAB_PAT: ***"),
        ("  password: geheim", "  password: ***"),
        ('{"api_key": "geheim"}', '{"api_key": "***"}'),
        (r'"{\"password\": \"geheim\"}"', r'"{\"password\": \"***\"}"'),
        ('SERVICE_KEY = "k3y-of-service"', 'SERVICE_KEY = "***"'),
        ("AccountKey=abc4711==;x", "AccountKey=***;x"),
        ("run --token geheim --all --password=geheim", "run --token *** --all --password=***"),
        ("curl -u anna:geheim", "curl -u anna:***"),
        ("machine h login anna password geheim", "machine h login anna password ***"),
        ("Authorization: Basic YW5uYTpnZWhlaW0=", "Authorization: Basic ***"),
        ("authorization: bearer geheim4711", "authorization: bearer ***"),
        ("Cookie: session=geheim", "Cookie: ***"),
        ("hf_abcdefgh1234 ghp_abcdefgh1234 eyJhbGciOi.eyJzdWIi.SflKxw", "*** *** ***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\n", "***\n"),
    ],
)
def test_secrets_are_recognised_by_their_form(text, shown):
    assert hidden(text) == shown and hidden(shown) == shown and hidden(f"{text}\n{text}") == f"{shown}\n{shown}"


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/a@b git+https://github.com/o/r@v1 ssh://git@github.com/o/r postgresql://anna@host/db sqlite:////tmp/x@y",
        'pad_token = "[PAD]"; unk_token: "<unk>"; additional_special_token="<extra_id_0>", eos_token_id=50256',
        "def connect(password: str | None = None, token=token, key=lambda pair: pair[1])",
        "token = os.environ['HF_TOKEN']; password = settings.password; secret=get_secret()",
        'RUN_KEY = "pipeline.run_key"; sort_key: accuracy, tokens: 900, max_new_tokens=512, passes=3, patience: 5, path=here',
        "the key: a word; authors: many; a token of thanks; compass=north; train.learning_rate=3e-05",
    ],
)
def test_text_that_is_not_a_password(text):
    assert hidden(text) == text


@pytest.mark.parametrize(
    "name", ["GITLAB_PAT", "SERVICE_KEY", "PASSWD", "DB_PASS", "PGPASSWORD", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "CLIENT_SECRET"]
)
def test_secrets_in_the_environment(monkeypatch, name):
    monkeypatch.setenv(name, "p@ss w/rd'4711")
    for way in ("p@ss w/rd'4711", "p%40ss%20w%2Frd%274711", "p%40ss+w%2Frd%274711", json.dumps("p@ss w/rd'4711"), repr("p@ss w/rd'4711")):
        assert "4711" not in hidden(f"refused: {way}!")


def test_ordinary_words_in_the_environment_are_not_hidden(monkeypatch):
    ordinary = {
        "SORT_KEY": "accuracy",
        "SSH_KEY": "/home/anna/.ssh/id_ed25519",
        "A_TOKEN": "short",
        "DB_PASS": "123456",
        "PWD": "/data/here4711",
    }
    for name, value in ordinary.items():
        monkeypatch.setenv(name, value)
    text = "accuracy /home/anna/.ssh/id_ed25519 short 0.123456 /data/here4711"
    assert hidden(text) == text and hidden("pin 123456") == "pin ***"


def test_addresses_in_the_environment(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://anna:geheim99@host/db")
    assert hidden("password authentication failed: geheim99") == "password authentication failed: ***"


def test_long_texts_are_searched_quickly():
    for text in ("a" * 400_000, "abc://" + "a" * 400_000, "--pass-" * 50_000, "?key" * 50_000, "token " * 50_000):
        began = time.process_time()
        hidden(text)
        assert time.process_time() - began < limits.seconds(3)


# --- settings, with which stages compute


def test_a_setting_is_shown_without_and_used_with_its_password(monkeypatch):
    monkeypatch.delenv(CONCEALED, raising=False)
    arguments = {"address": ADDRESS, "password": 4711, "rate": 0.5, "stars": "***", "layers": [1, 2]}
    shown = [conceal(f"train.task.arguments.{name}", value) for name, value in arguments.items()]
    assert IN_ADDRESS not in str(shown) and "4711" not in str(shown) and shown[2] == "train.task.arguments.rate=0.5"
    assert from_strings(shown)["train"]["task"]["arguments"] == arguments
    assert IN_ADDRESS in os.environ[CONCEALED] and hidden(f"failed with {IN_ADDRESS}") == "failed with ***"
    monkeypatch.delenv(CONCEALED)
    with pytest.raises(SystemExit, match="Start this through snakemake"):
        from_strings(shown)


def test_the_environment_does_not_change_settings(monkeypatch):
    """What is recorded hides it, and a stage that reads the record computes with it."""
    monkeypatch.delenv(CONCEALED, raising=False)
    before = conceal("model.arguments.name", IN_ENVIRONMENT)
    monkeypatch.setenv("SOME_PASSWORD", IN_ENVIRONMENT)
    assert conceal("model.arguments.name", IN_ENVIRONMENT) == before
    recorded = hidden_setting(before)
    assert recorded == 'model.arguments.name="***"' and from_strings([recorded])["model"]["arguments"]["name"] == IN_ENVIRONMENT


def test_two_runs_that_differ_only_in_a_password_are_refused(monkeypatch):
    monkeypatch.delenv(CONCEALED, raising=False)
    conceal("train.task.arguments.address", ADDRESS)
    with pytest.raises(CannotTellApart):
        conceal("train.task.arguments.address", ADDRESS.replace(IN_ADDRESS, "another"))


# --- what is written


def test_the_log_of_a_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    script = Path(__file__).parents[2] / "workflow/scripts/tools/keep_log.py"
    said = f"{ADDRESS}\n+ DB_PASS=geheim\nTraceback: {TOKEN}\n".encode() + b"\xff unfinished"
    expected = b"https://***@data.example/reviews.csv\n+ DB_PASS=***\nTraceback: ***\n\xff unfinished"
    done = subprocess.run([sys.executable, script, tmp_path / "log"], input=said, capture_output=True)
    assert done.stdout == b"" and (tmp_path / "log").read_bytes() == expected
    done = subprocess.run([sys.executable, script, "-a", "--show", tmp_path / "log"], input=b"more", capture_output=True)
    assert done.stdout == b"more" and (tmp_path / "log").read_bytes() == expected + b"more"


def test_a_log_that_cannot_be_written_is_replaced_by_the_console():
    script = Path(__file__).parents[2] / "workflow/scripts/tools/keep_log.py"
    done = subprocess.run([sys.executable, script, "/dev/full"], input=b"a line\n", capture_output=True, text=False)
    reported, line = done.stdout.splitlines()
    assert b"/dev/full: cannot be written" in reported and line == b"a line"


def test_a_log_has_the_last_state_of_a_progress_bar(tmp_path):
    script = Path(__file__).parents[2] / "workflow/scripts/tools/keep_log.py"
    kept = subprocess.Popen([sys.executable, script, tmp_path / "log"], stdin=subprocess.PIPE)
    for part in (b"\r 10 %", b"\r 5", b"0 %\r100 %", b"\n", b"Windows\r\n", b"\r 7 %"):
        kept.stdin.write(part)
        kept.stdin.flush()
    kept.stdin.close()
    assert kept.wait() == 0 and (tmp_path / "log").read_bytes() == b"100 %\nWindows\r\n 7 %"


def test_a_long_line_does_not_hold_up_its_stage(tmp_path):
    """Such as a command with thousands of names, or a dictionary that a user's code prints."""
    script = Path(__file__).parents[2] / "workflow/scripts/tools/keep_log.py"
    line = b"a word/" * 100_000 + b"\n"
    subprocess.run([sys.executable, script, tmp_path / "log"], input=line, check=True, timeout=limits.seconds(60))
    assert (tmp_path / "log").read_bytes() == line


def test_output_of_snakemake():
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "Error %s", (ADDRESS,), None)
    record.shellcmd, record.input = f"train --token {TOKEN}", [ADDRESS]
    assert Concealing().filter(record)
    assert record.getMessage() == "Error https://***@data.example/reviews.csv" and IN_ADDRESS not in str(vars(record))
    assert TOKEN not in record.shellcmd


def test_a_wrong_configuration_is_reported_without_passwords():
    assert IN_ADDRESS not in str(ConfigurationError([f"data.train.path: no file at {ADDRESS}"]))


def test_journals_and_manifests(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", about={"warning": ADDRESS})
    journal.begin(0)
    journal.write("end", error=f"no {ADDRESS}", metrics={"loss": 0.5})
    made = Manifest("train_model", "0", [f'train.task.arguments.a="{ADDRESS}"'], {}, {}, {"label_names": ["a@b"]}, 0.0)
    write_manifest(tmp_path / "manifest.json", made)
    assert IN_ADDRESS not in (tmp_path / "journal.jsonl").read_text() + (tmp_path / "manifest.json").read_text()
    assert read_manifest(tmp_path / "manifest.json").facts == made.facts


@pytest.mark.parametrize("name", ["../../escaped", "/abs", "a/b", "..", ".hidden", "", "name\nof lines", "x" * 400, "snaketrain"])
def test_an_experiment_is_not_used_as_a_path(name):
    folder = folder_name(name)
    assert folder == name if name == "snaketrain" else folder != name
    assert "/" not in folder and not folder.startswith(".") and 0 < len(folder) < 120


def test_a_users_file_stays_in_the_folder_of_its_run():
    assert copy_of("../../own/task.py") == copy_of("/own/task.py") == "code/own/task.py"
