"""A submission that SLURM refuses for a while is tried again, and never leaves two jobs."""

import logging
import threading
import time
import types
from pathlib import Path

import limits
import pytest
from fake_slurm import AWAY, SBATCH_AWAY

from snakemake_executor_plugin_slurm_steady import left_over, submitting

ONE_OF_ANOTHER_FOLDER = """case "$*" in
*'|'*) echo '3|RUNNING|None|x|n1|/elsewhere';;
*) echo 3;;
esac"""
JOB_LIMIT = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, size and/or time limits)"
AT_THE_LIMIT = "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1"


def once_refused(message: str) -> str:
    return f"if [ -e refused ]; then echo 12; else touch refused; {message}; fi"


@pytest.mark.parametrize("message", [SBATCH_AWAY, AT_THE_LIMIT], ids=["outage", "limit"])
def test_a_submission_waits(slurm, executor, submission, caplog, message):
    slurm(sbatch=once_refused(message), squeue=ONE_OF_ANOTHER_FOLDER)
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"]
    assert executor.reported == []
    assert caplog.text.count("is not submitted yet") == 1


def test_many_submissions_that_wait_are_one_line(slurm, executor, submission, caplog, monkeypatch):
    """Of the first of them; when they are submitted, each has the line that it always has."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(submitting, "FIRST_PAUSE_SECONDS", 0.1)
    slurm(sbatch=f"touch tried-$$; {AT_THE_LIMIT}", squeue=ONE_OF_ANOTHER_FOLDER)
    jobs = [types.SimpleNamespace(**vars(submission) | {"wildcards": [str(number)], "jobid": number}) for number in range(5)]
    threads = [threading.Thread(target=executor.run_job, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    limits.until(lambda: len(list(Path().glob("tried-*"))) > 10)
    slurm(sbatch="echo 12")
    for thread in threads:
        thread.join(limits.seconds(60))
    assert len(executor.active_jobs) == 5
    assert caplog.text.count("is not submitted yet") == 1 and caplog.text.count("was submitted after") == 1
    assert executor.waiting == {}


def test_many_submissions_at_a_limit_do_not_each_ask_for_all_jobs(slurm, executor, submission, tmp_path):
    """SLURM refused, so no job can have been lost; only a missing answer needs that check."""
    slurm(sbatch=once_refused(AT_THE_LIMIT), squeue=f'echo "$@" >> {tmp_path}/asked; {ONE_OF_ANOTHER_FOLDER}')
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"]
    assert {line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()} == {"--me"}


def test_a_limit_that_only_other_users_fill_is_waited_for(slurm, executor, submission, caplog):
    """Found by the simulated cluster (seed 856): all retries were used up within six minutes."""
    slurm(sbatch=once_refused(AT_THE_LIMIT), squeue="true")
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"] and not executor.reported
    assert "a limit on submitted jobs is reached, although you have none in the queue; trying again for 30 minutes" in caplog.text


@pytest.mark.parametrize("named", [True, False])
def test_a_limit_that_admits_no_job_is_a_failure(slurm, executor, submission, monkeypatch, named):
    """At once, if it may be one of a single job's size."""
    monkeypatch.setattr(submitting, "OTHERS_PATIENCE_SECONDS", 0.1 if named else 1e9)
    slurm(sbatch=AT_THE_LIMIT if named else f"echo '{JOB_LIMIT}' >&2; exit 1", squeue="true")
    executor.run_job(submission)
    assert executor.active_jobs == []
    assert ("QOSMaxSubmitJobPerUserLimit" if named else "accounting/QOS policy") in executor.reported[0][1]


@pytest.mark.parametrize("for_ever", [False, True])
def test_a_job_that_no_node_could_run_is_tried_once_more(slurm, executor, submission, tmp_path, monkeypatch, for_ever):
    """slurmctld has just started, and its nodes register after it refused the job and before sinfo is asked for them."""
    monkeypatch.setattr(submitting, "FIRST_PAUSE_SECONDS", 0.1)
    refuse = "echo 'sbatch: error: Batch job submission failed: Requested node configuration is not available' >&2; exit 1"
    sbatch = refuse if for_ever else once_refused(refuse)
    slurm(sbatch=f"echo >> {tmp_path}/tries; {sbatch}", squeue="true", sinfo="echo 'a1 idle'")
    executor.run_job(submission)
    assert (tmp_path / "tries").read_text().count("\n") == 2
    assert bool(executor.reported) == for_ever and [job.external_jobid for job in executor.active_jobs] == ["12"] * (not for_ever)


def test_an_endless_outage_is_a_failure(slurm, executor, submission, monkeypatch):
    monkeypatch.setattr(submitting, "OUTAGE_PATIENCE_SECONDS", 0.1)
    slurm(sbatch=SBATCH_AWAY, squeue=AWAY)
    executor.run_job(submission)
    assert "Unable to contact" in executor.reported[0][1]


def test_a_job_that_is_followed_is_ahead_although_squeue_answers_nothing(slurm, executor, submission, submitted):
    slurm(sbatch=once_refused(AT_THE_LIMIT), squeue="true")
    submitted("5", run="other")
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["5", "12"] and not executor.reported


def test_an_outage_after_a_long_wait_for_something_else_is_no_failure(slurm, executor, submission, monkeypatch, tmp_path):
    monkeypatch.setattr(submitting, "OUTAGE_PATIENCE_SECONDS", 0.5)
    first, second = f"[ -e {tmp_path}/limit ]", f"[ -e {tmp_path}/outage ]"
    waits = f"touch {tmp_path}/limit; sleep 0.7; {AT_THE_LIMIT}"
    slurm(
        sbatch=f"if ! {first}; then {waits}; elif ! {second}; then touch {tmp_path}/outage; {SBATCH_AWAY}; else echo 12; fi",
        squeue=ONE_OF_ANOTHER_FOLDER,
    )
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"] and not executor.reported


def test_another_refusal_is_reported_at_once(slurm, executor, submission):
    slurm(sbatch="touch called-$$; echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1")
    executor.run_job(submission)
    assert "invalid partition" in executor.reported[0][1]
    assert len(list(Path().glob("called-*"))) == 1


def test_a_job_whose_submission_was_not_confirmed_is_cancelled(slurm, executor, submission, submitted, tmp_path):
    """And no job of another folder, where a run may have the same name."""
    message = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    rows = [
        f"11|PENDING|None|rule_train_model||{tmp_path}",
        f"5|RUNNING|None|rule_train_model||{tmp_path}",
        f"6|RUNNING|None|rule_other||{tmp_path}",
    ]
    rows += ["7|RUNNING|None|rule_train_model||/elsewhere", f"8|CANCELLED|None|rule_train_model||{tmp_path}"]
    slurm(sbatch=once_refused(message), squeue="\n".join(f"echo '{row}'" for row in rows))
    submitted("5")
    executor.run_job(submission)
    assert (tmp_path / "cancelled").read_text() == "11\n"
    assert [job.external_jobid for job in executor.active_jobs] == ["5", "12"]


def test_a_job_whose_number_sbatch_does_not_print_is_cancelled(slurm, executor, submission, tmp_path, caplog):
    """Two jobs would train one run, and the second would end the first."""
    slurm(
        sbatch=f"if [ -e {tmp_path}/once ]; then echo 12; else touch {tmp_path}/once; fi",
        squeue=f"[ -e {tmp_path}/once ] && echo '11|PENDING|None|rule_train_model||{tmp_path}'",
    )
    executor.run_job(submission)
    assert (tmp_path / "cancelled").read_text() == "11\n"
    assert [job.external_jobid for job in executor.active_jobs] == ["12"] and not executor.reported
    assert "sbatch did not say which number it has" in caplog.text


def test_a_queue_without_the_jobs_that_are_followed_proves_nothing(slurm, executor, submission, submitted, tmp_path):
    """squeue answers nothing several times in a row. Found by the simulated cluster (seed 7): both jobs ran."""
    message, _ = lost_answer(tmp_path)
    count = f"echo >> {tmp_path}/looks; [ $(wc -l < {tmp_path}/looks) -gt 5 ]"
    rows = f"echo '5|RUNNING|None|rule_other||{tmp_path}'; echo '11|PENDING|None|rule_train_model||{tmp_path}'"
    slurm(sbatch=f"if [ -e {tmp_path}/cancelled ]; then echo 12; else {message}; fi", squeue=f"if {count}; then {rows}; fi")
    submitted("5", run="other")
    executor.run_job(submission)
    assert (tmp_path / "cancelled").read_text() == "11\n"
    assert [job.external_jobid for job in executor.active_jobs] == ["5", "12"]


def test_a_job_without_a_number_is_not_left_in_the_queue(slurm, executor, submission, monkeypatch, tmp_path):
    """It would run although it is reported as failed."""
    monkeypatch.setattr(submitting, "NO_NUMBER_PATIENCE_SECONDS", 0)
    slurm(sbatch="true", squeue=f"echo '11|PENDING|None|rule_train_model||{tmp_path}'")
    executor.run_job(submission)
    assert "No valid SLURM job ID" in executor.reported[0][1]
    assert (tmp_path / "cancelled").read_text() == "11\n"


def lost_answer(tmp_path) -> tuple[str, str]:
    """sbatch fails, but SLURM has taken job 11; squeue lists that, once the file `answers` is there."""
    message = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    row = f"echo '11|PENDING|None|rule_train_model||{tmp_path}'"
    asked = (
        f"if [ -e {tmp_path}/cancelled ]; then true; elif [ -e {tmp_path}/answers ]; then {row}; else touch {tmp_path}/answers; {AWAY}; fi"
    )
    return message, asked


def test_nothing_is_resubmitted_before_the_first_try_is_known_to_have_left_no_job(slurm, executor, submission, tmp_path):
    """SLURM does not answer that query either. Found by the simulated cluster (seed 465): both jobs ran."""
    message, asked = lost_answer(tmp_path)
    sbatch = f"if [ -e {tmp_path}/cancelled ]; then echo 12; else echo once >> {tmp_path}/submissions; {message}; fi"
    slurm(sbatch=sbatch, squeue=asked)
    executor.run_job(submission)
    assert (tmp_path / "submissions").read_text() == "once\n"
    assert (tmp_path / "cancelled").read_text() == "11\n"
    assert [job.external_jobid for job in executor.active_jobs] == ["12"]


def test_ctrl_c_cancels_a_job_whose_submission_was_not_confirmed(slurm, executor, submission, monkeypatch, tmp_path):
    """Ctrl-C comes while the submission waits for its next try."""
    monkeypatch.setattr(submitting, "FIRST_PAUSE_SECONDS", 60)
    message, asked = lost_answer(tmp_path)
    (tmp_path / "answers").touch()
    slurm(sbatch=message, squeue=asked)
    thread = threading.Thread(target=executor.run_job, args=(submission,), daemon=True)
    thread.start()
    while not hasattr(executor.logger, "told"):  # once it waits
        executor.logger.warning = lambda text: setattr(executor.logger, "told", text)
        time.sleep(0.05)
    del executor.logger.warning, executor.logger.told
    executor.cancel_jobs([])
    thread.join(limits.seconds(10))
    assert (tmp_path / "cancelled").read_text() == "11\n"


def test_ctrl_c_ends_submissions_that_wait(slurm, executor, submission, monkeypatch):
    monkeypatch.setattr(submitting, "FIRST_PAUSE_SECONDS", 60)
    slurm(sbatch=SBATCH_AWAY, squeue=AWAY)
    thread = threading.Thread(target=executor.run_job, args=(submission,), daemon=True)
    thread.start()
    executor.cancel_jobs([])
    thread.join(limits.seconds(10))
    assert not thread.is_alive()
    assert executor.active_jobs == executor.reported == []


def test_an_error_of_ours_while_submitting_fails_the_job(slurm, executor, submission, monkeypatch):
    """It is raised in a thread whose errors nobody sees."""
    monkeypatch.setattr(left_over, "fingerprint", lambda job, settings: Path("missing").read_text())
    executor.run_job(submission)
    assert "FileNotFoundError" in executor.reported[0][1]
