"""What the executor does when SLURM does not answer, forgets a job, or refuses one for a while; the plugin's own code runs on a fake SLURM."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import limits
import pytest
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady import executor as steady_executor
from snakemake_executor_plugin_slurm_steady.executor import SteadyExecutor
from snakemake_executor_plugin_slurm_steady.left_over import Left
from snaketrain.orchestration import executor_hooks
from snaketrain.orchestration.submissions import Submission, Submissions
from snaketrain.slurm.client import Slurm

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
SBATCH_AWAY = "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1"
ONE_OF_ANOTHER_FOLDER = """case "$*" in
*'|'*) echo '3|RUNNING|None|x|n1|/elsewhere';;
*) echo 3;;
esac"""
KNOWS_NO_JOB = """case "$*" in
*"show job"*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;
esac
echo 'MinJobAge = 300 sec'"""
AT_THE_LIMIT = "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1"


@pytest.fixture
def slurm(tmp_path, monkeypatch, programs):
    """Programs of SLURM that do as a test says: `slurm(squeue="echo ...")`."""
    monkeypatch.chdir(tmp_path)
    programs(squeue="true", scontrol=KNOWS_NO_JOB, scancel='echo "$@" >> $HERE/cancelled')
    return programs


@pytest.fixture
def executor(monkeypatch):
    """Without Snakemake around it: what it reports is kept in `reported`."""
    settings = types.SimpleNamespace(
        status_command="squeue", status_attempts=2, init_seconds_before_status_checks=20, keep_successful_logs=True, requeue=True,
        pass_command_as_script=False, no_account=True, logdir=None, exclude_failed_nodes=None, jobname_prefix=None, array_jobs=None,
        array_limit=1000, partition_config=None, efficiency_report=False, delete_logfiles_older_than=0, qos=None, reservation=None,
        keep_going=True,
    )  # fmt: skip
    monkeypatch.setattr(steady_executor.Executor, "__init__", lambda self, *_: None)
    monkeypatch.setattr(executor_hooks, "registered", lambda: None)
    nothing_to_do = types.SimpleNamespace(needrun_jobs=list)
    workflow = types.SimpleNamespace(executor_settings=settings, workdir_init=Path.cwd(), dag=nothing_to_do)
    made = SteadyExecutor(workflow, logging.getLogger("executor"))
    made.workflow = workflow
    made.logger, made.lock, made.active_jobs, made.reported, made.wait = logging.getLogger("executor"), threading.Lock(), [], [], True
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


@pytest.fixture
def submitted(executor):
    """A job that the workflow has submitted."""

    def submit(number: str, *output: str, run: str = "small") -> SubmittedJobInfo:
        job = types.SimpleNamespace(
            name="train_model", wildcards=[run], output=list(output), attempt=1, restart_times=2, resources={"mem_mb": 4000}
        )
        job_info = SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": Path(f"{number}.log")})
        executor.report_job_submission(job_info)
        return job_info

    return submit


def look(executor, jobs):
    async def kept():
        return [job async for job in executor.check_active_jobs(jobs)]

    return asyncio.run(kept())


def test_jobs_stay_active_while_slurm_does_not_answer(slurm, executor, submitted, caplog):
    jobs = [submitted("1"), submitted("2")]
    slurm(squeue=AWAY, scontrol=AWAY, sacct=AWAY)
    for _ in range(3):
        assert look(executor, jobs) == jobs
    assert caplog.text.count("SLURM does not answer") == 1
    slurm(squeue="echo '1|RUNNING'; echo '2|COMPLETED'", scontrol="echo 'MinJobAge = 300 sec'")
    assert look(executor, jobs) == jobs[:1]
    assert executor.reported == [("2", "")]
    assert "SLURM answers again" in caplog.text


def test_a_job_that_left_squeue_long_ago_is_over(slurm, executor, submitted, tmp_path):
    """It ended while Snakemake slept for longer than MinJobAge; its results tell how."""
    jobs = [submitted("1", "manifest.json"), submitted("2", "missing.json"), submitted("3")]
    (tmp_path / "manifest.json").touch()
    slurm(squeue="echo '3|RUNNING'")
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
        look(executor, jobs)
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
    slurm(squeue=f"echo '1|{state}'")
    assert look(executor, jobs) == jobs
    assert look(executor, jobs) == []
    assert f"SLURM has not requeued job 1 (SLURM status is: '{state}'), and it left no result" in executor.reported[0][1]
    assert jobs[0].job.attempt == 1 and executor.submissions.latest()["rule_train_model_wildcards_small"].state == state


def test_a_job_that_is_preempted_and_requeued_stays_active(slurm, executor, submitted):
    jobs = [submitted("1")]
    for state in ("PREEMPTED", "PENDING", "PREEMPTED"):
        slurm(squeue=f"echo '1|{state}'")
        assert look(executor, jobs) == jobs


def test_files_left_by_an_earlier_job_are_not_results_of_this_one(slurm, executor, submitted, tmp_path):
    """SLURM has lost a job before it began, and the manifest of an earlier job still exists."""
    (tmp_path / "manifest.json").write_text("old")
    job = submitted("1", "manifest.json")
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
def test_a_job_that_would_end_the_same_way_is_not_retried(slurm, executor, submitted, state, attempt, message):
    job = submitted("1")
    job.aux["slurm_logfile"].write_text("as usual\n")
    slurm(squeue=f"echo '1|{state}'")
    assert look(executor, [job]) == []
    assert job.job.attempt == attempt
    assert message in executor.reported[0][1]


def test_a_memory_kill_that_slurm_calls_a_failure_is_not_retried(slurm, executor, submitted):
    """If SLURM does not count memory kills, only the log shows them."""
    job = submitted("1")
    job.aux["slurm_logfile"].write_text("job 1: out of memory: the kernel killed 1 process of this job on n2 for memory (limit 4000 MB)\n")
    slurm(squeue="echo '1|FAILED'")
    assert look(executor, [job]) == []
    assert job.job.attempt == 3
    assert "It was killed for its memory (4000 MB were asked for on each node; the kernel killed" in executor.reported[0][1]


def test_an_exception_of_the_plugin_does_not_lose_jobs(slurm, executor, submitted, monkeypatch):
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
    monkeypatch.setattr(steady_executor, "fingerprint", lambda job, settings: "as it is now")
    executor.slurm_logdir = Path("logs")
    return types.SimpleNamespace(
        name="train_model", output=[], jobid=7, wildcards=[], is_group=lambda: False, resources={"runtime": 1, "mem_mb": 1}, rule=types.SimpleNamespace(name="x")
    )  # fmt: skip


def once_refused(message: str) -> str:
    return f"if [ -e refused ]; then echo 12; else touch refused; {message}; fi"


@pytest.mark.parametrize("message", [SBATCH_AWAY, AT_THE_LIMIT], ids=["outage", "limit"])
def test_a_submission_waits(slurm, executor, submission, caplog, message):
    slurm(sbatch=once_refused(message), squeue=ONE_OF_ANOTHER_FOLDER)
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"]
    assert executor.reported == []
    assert caplog.text.count("is not submitted yet") == 1


def test_a_node_that_cannot_run_a_jobs_script_gets_no_other_one(slurm, executor, submitted):
    """Here of a job that left no log. What the plugin's `_failed_nodes` do, tests/slurm/test_unfit_nodes.py tests."""
    known = "echo 'JobId=1 Restarts=0 NodeList=(null) BatchHost=n3 EndTime=Unknown'"
    slurm(squeue="echo '1|FAILED'", scontrol=f'case "$*" in *"show job"*) {known};; *) echo \'MinJobAge = 300 sec\';; esac')
    look(executor, [submitted("1")])
    assert "jobs are submitted with --exclude=n3" in executor.reported[0][1] and executor._failed_nodes == {"n3"}


def test_many_submissions_that_wait_are_one_line(slurm, executor, submission, caplog, monkeypatch):
    """Of the first of them; when they are submitted, each has the line that it always has."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(steady_executor, "FIRST_PAUSE_SECONDS", 0.1)
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


def test_the_plugin_says_nothing_during_an_outage(slurm, executor, submitted, caplog):
    """It would say at each look that it asks `sacct`, or cannot, since it does not know MinJobAge."""
    caplog.set_level(logging.INFO)
    jobs = [submitted("1")]
    slurm(squeue=AWAY, scontrol=AWAY, sacct="true")
    for _ in range(3):
        assert look(executor, jobs) == jobs
    said = [record.getMessage() for record in caplog.records]
    assert said == ["SLURM does not answer. Its jobs keep running; their states are queried again when it does."]


def test_many_submissions_at_a_limit_do_not_each_ask_for_all_jobs(slurm, executor, submission, tmp_path):
    """SLURM refused, so no job can have been lost; only a missing answer needs that check."""
    slurm(sbatch=once_refused(AT_THE_LIMIT), squeue=f'echo "$@" >> {tmp_path}/asked; {ONE_OF_ANOTHER_FOLDER}')
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"]
    assert {line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()} == {"--me"}


def test_a_limit_with_no_job_ahead_is_a_failure(slurm, executor, submission):
    slurm(sbatch=AT_THE_LIMIT, squeue="true")
    executor.run_job(submission)
    assert executor.active_jobs == []
    assert "QOSMaxSubmitJobPerUserLimit" in executor.reported[0][1]


def test_a_job_that_is_followed_is_ahead_although_squeue_answers_nothing(slurm, executor, submission, submitted):
    slurm(sbatch=once_refused(AT_THE_LIMIT), squeue="true")
    submitted("5", run="other")
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["5", "12"] and not executor.reported


def test_an_outage_after_a_long_wait_for_something_else_is_no_failure(slurm, executor, submission, monkeypatch, tmp_path):
    monkeypatch.setattr(steady_executor, "OUTAGE_PATIENCE_SECONDS", 0.5)
    first, second = f"[ -e {tmp_path}/limit ]", f"[ -e {tmp_path}/outage ]"
    waits = f"touch {tmp_path}/limit; sleep 0.7; {AT_THE_LIMIT}"
    slurm(
        sbatch=f"if ! {first}; then {waits}; elif ! {second}; then touch {tmp_path}/outage; {SBATCH_AWAY}; else echo 12; fi",
        squeue=ONE_OF_ANOTHER_FOLDER,
    )
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["12"] and not executor.reported


def test_an_endless_outage_is_a_failure(slurm, executor, submission, monkeypatch):
    monkeypatch.setattr(steady_executor, "OUTAGE_PATIENCE_SECONDS", 0.1)
    slurm(sbatch=SBATCH_AWAY, squeue=AWAY)
    executor.run_job(submission)
    assert "Unable to contact" in executor.reported[0][1]


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
    monkeypatch.setattr(steady_executor, "NO_NUMBER_PATIENCE_SECONDS", 0)
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
    monkeypatch.setattr(steady_executor, "FIRST_PAUSE_SECONDS", 60)
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
    monkeypatch.setattr(steady_executor, "FIRST_PAUSE_SECONDS", 60)
    slurm(sbatch=SBATCH_AWAY, squeue=AWAY)
    thread = threading.Thread(target=executor.run_job, args=(submission,), daemon=True)
    thread.start()
    executor.cancel_jobs([])
    thread.join(limits.seconds(10))
    assert not thread.is_alive()
    assert executor.active_jobs == executor.reported == []


# --- before the first job


class Job(types.SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def workflow(slurm, executor, tmp_path, monkeypatch):
    """One of a job that would be submitted as what is in the queue as job 4; what the hooks are asked is in `checked`."""
    job = Job(name="train_model", wildcards=["small"], is_local=False, is_group=lambda: False, output=[])
    made = Submission("4", "rule_train_model_wildcards_small", "as it is now", "4.log", {}, "elsewhere", 1, 1)
    Submissions().submitted(made)
    Submissions().file.write_text(Submissions().file.read_text().replace(f", {os.getpid()}, ", ", 0, "))
    slurm(
        squeue=f"if [ -e {tmp_path}/cancelled ]; then true; else echo '4|RUNNING|None|{made.comment}|n1|{tmp_path}'; fi",
        sbatch="echo 'allocation failure: Invalid partition name specified' >&2; exit 1",
    )
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.submitting.submission", lambda job, settings: "sbatch")
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.left_over.fingerprint", lambda job, settings: "as it is now")
    executor.checked = []
    executor.hooks = executor_hooks.Hooks(executor.checked.append, lambda job: False, lambda: ({}, {}))
    executor.workflow.executor_settings.logdir = "logs/slurm"
    before = Job(name="prepare_data")
    return types.SimpleNamespace(
        executor_settings=executor.workflow.executor_settings, main_snakefile="Snakefile", overwrite_configfiles=["my.yaml"],
        config_settings=types.SimpleNamespace(config_args=None), before=before, job=job,
        dag=types.SimpleNamespace(
            needrun_jobs=lambda: [job], get_job_group=lambda job: None, needrun=lambda job: False, dependencies={job: [before]},
            reason=lambda job: types.SimpleNamespace(forced=False),
        ),
    )  # fmt: skip


def test_what_slurm_would_refuse_is_handed_to_the_check(executor, workflow):
    executor.begin(workflow)
    ((refused,),) = executor.checked
    assert refused.startswith("train_model small: SLURM would refuse it: Invalid partition")
    assert executor.left_over.kept["rule_train_model_wildcards_small"].submission.number == "4"
    assert oct(Path("logs").stat().st_mode & 0o777) == oct(Path("logs/slurm").stat().st_mode & 0o777) == "0o750"


def test_no_job_is_ended_where_the_check_fails(executor, workflow, tmp_path):
    def refuse(refused):
        raise ValueError(refused)

    executor.hooks = executor_hooks.Hooks(refuse, lambda job: False, lambda: ({}, {}))
    with pytest.raises(ValueError, match="SLURM would refuse it"):
        executor.begin(workflow)
    assert executor.left_over.kept == {} and not (tmp_path / "cancelled").exists()


def test_a_job_whose_input_is_made_again_is_ended(executor, workflow, tmp_path):
    workflow.dag.needrun = lambda job: job is workflow.before
    executor.begin(workflow)
    assert executor.left_over.kept == {} and (tmp_path / "cancelled").read_text() == "4\n"


def test_silence_of_slurm_is_a_plain_error(slurm, executor, workflow):
    slurm(squeue=AWAY)
    with pytest.raises(WorkflowError, match="Unable to contact slurm controller"):
        executor.begin(workflow)


def test_another_workflow_is_told_that_this_executor_is_not_for_it(monkeypatch):
    monkeypatch.setattr(executor_hooks, "_registered", [])
    with pytest.raises(WorkflowError, match="slurm-steady works with snaketrain's Snakefile"):
        SteadyExecutor(None, None)


def test_without_the_plugin_for_slurm_only_this_executor_is_missing():
    """Snakemake imports it for every executor."""
    code = (
        "import sys; sys.modules['snakemake_executor_plugin_slurm'] = None\n"
        "import snakemake_executor_plugin_slurm_steady as ours\n"
        "from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry\n"
        "ExecutorPluginRegistry.collect_plugins = lambda self: setattr(self, 'plugins', {})\n"
        "ExecutorPluginRegistry().register_plugin(ours.__name__, ours)\n"
        "ExecutorPluginRegistry().get_plugin('slurm-steady').executor(None, None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=SCRIPTS)
    assert "WorkflowError: executor: slurm-steady needs snakemake-executor-plugin-slurm, which is not installed" in done.stderr


# --- names


def test_a_jobs_name_says_what_it_is(slurm, executor, submitted, tmp_path):
    """In plain squeue; the plugin would name all jobs of a workflow by one UUID, and asks for that name."""
    asked = f'echo "$@" >> {tmp_path / "asked"}; echo "1|RUNNING"'
    slurm(squeue=asked)
    jobs = [submitted("1", run="small"), submitted("2", run="a b,c")]
    look(executor, jobs)
    assert "--name train_model:a_b_c,train_model:small" in (tmp_path / "asked").read_text()


def test_the_name_that_a_job_is_submitted_with(slurm, executor, submission, monkeypatch):
    given = []
    monkeypatch.setattr(
        "snakemake_executor_plugin_slurm.get_submit_command", lambda job, about, **_: given.append(about["run_uuid"]) or "sbatch"
    )
    submission.wildcards = ["large"]
    slurm(sbatch="echo 12")
    executor.run_job(submission)
    executor.workflow.executor_settings.jobname_prefix = "mine"
    executor.run_job(submission)
    assert given == ["train_model:large", "mine_train_model:large"]


# --- jobs of a killed workflow


def left(number: str, is_done: bool = False) -> Left:
    made = Submission(number, "rule_train_model", "as it is now", f"{number}.log", {"manifest.json": None}, "elsewhere", 1, 1)
    Submissions().submitted(made)
    return Left(made, is_done)


def test_a_leftover_job_continues(slurm, executor, submission):
    slurm(sbatch="echo 12")
    executor.left_over.kept["rule_train_model"] = left("4")
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["4"]
    made = executor.submissions.latest()["rule_train_model"]
    assert (made.number, made.is_ours, made.state) == ("4", True, "")
    slurm(squeue="echo '4|COMPLETED'")
    assert look(executor, executor.active_jobs) == []
    assert executor.reported == [("4", "")] and executor.submissions.latest()["rule_train_model"].state == "COMPLETED"


def test_a_leftover_job_that_fails_is_submitted_by_the_retry(slurm, executor, submission):
    slurm(sbatch="echo 12", squeue="echo '4|FAILED'")
    submission.attempt, submission.restart_times = 1, 2
    executor.left_over.kept["rule_train_model"] = left("4")
    executor.run_job(submission)
    look(executor, executor.active_jobs)
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["4", "12"]


def test_a_leftover_job_that_slurm_has_forgotten_is_done_if_its_results_exist(slurm, executor, submission):
    """It has written its result before this workflow began to follow it."""
    submission.output = ["manifest.json"]
    Path("manifest.json").touch()
    executor.left_over.kept["rule_train_model"] = left("4")
    executor.run_job(submission)
    for _ in range(2):
        look(executor, executor.active_jobs)
    assert executor.reported == [("4", "")]


def test_what_finished_while_no_workflow_ran_is_not_submitted(slurm, executor, submission):
    slurm(sbatch="echo 12")
    executor.left_over.kept["rule_train_model"] = left("4", is_done=True)
    executor.run_job(submission)
    assert (executor.active_jobs, executor.reported) == ([], [("4", "")])
    assert executor.submissions.latest()["rule_train_model"].state == "COMPLETED"


def test_an_error_of_ours_while_submitting_fails_the_job(slurm, executor, submission, monkeypatch):
    """It is raised in a thread whose errors nobody sees."""
    monkeypatch.setattr(steady_executor, "fingerprint", lambda job, settings: Path("missing").read_text())
    executor.run_job(submission)
    assert "FileNotFoundError" in executor.reported[0][1]


# --- Ctrl-C


def test_ctrl_c_waits_until_the_jobs_have_saved(slurm, executor, submitted, caplog, tmp_path):
    """Also for jobs that are being polled, which Snakemake leaves out."""
    caplog.set_level("INFO")
    submitted("4"), submitted("5", run="large")
    slurm(squeue=f"test -e {tmp_path}/asked || echo 4; touch {tmp_path}/asked")
    executor.cancel_jobs([])
    assert (tmp_path / "cancelled").read_text() == "4 5\n"
    assert "Cancelled SLURM jobs 4 (train_model:small), 5 (train_model:large). Waiting until they have saved" in caplog.text
    assert "All have ended, after 1 seconds." in caplog.text
    assert not executor.wait, "the end of each would be reported as a failure"


def test_a_second_ctrl_c_leaves_at_once(slurm, executor, submitted, caplog, monkeypatch):
    caplog.set_level("INFO")

    def interrupted(self, numbers):
        raise KeyboardInterrupt

    monkeypatch.setattr(Slurm, "in_queue", interrupted)
    submitted("4")
    executor.cancel_jobs([])
    assert "Not waiting any longer for SLURM job 4 (train_model:small)" in caplog.text


def test_ctrl_c_while_slurm_does_not_answer_says_what_keeps_running(slurm, executor, submitted, caplog):
    submitted("4")
    slurm(scancel=SBATCH_AWAY)
    executor.cancel_jobs([])
    assert "keep running" in caplog.text and "scancel 4" in caplog.text


def test_ctrl_c_while_scancel_hangs_does_not_wait_for_jobs(slurm, executor, submitted, caplog, monkeypatch):
    """The plugin would report a success. Found by the simulated cluster (seed 424)."""
    monkeypatch.setattr("snaketrain.slurm.client.TIMEOUT_SECONDS", 0.2)
    submitted("4")
    slurm(scancel="exec sleep 60")
    executor.cancel_jobs([])
    assert "keep running" in caplog.text and "Waiting" not in caplog.text


def test_ctrl_c_cancels_a_job_that_is_just_being_submitted(slurm, executor, submission, monkeypatch, tmp_path):
    slurm(sbatch="echo 12")
    submit = steady_executor.Executor.run_job

    def meanwhile(self, job):
        executor.cancelling.set()
        submit(self, job)

    monkeypatch.setattr(steady_executor.Executor, "run_job", meanwhile)
    executor.run_job(submission)
    assert (tmp_path / "cancelled").read_text() == "12\n"


def test_a_sleep_between_two_polls_ends_with_the_workflow(executor):
    executor.next_seconds_between_status_checks = 180
    threading.Timer(0.3, lambda: setattr(executor, "wait", False)).start()
    began = time.monotonic()
    asyncio.run(executor.sleep())
    assert time.monotonic() - began < limits.seconds(10)
