"""Where the nodes of a SLURM job meet: a store on the node that runs the job's script.

Its port is bound before its address is passed on. Each start has its own store, so that no process of an earlier start can join. Besides
torch's keys it holds the nodes' heartbeats, and how their processes ended.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterable
from datetime import timedelta

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # which torch does not list among its exports

from snaketrain.launch.workers import Ending

SECONDS_TO_JOIN = 600  # a large environment may take minutes to load on many nodes at once
SECONDS_BETWEEN_HEARTBEATS = 1.0
GRACE_SECONDS = 10.0  # for the other nodes to report how their processes ended: the first to fail is not always the cause


class Server:
    """The store, and what the nodes have written to it."""

    def __init__(self, listening: socket.socket):
        port = listening.getsockname()[1]
        self.store = TCPStore(
            "localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach(), timeout=timedelta(seconds=30)
        )

    def heartbeats(self, hosts: Iterable[str]) -> dict[str, bytes]:
        """The last heartbeat of each node; every one is different."""
        return {host: self.store.get(key) for host in hosts if self.store.check([key := f"alive/{host}"])}

    def present(self, hosts: Iterable[str]) -> set[str]:
        """The nodes whose agents lived when the first one failed."""
        return {host for host in hosts if self.store.check([f"present/{host}"])}

    def has_failed(self) -> bool:
        """Whether a node has reported that its processes failed."""
        return self.store.check(["failed"])

    def endings(self, hosts: Iterable[str]) -> dict[str, Ending]:
        return {host: Ending.from_json(self.store.get(key)) for host in hosts if self.store.check([key := f"ended/{host}"])}

    def step(self) -> str | None:
        """The number of SLURM's step, once a node has reported it."""
        return self.store.get("step").decode() if self.store.check(["step"]) else None


class Member:
    """A node's side: it sends heartbeats, and reports how its processes ended."""

    def __init__(self, endpoint: str, host: str, nodes: int, step: str):
        self.host, self.nodes = host, nodes
        # two clients: a thread that waits on one would block the other thread
        self._store, self._heartbeats = connect(endpoint), connect(endpoint)
        self._store.set("step", step)
        self._heartbeats.set(f"alive/{host}", "0")  # before anything is started: a node without any heartbeat is not probed
        self._over = threading.Event()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def _send_heartbeats(self) -> None:
        count = 0
        with contextlib.suppress(DistError):  # the job's script is gone, so SLURM ends this node's processes too
            while not self._over.wait(SECONDS_BETWEEN_HEARTBEATS):
                count += 1
                self._heartbeats.set(f"alive/{self.host}", str(count))
                if self._heartbeats.check(["failed"]):
                    self._heartbeats.set(f"present/{self.host}", "")

    def report(self, ending: Ending) -> None:
        """After a failure, wait for the other nodes' reports: when this agent exits, SLURM kills theirs."""
        if self._store.check(["closed"]):  # our processes were killed because of a failure elsewhere
            return
        self._store.set(f"ended/{self.host}", ending.to_json())
        reported = self._store.add("reported", 1)
        if ending.code:
            self._store.set("failed", "")
            end = time.monotonic() + GRACE_SECONDS
            while reported < self.nodes and time.monotonic() < end:
                time.sleep(0.1)
                reported = self._store.add("reported", 0)
            self._store.set("closed", "")
        self._over.set()


def connect(endpoint: str) -> TCPStore:
    host, _, port = endpoint.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=SECONDS_TO_JOIN))
