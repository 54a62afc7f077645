"""What the executor does when SLURM does not answer, forgets a job, or refuses one for a moment; the plugin's own code runs, over a fake SLURM."""

import asyncio
import logging
import os
import threading
import types
from pathlib import Path

import limits
import pytest
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snaketrain.slurm import steady_executor
from snaketrain.slurm.steady_executor import SteadyExecutor

AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
SBATCH_AWAY = "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1"
AT_THE_LIMIT = "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Programs of SLURM that do as a test says: `slurm(squeue="echo ...")`."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()

    def says(**programs: str) -> None:
        for name, script in programs.items():
            path = tmp_path / "bin" / f"{name}.new"
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
            os.replace(path, tmp_path / "bin" / name)

    says(squeue="true", scontrol="echo 'MinJobAge = 300 sec'", scancel=f'echo "$@" >> {tmp_path / "cancelled"}')
    return says


@pytest.fixture
def executor(monkeypatch):
    """Without Snakemake around it: what it reports is kept in `reported`."""
    settings = types.SimpleNamespace(
        status_command="squeue", status_attempts=2, init_seconds_before_status_checks=20, keep_successful_logs=True, requeue=True,
        pass_command_as_script=False, no_account=True, logdir=None, exclude_failed_nodes=None, jobname_prefix=None, array_jobs=None,
        array_limit=1000, partition_config=None, efficiency_report=False, delete_logfiles_older_than=0, qos=None, reservation=None,
        keep_going=True,
    )  # fmt: skip
    monkeypatch.setattr(steady_executor.Executor, "__init__", lambda self: None)
    made = SteadyExecutor()
    made.workflow = types.SimpleNamespace(executor_settings=settings, workdir_init=Path.cwd())
    made.logger, made.lock, made.active_jobs, made.reported = logging.getLogger("executor"), threading.Lock(), [], []
    made.status_rate_limiter = contextless()
    monkeypatch.setattr(steady_executor.Executor, "report_job_success", lambda self, job: made.reported.append((job.external_jobid, "")))
    monkeypatch.setattr(
        steady_executor.Executor, "report_job_error", lambda self, job, msg, **_: made.reported.append((job.external_jobid, msg))
    )
    monkeypatch.setattr(steady_executor.Executor, "report_job_submission", lambda self, job: made.active_jobs.append(job))
    made.next_seconds_between_status_checks = 20
    made.__post_init__()
    return made


class contextless:
    async def __aenter__(self):
        return None

    async def __aexit__(self, *_):
        return None


def submitted(number: str, *output: str) -> SubmittedJobInfo:
    job = types.SimpleNamespace(output=list(output), attempt=1, restart_times=2)
    return SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": Path(f"{number}.log")})


def look(executor, jobs):
    async def kept():
        return [job async for job in executor.check_active_jobs(jobs)]

    return asyncio.run(kept())


def test_jobs_stay_active_while_slurm_does_not_answer(slurm, executor, caplog):
    jobs = [submitted("1"), submitted("2")]
    slurm(squeue=AWAY, scontrol=AWAY, sacct=AWAY)
    for _ in range(3):
        assert look(executor, jobs) == jobs
    assert caplog.text.count("SLURM does not answer") == 1
    slurm(squeue="echo '1|RUNNING'; echo '2|COMPLETED'", scontrol="echo 'MinJobAge = 300 sec'")
    assert look(executor, jobs) == jobs[:1]
    assert executor.reported == [("2", "")]
    assert "SLURM answers again" in caplog.text


def test_a_job_that_left_squeue_long_ago_is_over(slurm, executor, tmp_path):
    """It ended while Snakemake slept for longer than MinJobAge; its results tell how."""
    (tmp_path / "manifest.json").touch()
    jobs = [submitted("1", "manifest.json"), submitted("2", "missing.json"), submitted("3")]
    slurm(squeue="echo '3|RUNNING'")
    assert look(executor, jobs) == jobs, "it may have been submitted a moment ago"
    assert look(executor, jobs) == jobs[2:]
    assert executor.reported[0] == ("1", "")
    number, message = executor.reported[1]
    assert number == "2" and "left no result" in message


def test_what_an_earlier_job_has_left_is_no_result_of_this_one(slurm, executor, tmp_path):
    """SLURM has lost a job before it began, and the manifest of the last time is still there."""
    (tmp_path / "manifest.json").write_text("old")
    job = submitted("1", "manifest.json")
    executor.report_job_submission(job)
    for _ in range(2):
        look(executor, [job])
    assert "left no result" in executor.reported[0][1]


@pytest.mark.parametrize(
    ("state", "attempt", "message"),
    [
        ("CANCELLED", 3, "not retried: start snakemake again"),
        ("OUT_OF_MEMORY", 3, "raise compute.memory_mb"),
        ("TIMEOUT", 1, ""),
        ("FAILED", 1, ""),
    ],
)
def test_what_would_end_alike_is_not_retried(slurm, executor, state, attempt, message):
    job = submitted("1")
    slurm(squeue=f"echo '1|{state}'")
    assert look(executor, [job]) == []
    assert job.job.attempt == attempt
    assert message in executor.reported[0][1]


def test_an_exception_of_the_plugin_does_not_lose_jobs(slurm, executor, monkeypatch):
    async def failing(self, active_jobs):
        raise ValueError("an answer that it cannot read")
        yield

    monkeypatch.setattr(steady_executor.Executor, "check_active_jobs", failing)
    jobs = [submitted("1")]
    slurm(squeue="echo '1|RUNNING'")
    assert look(executor, jobs) == jobs


@pytest.fixture
def submission(slurm, executor, monkeypatch):
    """A job that the plugin's own `run_job` submits, with the sbatch of the test; pauses are short."""
    monkeypatch.setattr(steady_executor, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(steady_executor, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("snakemake_executor_plugin_slurm.get_submit_command", lambda *_, **__: "sbatch")
    monkeypatch.setattr("snakemake_executor_plugin_slurm.set_gres_string", lambda job: "")
    monkeypatch.setattr("snakemake_executor_plugin_slurm.get_job_wildcards", lambda job: "")
    monkeypatch.setattr("snakemake_executor_plugin_slurm.validate_slurm_extra", lambda job: None)
    for name in ("get_account_arg", "get_partition_arg"):
        monkeypatch.setattr(steady_executor.Executor, name, lambda self, job: iter([""]))
    monkeypatch.setattr(steady_executor.Executor, "format_job_exec", lambda self, job: "true", raising=False)
    executor.slurm_logdir = Path("logs")
    return types.SimpleNamespace(
        name="train_model", output=[], jobid=7, wildcards=[], is_group=lambda: False, resources={"runtime": 1, "mem_mb": 1}, rule=types.SimpleNamespace(name="x")
    )  # fmt: skip


def once_refused(message: str) -> str:
    return f"if [ -e refused ]; then echo 12; else touch refused; {message}; fi"


@pytest.mark.parametrize("message", [SBATCH_AWAY, AT_THE_LIMIT], ids=["outage", "limit"])
def test_a_submission_waits(slurm, executor, submission, caplog, message):
    slurm(sbatch=once_refused(message), squeue="echo 3")
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"]
    assert executor.reported == []
    assert caplog.text.count("is not submitted yet") == 1


def test_a_limit_with_no_job_ahead_is_a_failure(slurm, executor, submission):
    slurm(sbatch=AT_THE_LIMIT, squeue="true")
    executor.run_job(submission)
    assert executor.active_jobs == []
    assert "QOSMaxSubmitJobPerUserLimit" in executor.reported[0][1]


def test_an_outage_without_end_is_a_failure(slurm, executor, submission, monkeypatch):
    monkeypatch.setattr(steady_executor, "OUTAGE_PATIENCE_SECONDS", 0.1)
    slurm(sbatch=SBATCH_AWAY, squeue=AWAY)
    executor.run_job(submission)
    assert "Unable to contact" in executor.reported[0][1]


def test_another_refusal_is_reported_at_once(slurm, executor, submission):
    slurm(sbatch="touch called-$$; echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1")
    executor.run_job(submission)
    assert "invalid partition" in executor.reported[0][1]
    assert len(list(Path().glob("called-*"))) == 1


def test_a_job_whose_submission_was_not_confirmed_is_cancelled(slurm, executor, submission, tmp_path):
    message = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    slurm(sbatch=once_refused(message), squeue="echo '11|rule_train_model'; echo '5|rule_train_model'; echo '6|rule_other'")
    executor.active_jobs = [submitted("5")]
    executor.run_job(submission)
    assert (tmp_path / "cancelled").read_text() == "11\n"
    assert [job.external_jobid for job in executor.active_jobs] == ["5", "12"]


def test_ctrl_c_ends_submissions_that_wait(slurm, executor, submission, monkeypatch):
    monkeypatch.setattr(steady_executor, "FIRST_PAUSE_SECONDS", 60)
    slurm(sbatch=SBATCH_AWAY, squeue=AWAY)
    thread = threading.Thread(target=executor.run_job, args=(submission,), daemon=True)
    thread.start()
    executor.cancel_jobs([])
    thread.join(limits.seconds(10))
    assert not thread.is_alive()
    assert executor.active_jobs == executor.reported == []
