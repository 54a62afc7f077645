"""The executor as a whole: before the first job, under which name it submits, and Ctrl-C."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from fake_slurm import AWAY, SBATCH_AWAY, listing, look
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_slurm_steady.executor import SteadyExecutor
from snakemake_executor_plugin_slurm_steady.following import Following
from snaketrain.orchestration import executor_hooks
from snaketrain.orchestration.submissions import Submission, Submissions
from snaketrain.slurm.client import Slurm

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"


@pytest.mark.parametrize("executor", [kind for kind in SteadyExecutor.__mro__ if kind not in Following.__mro__], indirect=True)
def test_each_part_works_without_the_others(slurm, executor, submission):
    slurm(sbatch="echo 12", squeue=listing("12|COMPLETED"))
    executor.run_job(submission)
    assert look(executor, executor.active_jobs) == [] and executor.reported == [("12", "")]


class Job(types.SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def workflow(slurm, executor, tmp_path, monkeypatch):
    """One of a job that would be submitted as what is in the queue as job 4; what the hooks are asked is in `checked`."""
    job = Job(name="train_model", wildcards=["small"], is_local=False, is_group=lambda: False, output=[], resources={})
    made = Submission("4", "rule_train_model_wildcards_small", "as it is now", "4.log", {}, "elsewhere", 1, 1)
    Submissions().submitted(made)
    Submissions().file.write_text(Submissions().file.read_text().replace(f", {os.getpid()}, ", ", 0, "))
    slurm(
        squeue=f"if [ -e {tmp_path}/cancelled ]; then true; else echo '4|RUNNING|None|{made.comment}|n1|{tmp_path}'; fi",
        sbatch="echo 'allocation failure: Invalid partition name specified' >&2; exit 1",
    )
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.checks.submission", lambda job, settings: "sbatch")
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
    submit = Executor.run_job

    def meanwhile(self, job):
        executor.cancelling.set()
        submit(self, job)

    monkeypatch.setattr(Executor, "run_job", meanwhile)
    executor.run_job(submission)
    assert (tmp_path / "cancelled").read_text() == "12\n"
