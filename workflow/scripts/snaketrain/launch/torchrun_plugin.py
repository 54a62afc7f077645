"""What `torchrun_handlers.py` loads into torchrun: where the nodes of a SLURM job meet, and who is told how the processes ended.

torchrun itself says of a failure only that there was one: its exit code is 1. So that a launcher can tell a lost process from an error of the
script, it ends with the exit code of the first cause here, after a report.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # which torch does not list among its exports
from torch.distributed.elastic.events import record
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo

from snaketrain.launch.rendezvous import Member, connect
from snaketrain.launch.slurm_step import BACKEND, use_interface
from snaketrain.launch.workers import Ending, lost_gpus
from snaketrain.runtime.processes import kill_since, memory_use
from snaketrain.runtime.ranks import STOPPED_EARLY, WORTH_ANOTHER_START


def report_to_file(path: str) -> None:
    """For a launcher on this machine."""

    def write(ending: Ending) -> int:
        Path(path).write_text(ending.to_json(), encoding="utf-8")
        return ending.code

    Reports(write)


class Reports(logging.Handler):
    """Reads torchrun's own events. The agent's comes last, after all processes have ended."""

    def __init__(self, report: Callable[[Ending], int]):
        """`report` returns the exit code of torchrun."""
        super().__init__()
        self.report = report
        self.failures: dict[int, int] = {}  # exit codes by rank
        record(Event("snaketrain", EventSource.AGENT))  # makes the logger, at the level of $LOGLEVEL
        logger = logging.getLogger("torchelastic-events-null")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        event = json.loads(record.getMessage())
        about = event["metadata"]
        if event["source"] == EventSource.WORKER.value:
            [code] = json.loads(about["metadata"])["exit_code"]
            if code:
                self.failures[about["global_rank"]] = code
        elif about["state"] in ("SUCCEEDED", "FAILED") and (ending := self.ending()):
            raise SystemExit(self.report(ending))

    def ending(self) -> Ending | None:
        """None for an error of torchrun itself, which it prints."""
        error = sys.exception()
        if isinstance(error, SignalException):
            return Ending(128 + error.sigval)
        return None if error else first_cause(self.failures)


def first_cause(failures: dict[int, int]) -> Ending:
    """The process that was lost: its peers fail at the same moment in their collectives, or the agent ends them with SIGTERM."""
    causes = {rank: code for rank, code in sorted(failures.items()) if code != -signal.SIGTERM} or failures
    for rank, code in causes.items():
        if code < 0:
            return Ending(128 - code, f"rank {rank} was killed by {signal.Signals(-code).name}")
        if code == WORTH_ANOTHER_START:
            return Ending(code, f"rank {rank} asks for a restart")
    return Ending(next(iter(causes.values()), 0))


class NodeRendezvous(RendezvousHandler):
    """The nodes and their order are known, so nothing is negotiated. Ranks use the same store."""

    def __init__(self, parameters: RendezvousParameters):
        self.parameters = parameters
        if interface := parameters.get("interface"):
            use_interface(interface)
        self.member = Member(parameters.endpoint, os.environ["SLURMD_NODENAME"], parameters.max_nodes, os.environ["SLURM_STEP_ID"])
        if lost := self.lost_gpus():
            self.member.report(Ending(WORTH_ANOTHER_START, lost, node_unfit=True))
            raise SystemExit(WORTH_ANOTHER_START)
        self.memory_before = memory_use()
        Reports(self.report)

    def lost_gpus(self) -> str:
        return lost_gpus(int(self.parameters.get("gpus", 0)))

    def report(self, ending: Ending) -> int:
        if ending.code > 128 and not ending.lost:  # a signal, after which processes on other nodes may still be saving
            self.member.report(ending)
            return 0  # another code would have SLURM kill them
        if ending.code and (kill := kill_since(self.memory_before)):  # with as much memory it would be killed again
            ending = replace(ending, memory_kill=str(kill), lost=ending.lost if kill.of_machine else "")
        elif ending.code and (lost := self.lost_gpus()):
            ending = Ending(ending.code, lost, node_unfit=True)
        self.member.report(ending)
        return 0 if ending.code == STOPPED_EARLY else ending.code

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        host, _, port = self.parameters.endpoint.rpartition(":")
        store = PrefixStore("agents", connect(self.parameters.endpoint))
        return RendezvousInfo(store, int(os.environ["SLURM_NODEID"]), self.parameters.max_nodes, RendezvousStoreInfo(host, int(port)))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return os.environ["SLURM_STEP_ID"]

    def shutdown(self) -> bool:
        return True
