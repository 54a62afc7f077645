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
from workspace import make_workspace

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read
from snaketrain.config.secrets import environment_problems, literal_secrets
from snaketrain.runtime.credentials import USED_AS_SECRETS, Concealing, hidden, resolved
from snaketrain.runtime.journal import Journal
from snaketrain.runtime.manifests import read_checked, write_checked, write_json, write_text
from snaketrain.runtime.provenance import copy_of, write_provenance
from snaketrain.runtime.rank_logs import log_to
from snaketrain.runtime.stages import JobSettings
from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import Store
from snaketrain.tracking.tracked import folder_name

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
    run = read_checked(training / "run.json")
    run |= {"notes": everything, "environment": {"host": everything}, "data": run["data"] | {"name": f"phrases {TOKEN}"}}
    write_checked(training / "run.json", run)
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


def test_passwords_are_nowhere_in_mlflow(planted, uri):
    folder = planted.parent
    follower = Follower(planted, Store(uri))
    for training in follower.runs():
        follower.update(training)
    follower.label()
    held = [folder / "mlflow.db", *(path for path in (folder / "mlartifacts").rglob("*") if path.is_file())]
    assert len(held) > 10 and any(b"https://***@data.example" in path.read_bytes() for path in held)
    for secret in (IN_ADDRESS, IN_ENVIRONMENT, TOKEN):
        assert [path for path in held if secret.encode() in path.read_bytes() or secret in path.name] == []


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


def test_ordinary_words_in_the_environment_are_not_hidden(monkeypatch):
    ordinary = {
        "SORT_KEY": "accuracy",
        "MLFLOW_TRACKING_URI": "sqlite:////data/anna/new-project/mlflow.db",
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


def test_the_password_of_an_address_is_hidden_as_it_is_typed_too(monkeypatch):
    monkeypatch.setenv("REVIEWS", "postgresql://anna:S3cr3t%40Harbour@db.example/reviews")
    assert hidden("connected as anna with S3cr3t@Harbour, S3cr3t%40Harbour") == "connected as anna with ***, ***"


def test_values_of_the_environment_are_hidden_in_csv(monkeypatch):
    monkeypatch.setenv("REVIEWS", 'Tr0ub4dor"3-x9')
    assert hidden('1,"Tr0ub4dor""3-x9, and more"') == '1,"***, and more"'


def test_long_texts_are_searched_quickly():
    for text in ("a" * 400_000, "abc://" + "a" * 400_000, "--pass-" * 50_000, "?key" * 50_000, "token " * 50_000):
        began = time.process_time()
        hidden(text)
        assert time.process_time() - began < limits.seconds(3)


# --- settings: secrets come in as ${NAME}, and never as literals

ARGUMENTS = "train.task.arguments"


def problems(**change) -> list[str]:
    return [*read({"train": {"task": {"use": "own.Task", "arguments": change}}}).problems]


@pytest.mark.parametrize(
    "change",
    [
        {"address": ADDRESS},
        {"query": "https://data.example/x?page=2&token=abc&format=csv"},
        {"words": "host=data.example user=anna password=geheim"},
        {"header": "Authorization: Bearer geheim-4711"},
        {"command": "mysql -u anna -pgeheim"},
        {"hook": "https://hooks.slack.com/services/T1/B2/x"},
        {"github": f"ghp_{'a1' * 18}"},
        {"password": "geheim"},
        {"password": 4711},
        {"token": "geheim"},
        {"service": {"api_key": "geheim"}},
        {"clients": [{"client_secret": "geheim"}]},
        {"key": "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_literal_secret_is_refused_with_its_place_and_remedy(change):
    found = [problem for problem in problems(**change) if "holds a secret" in problem]
    assert len(found) == 1 and found[0].startswith(f"{ARGUMENTS}.{next(iter(change))}")
    assert "Put it into an environment variable, and write ${NAME} here." in found[0]
    assert not any(secret in str(ConfigurationError(found)) for secret in ("geheim", "4711", IN_ADDRESS))


@pytest.mark.parametrize(
    "change",
    [
        {"address": "https://${LOGIN}:${PASSWORD_OF_DATA}@data.example/x"},
        {"password": "${DB_PASS}", "token": "${HF_TOKEN}", "header": "Authorization: Bearer ${API}", "command": "mysql -p${PW} reviews"},
        {"pad_token": "[PAD]", "token": "<s>", "class_weights": {"password": 2.0, "token": 1}, "sort_key": "accuracy", "password": None},
        {"pattern": r"^encoder\.layer\.(\d+)$", "credentials": "/home/anna/.credentials.json", "auth": "basic", "key": "text"},
    ],
)
def test_what_is_no_literal_secret(change):
    assert [problem for problem in problems(**change) if "secret" in problem] == []


def test_secrets_in_runs_sweeps_and_shell_texts_are_refused_where_they_stand():
    config = {
        "runs": {"a": {"train.task.arguments.password": "geheim"}},
        "sweeps": {"s": {"train.task.arguments": [{"token": "geheim"}]}},
        "tracking": {
            "uri": f"https://anna:{IN_ADDRESS}@tracking.example",
            "on_end": "curl -u anna:geheim https://x",
            "notes": "password=geheim",
        },
        "compute": {"setup": 'export DB_PASS=geheim; mysql -p"$PW"'},
    }
    found = dict(problem.split(": ", 1) for problem in literal_secrets(config))
    assert set(found) == {
        "runs.a.train.task.arguments.password", "sweeps.s.train.task.arguments.0.token",
        "tracking.uri", "tracking.on_end", "tracking.notes", "compute.setup",
    }  # fmt: skip
    assert '"$NAME"' in found["tracking.on_end"] and "Remove it" in found["tracking.notes"] and "${NAME}" in found["tracking.uri"]
    assert (
        list(literal_secrets({"tracking": {"on_end": 'curl -u "anna:$PW" "$HOOK"'}, "compute": {"setup": "export DB_PASS=$(pass db)"}}))
        == []
    )


def test_variables_that_are_not_set_are_named_with_the_setting():
    config = {
        "data": {"train": {"path": "s3://${BUCKET}/x.csv"}},
        "train": {"task": {"arguments": {"a": ["${SET}", "$${TEXT}"], "b": "${UNSET}"}}},
        "model": {"arguments": {"token": "${SET}"}},
        "tracking": {"notes": "costs ${NOTHING}"},
        "compute": {"sbatch": "--export=NONE"},
    }
    found = list(environment_problems(config, {"SET": "value"}))
    assert [problem.partition(":")[0] for problem in found] == [
        "data.train.path", "train.task.arguments.b", "model.arguments.token", "compute.sbatch",
    ]  # fmt: skip
    assert "UNSET is not set" in found[1] and "saved with its weights" in found[2] and "SET, UNSET" in found[3]


def test_a_setting_with_the_value_of_a_secret_variable_is_refused():
    config = {"train": {"task": {"arguments": {"login": f"x {IN_ENVIRONMENT}"}}}}
    (found,) = environment_problems(config, {"SOME_PASSWORD": IN_ENVIRONMENT})
    assert "has the value of the environment variable SOME_PASSWORD. Write ${SOME_PASSWORD} here." in found and IN_ENVIRONMENT not in found


def test_variables_are_replaced_where_they_are_used_and_hidden_from_then_on(monkeypatch):
    monkeypatch.setenv(USED_AS_SECRETS, "")
    monkeypatch.setenv("SESAME", "geheim")
    assert hidden("geheim") == "geheim"
    given = {"a": ["${SESAME}@x", {"b": "$${SESAME} $5"}], "c": 1}
    assert resolved(given) == {"a": ["geheim@x", {"b": "${SESAME} $5"}], "c": 1} and given["c"] == 1
    assert hidden("it is geheim") == "it is ***"
    monkeypatch.delenv("SESAME")
    with pytest.raises(SystemExit, match="SESAME"):
        resolved("${SESAME}")


# --- what is written

KEEP_LOG = Path(__file__).parents[2] / "workflow/scripts/tools/keep_log.py"


def test_the_log_of_a_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    said = f"{ADDRESS}\n+ DB_PASS=geheim\nTraceback: {TOKEN}\n".encode() + b"\xff unfinished"
    expected = b"https://***@data.example/reviews.csv\n+ DB_PASS=***\nTraceback: ***\n\xff unfinished"
    done = subprocess.run([sys.executable, KEEP_LOG, tmp_path / "log"], input=said, capture_output=True)
    assert done.stdout == b"" and (tmp_path / "log").read_bytes() == expected
    done = subprocess.run([sys.executable, KEEP_LOG, "-a", "--show", tmp_path / "log"], input=b"more", capture_output=True)
    assert done.stdout == b"more" and (tmp_path / "log").read_bytes() == expected + b"more"


def test_a_log_that_cannot_be_written_is_replaced_by_the_console():
    done = subprocess.run([sys.executable, KEEP_LOG, "/dev/full"], input=b"a line\n", capture_output=True, text=False)
    reported, line = done.stdout.splitlines()
    assert b"/dev/full: cannot be written" in reported and line == b"a line"


def test_a_log_has_the_last_state_of_a_progress_bar(tmp_path):
    kept = subprocess.Popen([sys.executable, KEEP_LOG, tmp_path / "log"], stdin=subprocess.PIPE)
    for part in (b"\r 10 %", b"\r 5", b"0 %\r100 %", b"\n", b"Windows\r\n", b"\r 7 %"):
        kept.stdin.write(part)
        kept.stdin.flush()
    kept.stdin.close()
    assert kept.wait() == 0 and (tmp_path / "log").read_bytes() == b"100 %\nWindows\r\n 7 %"


def test_a_long_line_does_not_hold_up_its_stage(tmp_path):
    """Such as a command with thousands of names, or a dictionary that a user's code prints."""
    line = b"a word/" * 100_000 + b"\n"
    subprocess.run([sys.executable, KEEP_LOG, tmp_path / "log"], input=line, check=True, timeout=limits.seconds(60))
    assert (tmp_path / "log").read_bytes() == line


def test_output_of_snakemake():
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "Error %s", (ADDRESS,), None)
    record.shellcmd, record.input = f"train --token {TOKEN}", [ADDRESS]
    assert Concealing().filter(record)
    assert record.getMessage() == "Error https://***@data.example/reviews.csv" and IN_ADDRESS not in str(vars(record))
    assert TOKEN not in record.shellcmd


@pytest.mark.parametrize(
    ("field", "clean"),
    [
        (f"train --token {TOKEN}", "train --token ***"),
        (["train.csv", ADDRESS], ["train.csv", "https://***@data.example/reviews.csv"]),
        ({"password": "sesame street", "run": "small"}, {"password": "***", "run": "small"}),
        ([{"password": 4711, "runs": 2}, "train.csv"], [{"password": "***", "runs": 2}, "train.csv"]),
        (["train.csv", "dev.csv"], ["train.csv", "dev.csv"]),
    ],
)
def test_a_single_field_with_a_secret_is_found(field, clean):
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "Finished", (), None)
    record.field = field
    assert Concealing().filter(record)
    assert record.field == clean and record.getMessage() == "Finished"


def test_a_wrong_configuration_is_reported_without_passwords():
    assert IN_ADDRESS not in str(ConfigurationError([f"data.train.path: no file at {ADDRESS}"]))


def test_journals(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", about={"warning": ADDRESS})
    journal.begin(0)
    journal.write("end", error=f"no {ADDRESS}", metrics={"loss": 0.5})
    assert IN_ADDRESS not in (tmp_path / "journal.jsonl").read_text()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o640), (0o077, 0o600)])
def test_records_are_for_the_owner_and_its_group(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        Journal(tmp_path / "journal.jsonl").begin(0)
        JobSettings("train_model", {"a": {"b": 1}}, {}).store(folder=tmp_path / "settings")
        log_to(tmp_path / "logs/rank-0.log")
        write_provenance(tmp_path, None, [])
        write_text(tmp_path / "manifest.json", "{}")
    finally:
        os.umask(before)
        logging.basicConfig(force=True)
    (settings,) = (tmp_path / "settings").rglob("*.json")
    for path in (tmp_path / "journal.jsonl", settings, tmp_path / "logs/rank-0.log", tmp_path / "packages.txt"):
        assert path.stat().st_mode & 0o777 == mode, path
    assert (tmp_path / "logs").stat().st_mode & 0o027 == 0
    assert (tmp_path / "manifest.json").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("name", ["../../escaped", "/abs", "a/b", "..", ".hidden", "", "name\nof lines", "x" * 400, "snaketrain"])
def test_an_experiment_is_not_used_as_a_path(name):
    folder = folder_name(name)
    assert folder == name if name == "snaketrain" else folder != name
    assert "/" not in folder and not folder.startswith(".") and 0 < len(folder) < 120


def test_a_users_file_stays_in_the_folder_of_its_run():
    assert copy_of("../../own/task.py") == copy_of("/own/task.py") == "code/own/task.py"
