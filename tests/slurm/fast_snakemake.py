"""snakemake that polls its SLURM jobs every second, and retries a submission every five; normally it waits for 20, and up to a minute.

It may be forked by `pipeline/warm_python.py`, and its follower too. Jobs get the real Python: SLURM must know all of their processes.
"""

import asyncio
import sys
from pathlib import Path

stand_in, sys.executable = sys.executable, f"{sys.prefix}/bin/python"
sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/scripts"))

import snakemake_executor_plugin_slurm  # noqa: E402
from snakemake.cli import main  # noqa: E402

from snakemake_executor_plugin_slurm_steady import submitting  # noqa: E402
from snaketrain.orchestration import follower  # noqa: E402


async def sleep(self):
    await asyncio.sleep(1)


follows = follower.command
follower.command = lambda *words: [stand_in, *follows(*words)[1:]]
snakemake_executor_plugin_slurm.Executor.sleep = sleep
submitting.LONGEST_PAUSE_SECONDS = 5
sys.argv[0] = "snakemake"
main()
