"""Fixtures of several unit tests."""

from pathlib import Path

import pyarrow
import pytest

from snaketrain.config.schema import Data
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer_files import copy_tokenizer


@pytest.fixture
def prepared(tmp_path, tiny_tokenizer):
    """Prepares files given by split as text; returns the rows by split, the facts and the data issues."""

    def run(train: str, dev: str | None = None, test: str | None = None, ending: str = "tsv", **changes):
        files = {}
        for split, content in {"train": train, "dev": dev, "test": test}.items():
            if content is not None:
                (tmp_path / f"{split}.{ending}").write_text(content)
                files[split] = [tmp_path / f"{split}.{ending}"]
        given = {split: {"path": "x"} for split in files}
        data = Data.model_validate(given | {"tokenizer": {"path": "x"}} | changes)
        copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")
        facts, issues = prepare(data, files, tmp_path, tmp_path / "tokenizer", tmp_path)
        return {split: arrow(tmp_path / f"{split}.arrow") for split in facts["splits"]}, facts, issues

    return run


@pytest.fixture(scope="session")
def empty_database(made_once):
    """Making MLflow's tables takes seconds: once for all tests, which copy it."""

    def make(path):
        from snaketrain.tracking.mlflow_store import Store

        Store(f"sqlite:///{path}").client.search_experiments()

    return made_once("empty.db", make)


@pytest.fixture
def uri(tmp_path, empty_database):
    """Of a database of its own for each test."""
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    return f"sqlite:///{tmp_path}/mlflow.db"


def arrow(path):
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all().to_pylist()


@pytest.fixture
def by_effect(monkeypatch):
    """Runs are also checked by effect, in this process, which has imported torch already."""
    from snaketrain.checking import Findings
    from snaketrain.checking.runs import Checks
    from snaketrain.orchestration import effects

    checks = Checks(Findings(lambda _: None), Path("results"))

    def asked(runs, without_data=()):
        found = []
        for name, run in runs.items():
            before = len(checks.findings.problems)
            checks.check(run, tries=name not in without_data)
            found += [f"{problem} (run {name})" for problem in checks.findings.problems[before:]]
        return found, []

    monkeypatch.delenv("SNAKETRAIN_CHECKS", raising=False)
    monkeypatch.setattr(effects, "asked", asked)
