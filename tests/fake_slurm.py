"""SLURM's programs as scripts that do what a test says, and the executor over them; the fixtures are in unit/conftest.py."""

import asyncio
import contextlib
import logging
import threading
import types
from pathlib import Path

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.executor import SteadyExecutor
from snakemake_executor_plugin_slurm_steady.following import Following
from snaketrain.orchestration import executor_hooks

AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
SBATCH_AWAY = "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1"
KNOWS_NO_JOB = """case "$*" in
*"show job"*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;
esac
echo 'MinJobAge = 300 sec'"""


def listing(*jobs: str) -> str:
    """A squeue that lists jobs of this user, each given as `1|RUNNING`."""
    return "\n".join(f"echo '{job}|None|x|n1|/elsewhere'" for job in jobs) or "true"


def look(executor: Following, jobs: list[SubmittedJobInfo]) -> list[SubmittedJobInfo]:
    async def kept() -> list[SubmittedJobInfo]:
        return [job async for job in executor.check_active_jobs(jobs)]

    return asyncio.run(kept())


def steady_executor(monkeypatch, kind: type[Following] = SteadyExecutor) -> Following:
    """Without Snakemake around it: what it reports is kept in `reported`."""
    from snakemake_executor_plugin_slurm import Executor

    settings = types.SimpleNamespace(
        status_command=None, status_attempts=2, init_seconds_before_status_checks=20, keep_successful_logs=True, requeue=True,
        pass_command_as_script=False, no_account=True, logdir=None, exclude_failed_nodes=None, jobname_prefix=None, array_jobs=None,
        array_limit=1000, partition_config=None, efficiency_report=False, delete_logfiles_older_than=0, qos=None, reservation=None,
        keep_going=True,
    )  # fmt: skip
    monkeypatch.setattr(Executor, "__init__", lambda self, *_: None)
    monkeypatch.setattr(executor_hooks, "registered", lambda: None)
    nothing_to_do = types.SimpleNamespace(needrun_jobs=list)
    workflow = types.SimpleNamespace(executor_settings=settings, workdir_init=Path.cwd(), dag=nothing_to_do)
    made = kind(workflow, logging.getLogger("executor"))
    made.workflow = workflow
    made.logger, made.lock, made.active_jobs, made.reported, made.wait = logging.getLogger("executor"), threading.Lock(), [], [], True
    monkeypatch.setattr(Executor, "report_job_success", lambda self, job: made.reported.append((job.external_jobid, "")))
    monkeypatch.setattr(Executor, "report_job_error", lambda self, job, msg, **_: made.reported.append((job.external_jobid, msg)))
    monkeypatch.setattr(Executor, "report_job_submission", lambda self, job: made.active_jobs.append(job))
    made.status_rate_limiter = contextlib.nullcontext()
    made.next_seconds_between_status_checks = 20
    made.__post_init__()
    return made
