"""Secrets in every form, through the real filter of a stage's output, journal, records for MLflow and page: none is shown. And no harmless line changes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from secret_battery import HARMLESS, HARMLESS_VARIABLES, VARIABLES, remains_of, texts_with_secrets, written
from workspace import make_workspace

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.journal import Journal
from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import Store

KEEP_LOG = Path(__file__).parents[2] / "workflow/scripts/tools/keep_log.py"
FORMS = texts_with_secrets()
OF_VARIABLES = {f"{name}: {way}": (text, value) for name, value in VARIABLES.items() for way, text in written(value).items()}
SECRETS = {secret for _, secret in FORMS.values()} | {piece for value in VARIABLES.values() for piece in remains_of(value)}
PRINTING = """
import ctypes, json, logging, os, subprocess, sys, traceback, warnings
texts = json.load(open(sys.argv[1]))
for number, text in enumerate(texts):
    way = number % 6
    if way == 0:
        print(text, flush=True)
    elif way == 1:
        logging.warning("%s", text)
    elif way == 2:
        warnings.warn(text)
    elif way == 3:
        ctypes.CDLL(None).write(1, (text + "\\n").encode(), len((text + "\\n").encode()))
    elif way == 4:
        subprocess.run([sys.executable, "-c", "import sys; print(sys.argv[1])", text])
    else:
        try:
            raise ValueError(text)
        except ValueError:
            traceback.print_exc()
"""


@pytest.fixture
def only(monkeypatch):
    """An environment of nothing but these variables."""

    def set_to(variables: dict[str, str]) -> dict[str, str]:
        for name in list(os.environ):
            monkeypatch.delenv(name)
        environment = {"PATH": "/usr/bin:/bin"} | variables
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return environment

    return set_to


def shown(content: str) -> list[str]:
    return [secret for secret in SECRETS if secret in content]


def test_the_battery_is_large():
    assert len(FORMS) >= 84 and len(VARIABLES) >= 21 and len(OF_VARIABLES) >= 400 and len(SECRETS) > 130


@pytest.mark.parametrize("name", FORMS)
def test_each_form(only, name):
    only({})
    text, secret = FORMS[name]
    assert secret not in hidden(text) and hidden(hidden(text)) == hidden(text)


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_however_it_is_written(only, name):
    only({name: VARIABLES[name]})
    seen = {way: hidden(text) for way, text in written(VARIABLES[name]).items()}
    assert {way: text for way, text in seen.items() if any(piece in text for piece in remains_of(VARIABLES[name]))} == {}


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_stay_as_they_are(only, text):
    only(HARMLESS_VARIABLES)
    assert hidden(text) == text


def test_all_that_a_process_prints(only, tmp_path):
    """By print, logging, warnings, tracebacks, a library in C, and a child."""
    environment = only(VARIABLES)
    texts = [text for text, _ in (*FORMS.values(), *OF_VARIABLES.values())][::3]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    command = f'"{sys.executable}" -c "$CODE" texts.json 2>&1 | "{sys.executable}" "{KEEP_LOG}" log'
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env=environment | {"CODE": PRINTING}, check=True)
    log = (tmp_path / "log").read_text()
    assert log.count("***") > len(texts) * 0.9 and "ValueError" in log and "UserWarning" in log and shown(log) == []
    assert (tmp_path / "log").stat().st_mode & 0o137 == 0


def test_journal_and_mlflow(tmp_path, uri, only):
    results = make_workspace(tmp_path, {"first": {}})
    only(VARIABLES | {"HOME": str(tmp_path)})
    training = results / "runs/first/training"
    texts = [text for text, _ in (*FORMS.values(), *OF_VARIABLES.values())]
    journal = Journal(training / "journal.jsonl")
    journal.begin(0)
    journal.write("note", texts=texts)
    journal.write("end", status="FAILED", error=" ".join(texts)[:20_000])
    assert shown((training / "journal.jsonl").read_text()) == []
    (training / "logs").mkdir(exist_ok=True)
    (training / "logs/rank-0.log").write_text("\n".join(texts))
    follower = Follower(results, Store(uri))
    for each in follower.runs():
        follower.update(each)
    held = [tmp_path / "mlflow.db", *(path for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file())]
    assert {str(path): found for path in held if (found := shown(path.read_bytes().decode(errors="replace")))} == {}
