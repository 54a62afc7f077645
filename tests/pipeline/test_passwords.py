"""Passwords in the configuration, in the environment and in a user's code work, and occur nowhere in what is written."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.workspace import REPOSITORY, read_configuration, snakemake, write_configuration

# secrets are in braces
ARGUMENTS = {
    "address": "https://anna:{planted-a01}@data.example/reviews.csv",
    "odd_address": "ftp://anna:{planted@a02}@data.example",
    "slashed_address": "postgresql://anna:{planted/a03}@data.example/db",
    "token_address": "https://{plantedaoo}@git.example/reviews.git",
    "query": "https://data.example/x?page=2&token={planted-a05}&format=csv",
    "second_query": "https://data.example/x?password={planted-a06}",
    "signed": "https://data.example/x?sv=1&sig={planted-a07}",
    "java": "jdbc:postgresql://data.example/db?user=anna&password={planted-a08}",
    "words": "host=data.example user=anna password={planted-a09}",
    "option": "fetch --token {planted-a10} --all",
    "header": "Authorization: Bearer {planted-a11}",
    "storage": "AccountName=anna;AccountKey={planted-a12};Suffix=core",
    "github": "{ghp_planteda13}",
    "password": "{planted-a14}",
    "service": {"api_key": "{planted-a15}", "user-name": "anna", "passwd": "{planted'\"a16}"},
    "clients": [{"client_secret": "{planted-a17}"}],
    "from_environment": "{planted-e1}",
}
ENVIRONMENT = {
    "GITLAB_PAT": "{planted-e1}",
    "SERVICE_KEY": "{planted-e2}",
    "PASSWD": "{planted-e3}",
    "DB_PASS": "{planted-e/4}",
    "PGPASSWORD": "{planted e&5}",
    "DATABASE_URL": "mysql://anna:{planted-e6}@data.example",
}
OWN_CODE = """
import hashlib, json, logging, os
from snaketrain.tasks.text_classification import TextClassification

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


@pytest.fixture(scope="module")
def guarded(workspace, tmp_path_factory) -> Path:
    import hashlib

    folder = Path(shutil.copytree(workspace, tmp_path_factory.mktemp("guarded") / "workspace", symlinks=True))
    digest = hashlib.sha256(json.dumps(plain(ARGUMENTS), sort_keys=True).encode()).hexdigest()
    (folder / "own").mkdir()
    (folder / "own/guarded.py").write_text(plain(OWN_CODE).replace("DIGEST", digest))
    config = read_configuration(folder)
    config["tracking"] |= {"notes": json.dumps(plain(ARGUMENTS)), "experiment": "../../escaped"}
    runs = {"guarded": {"train.task": {"use": "own/guarded.py:Guarded", "arguments": plain(ARGUMENTS)}, "train.epochs": 1}}
    write_configuration(folder, config | {"runs": runs})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plain(ENVIRONMENT).items():
            patch.setenv(name, value)
        snakemake(folder, "--printshellcmds")
        return folder


def test_passwords_are_nowhere(guarded):
    planted = secrets(ARGUMENTS, ENVIRONMENT, OWN_CODE)
    assert len(planted) >= 24
    written = [path for path in guarded.rglob("*") if path.is_file() and path.relative_to(guarded).parts[0] not in ("config", "own")]
    contents = {path.relative_to(guarded): path.read_bytes() for path in written}
    found = {
        (str(path), secret)
        for path, content in contents.items()
        for secret in planted
        for way in {secret, json.dumps(secret)[1:-1], secret.replace("/", "%2F").replace("&", "%26")}
        if way.encode() in content
    }
    # Snakemake compares settings, which must not depend on the environment: the value itself does not look like a secret
    compared = (".snakemake/metadata/", ".snakemake/snaketrain-settings/")
    assert {each for each in found if not (each[0].startswith(compared) and each[1] == "planted-e1")} == set()
    assert not [path for path, _ in found if path.startswith(compared[1]) and (guarded / path).stat().st_mode & 0o077]
    seen = "https://data.example/x?page=2&token=***&format=csv"
    for place in (
        "results/runs/guarded/training/run.json",
        "results/runs/guarded/training/logs/rank-0.log",
        "logs/train_model/guarded.log",
        "mlflow.db",
    ):
        assert seen.encode() in contents[Path(place)], place


def test_an_experiment_is_not_used_as_a_path(guarded):
    around = {path.name for path in guarded.parent.parent.iterdir()} | {path.name for path in guarded.parent.iterdir()}
    assert not any(name.startswith(("escaped", "-")) for name in around)
    assert any(path.name.startswith("-..-escaped-") for path in (guarded / "mlartifacts").iterdir())


def test_hidden_settings_can_be_given_to_reproduce_a_run(guarded):
    from snaketrain.tracking.mlflow_store import Store

    store = Store(f"sqlite:///{guarded}/mlflow.db")
    (run,) = store.client.search_runs([store.experiment("../../escaped")], "attributes.run_name = 'guarded'")
    command = [sys.executable, REPOSITORY / "workflow/scripts/tools/reproduce_run.py", run.info.run_id, "--results", guarded / "results"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 1 and "MLflow does not have the password in train.task.arguments" in done.stderr
