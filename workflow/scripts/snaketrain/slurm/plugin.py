"""Puts our executor in the place of the SLURM plugin's."""

from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from snaketrain.slurm.left_over import LeftOver


def use_steady_executor(left_over: LeftOver) -> None:
    """Have Snakemake create our executor instead of the plugin's. Call it before Snakemake creates one."""
    registry = ExecutorPluginRegistry()
    if registry.is_installed("slurm"):
        from snaketrain.slurm.steady_executor import SteadyExecutor  # the plugin takes a while to load

        SteadyExecutor.left_over = left_over
        registry.get_plugin("slurm").executor = SteadyExecutor
