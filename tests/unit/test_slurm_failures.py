"""Why a job failed, from its state and the end of its log."""

import os
import sys

import pytest
from fake_slurm import listing, look

from snakemake_executor_plugin_slurm_steady.ends import failure
from snaketrain.runtime.processes import OUT_OF_MEMORY
from snaketrain.slurm.client import Slurm, SlurmError

STARTED = "job 7: 2 processes on each of n1, n2\n"
KILL = "the kernel killed 1 process of this job on n2 for memory (limit 4000 MB, peak 3998 MB)"


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The reason found for a job in a state with a log; the test provides the answer of accounting."""

    def explain(state: str, log: str | None, asked_mb: int | None = None, sacct: str | None = None):
        def answer(self, command):
            if sacct is None:
                raise SlurmError("sacct: accounting storage is disabled")
            return sacct

        monkeypatch.setattr(Slurm, "_answer", answer)
        if log is not None:
            (tmp_path / "7.log").write_text(log)
        return failure(Slurm(), "7", state, tmp_path / "7.log", asked_mb)

    return explain


def test_a_memory_kill_is_named_with_the_amounts(found):
    kill = found(
        "OUT_OF_MEMORY", f"{STARTED}job 7: {OUT_OF_MEMORY}{KILL}\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n", 4000
    )
    assert kill.what == (
        "was killed for its memory (4000 MB were asked for on each node; the kernel killed 1 process of this job on n2 for memory "
        "(limit 4000 MB, peak 3998 MB)). It would need as much again, so it is not retried: raise compute.memory_mb, or mem_mb in the profile "
        "for the other stages"
    )
    assert not kill.worth_retrying


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "OUT_OF_MEMORY"])
def test_a_memory_kill_by_jobacct_gather_is_named_too(found, state):
    line = "slurmstepd: error: StepId=7.0 exceeded memory limit (4194304000 > 2097152000), being killed\n"
    kill = found(state, STARTED + line)
    assert "was killed for its memory (4000 MB were in use, over a limit of 2000 MB)" in kill.what and not kill.worth_retrying


def test_accounting_is_asked_if_only_the_state_is_known(found):
    assert (
        "(2000 MB were asked for on each node; 1536 MB were in use by a process)"
        in found("OUT_OF_MEMORY", "", 2000, "12.50M\n\n1535.8M\n").what
    )
    assert "memory (2000 MB were asked for on each node)." in found("OUT_OF_MEMORY", "", 2000).what
    assert "memory. It" in found("OUT_OF_MEMORY", None).what


def test_a_kill_that_may_be_of_another_job_is_retried(found):
    kill = found("FAILED", f"{STARTED}job 7: {OUT_OF_MEMORY}{KILL.replace('of this job', 'of the machine, perhaps of another job,')}\n")
    assert kill.what.startswith(
        "may have been killed for its memory (the kernel killed 1 process of the machine, perhaps of another job, on n2"
    )
    assert kill.worth_retrying


def test_the_failure_of_an_earlier_start_is_not_the_reason(found):
    assert found("FAILED", f"{STARTED}job 7: {OUT_OF_MEMORY}{KILL}\n{STARTED}ValueError\n") is None


def test_a_job_without_a_log_does_not_see_the_working_directory(found):
    lost = found("FAILED", None)
    assert "left no log at " in lost.what and f"does not see the working directory {os.getcwd()}. Check with `srun ls -d" in lost.what
    assert lost.worth_retrying and lost.node_unfit, "on another node"
    elsewhere = found("FAILED", "slurmstepd: error: couldn't chdir to `/home/me': No such file or directory: going to /tmp instead\n")
    assert "was started in another folder: its node probably does not see" in elsewhere.what


@pytest.mark.parametrize(
    ("line", "why"), [("line 4: {}: No such file or directory", "No such file or directory"), ("4: {}: not found", "not found")]
)
def test_a_first_node_without_python(found, line, why):
    """As bash and sh say it. It fails each job within a second, so that SLURM gives it to the next one at once."""
    lost = found("FAILED", f"/var/spool/slurmd/job00007/slurm_script: {line.format(sys.executable)}\n")
    assert lost.what == f"could not start {sys.executable} on its node: {why}"
    assert lost.worth_retrying and lost.node_unfit
    assert found("FAILED", f"{sys.executable}: No module named mine\n") is None


def test_a_node_without_a_configuration_of_slurm(found):
    lost = found("FAILED", "srun: fatal: Could not establish a configuration source\n")
    assert "export SLURM_CONF before snakemake is started" in lost.what and not lost.worth_retrying


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "NODE_FAIL"])
def test_other_failures_are_left_to_the_log(found, state):
    assert found(state, "ValueError: oom\n") is None


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
    slurm(squeue=listing(f"1|{state}"))
    assert look(executor, [job]) == []
    assert job.job.attempt == attempt
    assert message in executor.reported[0][1]


def test_a_memory_kill_that_slurm_calls_a_failure_is_not_retried(slurm, executor, submitted):
    """If SLURM does not count memory kills, only the log shows them."""
    job = submitted("1")
    job.aux["slurm_logfile"].write_text("job 1: out of memory: the kernel killed 1 process of this job on n2 for memory (limit 4000 MB)\n")
    slurm(squeue=listing("1|FAILED"))
    assert look(executor, [job]) == []
    assert job.job.attempt == 3
    assert "It was killed for its memory (4000 MB were asked for on each node; the kernel killed" in executor.reported[0][1]


def test_a_node_that_cannot_run_a_jobs_script_gets_no_other_one(slurm, executor, submitted):
    """Here of a job that left no log. What the plugin's `_failed_nodes` do, tests/slurm/test_unfit_nodes.py tests."""
    known = "echo 'JobId=1 Restarts=0 NodeList=(null) BatchHost=n3 EndTime=Unknown'"
    slurm(squeue=listing("1|FAILED"), scontrol=f'case "$*" in *"show job"*) {known};; *) echo \'MinJobAge = 300 sec\';; esac')
    look(executor, [submitted("1")])
    assert "jobs are submitted with --exclude=n3" in executor.reported[0][1] and executor._failed_nodes == {"n3"}
