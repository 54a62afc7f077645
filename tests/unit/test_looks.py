"""What follows from a look at the jobs: SLURM does not answer, forgets a job, or has ended it."""

import asyncio
import threading
import time

import limits
import pytest
from fake_slurm import AWAY, KNOWS_NO_JOB, listing, look

from snakemake_executor_plugin_slurm_steady.monitor import JobMonitor


def test_jobs_stay_active_while_slurm_does_not_answer(slurm, executor, submitted, caplog):
    jobs = [submitted("1"), submitted("2")]
    slurm(squeue=AWAY, scontrol=AWAY, sacct=AWAY)
    for _ in range(3):
        assert look(executor, jobs) == jobs
    assert caplog.text.count("SLURM does not answer") == 1
    slurm(squeue=listing("1|RUNNING", "2|COMPLETED"), scontrol="echo 'MinJobAge = 300 sec'")
    assert look(executor, jobs) == jobs[:1]
    assert executor.reported == [("2", "")]
    assert "SLURM answers again" in caplog.text


def test_a_job_that_left_squeue_long_ago_is_over(slurm, executor, submitted, tmp_path):
    """It ended while Snakemake slept for longer than MinJobAge; its results tell how."""
    jobs = [submitted("1", "manifest.json"), submitted("2", "missing.json"), submitted("3")]
    (tmp_path / "manifest.json").touch()
    slurm(squeue=listing("3|RUNNING"))
    assert look(executor, jobs) == jobs, "it may have been submitted a moment ago"
    assert look(executor, jobs) == jobs[2:]
    assert executor.reported[0] == ("1", "")
    number, message = executor.reported[1]
    assert number == "2" and "left no result" in message


@pytest.mark.parametrize("answer", ["", "echo '<html>'"])
def test_jobs_that_squeue_does_not_list_are_followed_while_scontrol_knows_them(slurm, executor, submitted, answer, tmp_path):
    """squeue was seen to answer nothing, with exit 0, for 45 seconds: all retries were used, and the jobs left running."""
    jobs = [submitted("1"), submitted("2")]
    slurm(squeue=answer, scontrol="echo 'JobId=1 JobName=x JobState=RUNNING Reason=None'")
    for _ in range(4):
        assert look(executor, jobs) == jobs
    slurm(squeue="", scontrol=KNOWS_NO_JOB)
    for _ in range(2):
        jobs = look(executor, jobs)
    assert [number for number, _ in executor.reported] == ["1", "2"]
    assert (tmp_path / "cancelled").read_text().split() == ["1", "2"], "before anything is submitted in their place"


def test_while_scontrol_does_not_answer_one_look_asks_once(slurm, executor, submitted, tmp_path):
    """No answer takes a minute, for each of hundreds of jobs."""
    jobs = [submitted(str(number)) for number in range(1, 6)]
    slurm(squeue="true", scontrol=f'echo "$@" >> {tmp_path}/asked; {AWAY}')
    assert look(executor, jobs) == jobs
    (tmp_path / "asked").unlink(missing_ok=True)
    assert look(executor, jobs) == jobs and executor.reported == []
    assert (tmp_path / "asked").read_text().count("show job") == 1


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL"])
def test_a_job_that_slurm_does_not_requeue_is_tried_again(slurm, executor, submitted, state):
    """Where partitions preempt by cancelling. The plugin would wait for its return."""
    jobs = [submitted("1", "missing.json")]
    slurm(squeue=listing(f"1|{state}"))
    assert look(executor, jobs) == jobs
    assert look(executor, jobs) == []
    assert f"SLURM has not requeued job 1 (SLURM status is: '{state}'), and it left no result" in executor.reported[0][1]
    assert jobs[0].job.attempt == 1 and executor.submissions.latest()["rule_train_model_wildcards_small"].state == state


def test_a_job_that_is_preempted_and_requeued_stays_active(slurm, executor, submitted):
    jobs = [submitted("1")]
    for state in ("PREEMPTED", "PENDING", "PREEMPTED"):
        slurm(squeue=listing(f"1|{state}"))
        assert look(executor, jobs) == jobs


def test_files_left_by_an_earlier_job_are_not_results_of_this_one(slurm, executor, submitted, tmp_path):
    """SLURM has lost a job before it began, and the manifest of an earlier job still exists."""
    (tmp_path / "manifest.json").write_text("old")
    job = submitted("1", "manifest.json")
    for _ in range(2):
        look(executor, [job])
    assert "left no result" in executor.reported[0][1]


def test_a_sleep_between_two_polls_ends_with_the_workflow(executor):
    executor.next_seconds_between_status_checks = 180
    threading.Timer(0.3, lambda: setattr(executor, "wait", False)).start()
    began = time.monotonic()
    asyncio.run(executor.sleep())
    assert time.monotonic() - began < limits.seconds(10)


def test_one_look_asks_slurm_once(slurm, executor, submitted, tmp_path):
    """For the states of hundreds of jobs, and for what is told of them."""
    told = []
    executor.monitor = JobMonitor(executor.slurm, tmp_path, told.append, {})
    jobs = [submitted(str(number)) for number in range(1, 4)]
    rows = "".join(f"echo '{number}|PENDING|JobHeldUser|rule_train_model_wildcards_small||{tmp_path}'; " for number in range(1, 4))
    slurm(**dict.fromkeys(("squeue", "scontrol", "sacct"), f'echo "$0 $*" >> {tmp_path}/asked; {rows}'))
    assert look(executor, jobs) == jobs
    assert len((tmp_path / "asked").read_text().splitlines()) == 1 and "3 SLURM jobs have been waiting" in told[0]


def test_scontrol_knows_how_a_job_ended_that_squeue_does_not_list(slurm, executor, submitted):
    """Most clusters' users may not ask accounting, and squeue was seen to list nothing: what its user cancelled must not start again."""
    jobs = [submitted("1", "missing.json")]
    slurm(squeue="", scontrol="echo 'JobId=1 JobName=x JobState=CANCELLED Reason=None'", sacct="exit 1")
    for _ in range(2):
        jobs = look(executor, jobs)
    assert "SLURM status is: 'CANCELLED'" in executor.reported[0][1] and "is not retried" in executor.reported[0][1]


@pytest.mark.parametrize(("accounting", "attempt"), [("CANCELLED by 0", 3), ("TIMEOUT", 1), ("", 1)])
def test_accounting_knows_how_a_job_ended_that_squeue_no_longer_lists(slurm, executor, submitted, accounting, attempt):
    """Where MinJobAge is short. What somebody has cancelled is not tried again."""
    job = submitted("1", "missing.json")
    slurm(squeue="true", sacct=f"echo '{accounting}'")
    for _ in range(2):
        look(executor, [job])
    assert job.job.attempt == attempt and "left no result" in executor.reported[0][1]
    assert executor.submissions.latest()["rule_train_model_wildcards_small"].state == (accounting.split() or ["FAILED"])[0]
