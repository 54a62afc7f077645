"""Passwords in the configuration, in the environment and in a user's code work, and occur nowhere in what is written."""

import json
import re
import shutil
from pathlib import Path

import pytest

from pipeline.workspace import read_configuration, snakemake, write_configuration

# secrets are in braces
ENVIRONMENT = {
    "GITLAB_PAT": "{planted-e1}",
    "SERVICE_KEY": "{planted-e2}",
    "PASSWD": "{planted-e3}",
    "DB_PASS": "{planted-e/4}",
    "PGPASSWORD": "{planted e&5}",
    "DATABASE_URL": "mysql://anna:{planted-e6}@data.example",
    "SHORT": "{planted}",  # hidden since the configuration refers to it
}
ARGUMENTS = {
    "address": "https://anna:${GITLAB_PAT}@data.example/reviews.csv",
    "java": "jdbc:postgresql://data.example/db?user=anna&password=${DB_PASS}",
    "header": "Authorization: Bearer ${SERVICE_KEY}",
    "service": {"api_key": "${PASSWD}", "user-name": "anna", "passwd": "${PGPASSWORD}"},
    "clients": [{"client_secret": "${SHORT}"}],
    "template": "$${question}",
}
OWN_CODE = """
import hashlib, json, logging, os
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402

DB_PASS = "{planted-c1}"
ADDRESS = "https://anna:{planted-c2}@data.example"


class Guarded(TextClassification):
    def __init__(self, **arguments):
        found = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        assert found == "DIGEST", arguments
        everything = [arguments, dict(os.environ), ADDRESS, arguments["service"]["passwd"], arguments["clients"]]
        print(*everything, json.dumps(everything), sep="\\n")
        logging.warning("%s", arguments)
        logging.warning("%s", os.environ["PGPASSWORD"])
"""


def plain(content):
    """Without the braces."""
    return json.loads(re.sub(r"\{(ghp_)?planted(.*?)\}", r"\1planted\2", json.dumps(content)))


def secrets(*contents) -> set[str]:
    return {json.loads(f'"{match[1]}"') for match in re.finditer(r"\{((?:ghp_)?planted.*?)\}", json.dumps(contents))}


def given() -> dict:
    """The arguments as the class gets them."""
    text = json.dumps(ARGUMENTS)
    for name, value in plain(ENVIRONMENT).items():
        text = text.replace(f"${{{name}}}", json.dumps(value)[1:-1])
    return json.loads(text.replace("$${", "${"))


@pytest.fixture(scope="module")
def guarded(workspace, tmp_path_factory) -> Path:
    import hashlib

    folder = Path(shutil.copytree(workspace, tmp_path_factory.mktemp("guarded") / "workspace", symlinks=True))
    digest = hashlib.sha256(json.dumps(given(), sort_keys=True).encode()).hexdigest()
    (folder / "own").mkdir()
    (folder / "own/guarded.py").write_text(plain(OWN_CODE).replace("DIGEST", digest))
    config = read_configuration(folder)
    config["tracking"] |= {"experiment": "../../escaped"}
    runs = {"guarded": {"train.task": {"use": "own/guarded.py:Guarded", "arguments": ARGUMENTS}, "train.epochs": 1}}
    write_configuration(folder, config | {"runs": runs})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plain(ENVIRONMENT).items():
            patch.setenv(name, value)
        snakemake(folder, "--printshellcmds")
        return folder


def test_passwords_are_nowhere(guarded):
    planted = secrets(ENVIRONMENT, OWN_CODE)
    assert len(planted) == 9
    written = [path for path in guarded.rglob("*") if path.is_file() and path.relative_to(guarded).parts[0] not in ("config", "own")]
    contents = {path.relative_to(guarded): path.read_bytes() for path in written}
    found = {
        (str(path), secret)
        for path, content in contents.items()
        for secret in planted - {"planted"}
        for way in {secret, json.dumps(secret)[1:-1], secret.replace("/", "%2F").replace("&", "%26")}
        if way.encode() in content
    }
    assert found == set()
    assert [path for path, content in contents.items() if re.search(rb"\bplanted\b(?!-)", content)] == []
    settings = b'"https://anna:${GITLAB_PAT}@data.example/reviews.csv"'
    assert settings in contents[Path("results/runs/guarded/training/run.json")].replace(b"\\", b"")
    for place in ("results/runs/guarded/training/logs/rank-0.log", "logs/train_model/guarded.log"):
        assert b"https://***@data.example" in contents[Path(place)], place


def test_logs_and_records_are_for_the_owner_and_its_group(guarded):
    training = guarded / "results/runs/guarded/training"
    new = [
        *(training / "logs").glob("*"),
        *(training / name for name in ("run.json", "packages.txt", "journal.jsonl", "code/own/guarded.py")),
    ]
    new += [guarded / "logs/train_model/guarded.log", *(guarded / ".snakemake/snaketrain-settings/train_model").glob("guarded*")]
    assert len(new) >= 7 and [path for path in new if path.stat().st_mode & 0o137] == []


def test_an_unset_variable_is_reported_before_any_job(guarded):
    done = snakemake(guarded, "-n", check=False)
    assert done.returncode and "train.task.arguments.address: the environment variable GITLAB_PAT is not set" in done.stderr + done.stdout


def test_an_experiment_is_not_used_as_a_path(guarded):
    around = {path.name for path in guarded.parent.parent.iterdir()} | {path.name for path in guarded.parent.iterdir()}
    assert not any(name.startswith(("escaped", "-")) for name in around)
    assert any(path.name.startswith("-..-escaped-") for path in (guarded / "mlartifacts").iterdir())
