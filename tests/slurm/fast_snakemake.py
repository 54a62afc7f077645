"""snakemake with a SLURM plugin that looks every second: by itself it looks less and less often, down to every three minutes."""

import asyncio
import sys

import snakemake_executor_plugin_slurm
from snakemake.cli import main


async def sleep(self):
    await asyncio.sleep(1)


snakemake_executor_plugin_slurm.Executor.sleep = sleep
sys.argv[0] = "snakemake"
main()
