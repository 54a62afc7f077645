"""The processes of one node under torch's elastic agent, which starts, signals and ends them together."""

import os
import signal
import subprocess
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from snaketrain.launch.endings import Ending
from snaketrain.runtime.exit_codes import WORTH_ANOTHER_START
from snaketrain.runtime.stopping import LAUNCHER_SIGNALS, SECONDS_TO_SAVE


def launch_config(processes: int, nodes: int, run_id: str, backend: str, endpoint: str, **rendezvous: object) -> LaunchConfig:
    """The agent restarts nothing: within one agent, processes that read the previous start's addresses would wait for dead peers."""
    return LaunchConfig(
        min_nodes=nodes, max_nodes=nodes, nproc_per_node=processes, run_id=run_id, rdzv_backend=backend, rdzv_endpoint=endpoint,
        rdzv_configs=rendezvous, max_restarts=0, signals_to_handle=LAUNCHER_SIGNALS, shutdown_timeout=SECONDS_TO_SAVE,
    )  # fmt: skip


def run_workers(config: LaunchConfig, command: list[str]) -> Ending:
    """Run them to their end. A signal makes them save and exit, and is then raised as SignalException."""
    try:
        elastic_launch(config, sys.executable)(*command)
        return Ending(0)
    except ChildFailedError as error:
        return first_cause(error)


def first_cause(error: ChildFailedError) -> Ending:
    """The process that was lost: its peers fail at the same moment in their collectives, or the agent ends them with SIGTERM."""
    ended_by_agent = {rank for rank, failure in error.failures.items() if failure.exitcode == -signal.SIGTERM}
    for rank, failure in sorted(error.failures.items()):
        if rank in ended_by_agent and len(ended_by_agent) < len(error.failures):
            continue
        if failure.exitcode < 0:
            return Ending(128 - failure.exitcode, f"rank {rank} was killed by {failure.signal_name()}")
        if failure.exitcode == WORTH_ANOTHER_START:
            return Ending(failure.exitcode, f"rank {rank} asks for a restart")
    return Ending(next(failure.exitcode for rank, failure in error.failures.items() if rank not in ended_by_agent))


def gpus_that_answer() -> int:
    """How many the driver lists: a process that uses CUDA itself never sees a lost GPU come back. Without a driver none can be lost."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        return sys.maxsize
    except subprocess.TimeoutExpired:  # it hangs when a GPU does
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    return found if chosen is None else min(found, len(chosen.split(",")))
