"""Snakemake's executor `slurm-steady`: that of the SLURM plug-in, made to outlast outages and the end of snakemake itself.

Snakemake imports every plug-in at its start, before it reads a Snakefile and whichever executor is asked for. So this file imports nothing of
snaketrain, and does without the SLURM plug-in where that is not installed.
"""

from typing import TYPE_CHECKING

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

if TYPE_CHECKING:
    import logging

    from snakemake.workflow import Workflow

try:
    from snakemake_executor_plugin_slurm import ExecutorSettings, common_settings  # noqa: F401 - in a profile: `slurm-steady-requeue`, ...
except ModuleNotFoundError as error:
    if error.name != "snakemake_executor_plugin_slurm":
        raise
    common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False)
    IS_INSTALLED = False
else:
    IS_INSTALLED = True


class Executor(AbstractExecutor):  # type: ignore[misc]  # the interface has no types
    """Becomes the real one when Snakemake makes it, which is after it has read the Snakefile."""

    def __new__(cls, workflow: "Workflow", logger: "logging.Logger") -> AbstractExecutor:
        if not IS_INSTALLED:
            raise WorkflowError(
                "executor: slurm-steady needs snakemake-executor-plugin-slurm, which is not installed: run `make .venv/installed`."
            )
        from snakemake_executor_plugin_slurm_steady.executor import SteadyExecutor

        return SteadyExecutor(workflow, logger)
