"""snakemake that polls its SLURM jobs every second; normally it polls less and less often, down to every three minutes."""

import asyncio
import sys
from pathlib import Path

import snakemake_executor_plugin_slurm
from snakemake.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/scripts"))
from snaketrain.slurm import monitor


async def sleep(self):
    await asyncio.sleep(1)


snakemake_executor_plugin_slurm.Executor.sleep = sleep
monitor.SECONDS_BETWEEN_LOOKS = 1
sys.argv[0] = "snakemake"
main()
