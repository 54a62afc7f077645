"""Puts our executor in the place of the SLURM plugin's."""

import os

from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from snaketrain.slurm.left_over import LeftOver

# --- Where SLURM's programs find their configuration. Snakemake's plugin removes all variables of SLURM from the shell of a job, SLURM_CONF included.

KEPT = "SNAKETRAIN_SLURM_CONF"


def keep_slurm_conf() -> None:
    """In each process that parses the Snakefile, from the login node down to the shell of a job."""
    if "SLURM_CONF" in os.environ:
        os.environ[KEPT] = os.environ["SLURM_CONF"]
    elif KEPT in os.environ:
        os.environ["SLURM_CONF"] = os.environ[KEPT]


def use_steady_executor(left_over: LeftOver) -> None:
    """Have Snakemake create our executor instead of the plugin's. Call it before Snakemake creates one."""
    registry = ExecutorPluginRegistry()
    if registry.is_installed("slurm"):
        from snaketrain.slurm.steady_executor import SteadyExecutor  # the plugin takes a while to load

        SteadyExecutor.left_over = left_over
        registry.get_plugin("slurm").executor = SteadyExecutor
