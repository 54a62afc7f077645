"""Fixtures of several unit tests."""

import types
from pathlib import Path

import pyarrow
import pytest

from snaketrain.config.schema import Data
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer_files import copy_tokenizer

OURS = "snakemake_executor_plugin_slurm_steady"


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

    def asked(runs, untried=()):
        found = []
        for name, run in runs.items():
            before = len(checks.findings.problems)
            checks.check(run, tries=name not in untried)
            found += [f"{problem} (run {name})" for problem in checks.findings.problems[before:]]
        return found, []

    monkeypatch.delenv("SNAKETRAIN_CHECKS", raising=False)
    monkeypatch.setattr(effects, "asked", asked)


@pytest.fixture
def slurm(tmp_path, monkeypatch, programs):
    """Programs of SLURM that do as a test says: `slurm(squeue="echo ...")`."""
    from fake_slurm import KNOWS_NO_JOB

    monkeypatch.chdir(tmp_path)
    programs(squeue="true", scontrol=KNOWS_NO_JOB, scancel='echo "$@" >> $HERE/cancelled')
    return programs


@pytest.fixture
def executor(monkeypatch, request):
    """Of all parts, or of the one that a test names."""
    from fake_slurm import steady_executor

    return steady_executor(monkeypatch, *([request.param] if hasattr(request, "param") else []))


@pytest.fixture
def submitted(executor):
    """A job that the workflow has submitted."""
    from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

    def submit(number: str, *output: str, run: str = "small"):
        job = types.SimpleNamespace(
            name="train_model", wildcards=[run], output=list(output), attempt=1, restart_times=2, resources={"mem_mb": 4000}
        )
        job_info = SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": Path(f"{number}.log")})
        executor.report_job_submission(job_info)
        return job_info

    return submit


@pytest.fixture
def submission(slurm, executor, monkeypatch):
    """A job that the plugin's own `run_job` submits, with the sbatch of the test; pauses are short."""
    monkeypatch.setattr(f"{OURS}.submitting.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(f"{OURS}.submitting.LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("snakemake_executor_plugin_slurm.get_submit_command", lambda *_, **__: "sbatch")
    monkeypatch.setattr("snakemake_executor_plugin_slurm.set_gres_string", lambda job: "")
    monkeypatch.setattr("snakemake_executor_plugin_slurm.get_job_wildcards", lambda job: "")
    monkeypatch.setattr("snakemake_executor_plugin_slurm.validate_slurm_extra", lambda job: None)
    for name in ("get_account_arg", "get_partition_arg"):
        monkeypatch.setattr(f"snakemake_executor_plugin_slurm.Executor.{name}", lambda self, job: iter([""]))
    monkeypatch.setattr("snakemake_executor_plugin_slurm.Executor.format_job_exec", lambda self, job: "true", raising=False)
    monkeypatch.setattr(f"{OURS}.left_over.fingerprint", lambda job, settings: "as it is now")
    executor.slurm_logdir = Path("logs")
    return types.SimpleNamespace(
        name="train_model", output=[], jobid=7, wildcards=[], is_group=lambda: False, resources={"runtime": 1, "mem_mb": 1}, rule=types.SimpleNamespace(name="x")
    )  # fmt: skip
