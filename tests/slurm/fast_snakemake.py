"""snakemake that polls its SLURM jobs every second, and retries a submission every five; normally it waits for up to three minutes, or one."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/scripts"))

import snakemake_executor_plugin_slurm
from snakemake.cli import main

from snakemake_executor_plugin_slurm_steady import executor, monitor


async def sleep(self):
    await asyncio.sleep(1)


snakemake_executor_plugin_slurm.Executor.sleep = sleep
monitor.SECONDS_BETWEEN_LOOKS = 1
executor.LONGEST_PAUSE_SECONDS = 5
sys.argv[0] = "snakemake"
main()
