"""One start of a training on nodes of its SLURM job: a step of srun with an agent on each node, and why it ended."""

import contextlib
import fcntl
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from snaketrain.launch.workers import PROCESSES, Ending, torchrun
from snaketrain.runtime.processes import raise_limit
from snaketrain.runtime.ranks import FAILED, SETUP_FAILED
from snaketrain.slurm.client import Allocation, Slurm, SlurmError, refused_for_now

if TYPE_CHECKING:
    from snaketrain.launch.rendezvous import Server


# --- The network interface over which the nodes of a training communicate: `compute.interface`.

SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface


def address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            here = ", ".join(name for _, name in socket.if_nameindex())
            raise SystemExit(
                f"compute.interface: {platform.node()} has no interface `{interface}` with an IPv4 address ({error.strerror}). Name one of {here}."
            ) from None
    return socket.inet_ntoa(answer[20:24])


def use_interface(interface: str) -> None:
    """Make NCCL and gloo use it, unless the environment names another."""
    address_of(interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # `=`: this one alone, not all with this prefix
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


BACKEND = "snaketrain"  # the name in torchrun's entry point
SECONDS_TO_END = 60  # for srun to end its step
SECONDS_TO_PASS_ON = 10  # what it has said
SILENCE_AFTER_FAILURE = 10.0  # seconds: when a node is lost, the processes of the others soon fail
ENDED_BY_SIGTERM = 128 + signal.SIGTERM
SUSPENDED_SECONDS = 5  # a longer gap between two checks means that this process was suspended, like those of the other nodes


@dataclass(frozen=True)
class NodeSize:
    """What each node runs."""

    processes: int
    threads: int
    cpu: bool = False
    torchrun: tuple[str, ...] = ()  # further options of it
    interface: str | None = None  # of the network
    python: tuple[str, ...] = (sys.executable,)  # the command that starts Python, in a container for example
    srun_options: tuple[str, ...] = ()


@dataclass
class StepEnding:
    ending: Ending
    dead: list[str] = field(default_factory=list)  # nodes on which no program starts
    unfit: list[str] = field(default_factory=list)  # nodes on which programs start, but not the training
    refused: str = ""  # why SLURM gave the step no start, for now


class Step:
    def __init__(
        self, slurm: Slurm, job: Allocation, hosts: list[str], size: NodeSize, silence_seconds: float, stopping: Callable[[], object]
    ):
        """`silence_seconds`: after so long without a heartbeat a node is probed. `stopping`: whether SLURM is ending the job."""
        self.slurm, self.job, self.hosts, self.size = slurm, job, hosts, size
        self.silence_seconds, self.stopping = silence_seconds, stopping

    def run(self, command: list[str], start: str) -> StepEnding:
        if warning := raise_limit(len(self.hosts) * self.size.processes):  # all connect to this process
            print(f"job {self.job.number}: {warning}", flush=True)
        listening = socket.create_server(("", 0), backlog=4096)
        here = address_of(self.size.interface) if self.size.interface else self.job.hosts[0]
        endpoint = f"{here}:{listening.getsockname()[1]}"
        # a process of an earlier start may live on, on a node that is cut off; it must not write any more: see runtime/ownership.py
        environment = os.environ | {"SNAKETRAIN_START": start}
        srun = subprocess.Popen(srun_command(self.job, self.hosts, self.size, endpoint, command), env=environment, stderr=subprocess.PIPE)
        said = Said(srun)

        from snaketrain.launch.rendezvous import Server  # torch loads while the nodes start

        server = Server(listening)
        dead = self._wait(srun, Watch(server, self.hosts, self.silence_seconds))
        said.finish()
        endings, present = server.endings(self.hosts), server.present(self.hosts)
        if not srun.returncode and not any(ending.code for ending in endings.values()):
            return StepEnding(Ending(0))
        joined = server.heartbeats(self.hosts)
        if not joined and (refused := refused_for_now(said.text())):
            return StepEnding(Ending(srun.returncode), refused=refused)
        silent = [host for host in self.hosts if host not in endings and host not in present]
        dead = dead or self._dead_among(silent)
        ended = {host: how for host, how in said.endings(self.slurm).items() if host in silent and host not in dead}
        unfit = [host for host, ending in endings.items() if ending.node_unfit]
        unfit += [host for host in ended if joined and host not in joined]  # the others came further
        return StepEnding(first_cause(srun.returncode, endings, silent, dead, ended), dead, unfit)

    def _dead_among(self, silent: list[str]) -> list[str]:
        said = False
        while silent and not self.stopping():
            if (found := dead_nodes(self.slurm, self.job, silent)) is not None:
                return found
            if not said:
                print(f"job {self.job.number}: no report from {', '.join(silent)}; waiting until SLURM answers, to start again", flush=True)
                said = True
            time.sleep(SECONDS_TO_END / 10)
        return []

    def _wait(self, srun: "subprocess.Popen[bytes]", watch: "Watch") -> list[str]:
        """Wait until srun has ended, or nodes are found dead, which SLURM itself may take minutes to notice; returns the dead nodes."""
        while srun.poll() is None:
            time.sleep(0.5)
            if (silent := watch.silent(time.monotonic())) and (dead := dead_nodes(self.slurm, self.job, silent)):
                self._end(srun, watch.server.step())
                return dead
        return []

    def _end(self, srun: "subprocess.Popen[bytes]", step: str | None) -> None:
        try:
            if step:
                self.slurm.cancel(f"{self.job.number}.{step}")
            srun.wait(SECONDS_TO_END)
        except (SlurmError, subprocess.TimeoutExpired):
            srun.kill()
            srun.wait()


class Said:
    """What srun says on stderr, passed on unchanged; its own lines tell why it started nothing, and which node was the first to fail."""

    LINE = re.compile(rb"(?:srun|slurmstepd-\S+): (?:error: )?[^\r\n]*")
    EXITED = re.compile(r"srun: error: (\S+(?:,\S+)*): tasks? [\d,-]+: (Exited with exit code \d+)")
    NOT_EXECUTED = re.compile(r"slurmstepd-(\S+): error: (execve\(\): .*)")
    MOST_LINES = 1000

    def __init__(self, srun: "subprocess.Popen[bytes]"):
        self.lines: list[str] = []
        self.thread = threading.Thread(target=self._pass_on, args=(srun,), daemon=True)
        self.thread.start()

    def _pass_on(self, srun: "subprocess.Popen[bytes]") -> None:
        assert srun.stderr
        rest = b""
        while part := os.read(srun.stderr.fileno(), 65536):
            with contextlib.suppress(OSError):  # a full disk must not end the training
                sys.stderr.buffer.write(part)
                sys.stderr.buffer.flush()
            *whole, rest = (rest + part).split(b"\n")
            found = (self.LINE.search(line) for line in whole)
            self.lines += [line[0].decode(errors="replace") for line in found if line][: self.MOST_LINES - len(self.lines)]
            rest = rest[-4096:]

    def finish(self) -> None:
        """Once srun has ended; a program that it has left behind may still hold its stderr."""
        self.thread.join(SECONDS_TO_PASS_ON)

    def text(self) -> str:
        return "\n".join(self.lines)

    def endings(self, slurm: Slurm) -> dict[str, str]:
        """How the tasks of nodes ended by themselves; those that srun ends for it are `Terminated` or `Killed`."""
        text = self.text()
        found = dict[str, str]()
        for nodes, how in self.EXITED.findall(text):
            with contextlib.suppress(SlurmError):
                found |= dict.fromkeys(slurm.hosts(nodes) if set(nodes) & set("[,") else [nodes], how)
        return found | dict(self.NOT_EXECUTED.findall(text))


class Watch:
    """Which nodes have sent no heartbeat for a while."""

    def __init__(self, server: "Server", hosts: list[str], silence_seconds: float):
        self.server, self.hosts, self.silence_seconds = server, hosts, silence_seconds
        self.heartbeats: dict[str, bytes] = {}
        self.heard: dict[str, float] = {}  # when the last heartbeat of each node was new
        self.checked = time.monotonic()

    def silent(self, now: float) -> list[str]:
        """Nodes that have never sent a heartbeat are left to srun, which reports those that it cannot start."""
        if now - self.checked > SUSPENDED_SECONDS:
            self.heard = dict.fromkeys(self.heard, now)
        self.checked = now
        heartbeats = self.server.heartbeats(self.hosts)
        self.heard |= {host: now for host, beat in heartbeats.items() if self.heartbeats.get(host) != beat}
        self.heartbeats = heartbeats
        silence = dict.fromkeys(self.hosts, self.silence_seconds)
        if (
            self.server.has_failed()
        ):  # a node that has reported sends no heartbeats any more, but srun waits for it until SLURM knows its end
            missing = set(self.hosts) - set(self.server.endings(self.hosts))
            silence |= dict.fromkeys(missing, min(self.silence_seconds, SILENCE_AFTER_FAILURE))
        silent = [host for host, heard in self.heard.items() if now - heard > silence[host]]
        self.heard |= dict.fromkeys(silent, now)  # those that answer the probe are probed again after another silence
        return silent


def srun_command(job: Allocation, hosts: list[str], size: NodeSize, endpoint: str, command: list[str]) -> list[str]:
    """Sizes are explicit, since Snakemake's job hides SLURM's variables from its shell."""
    count = len(hosts)
    options: list[object] = ["--nodes", count, "--ntasks", count, "--ntasks-per-node", 1, "--cpus-per-task", size.threads]
    # on whole nodes (--exclusive, or by their partition) a step gets only the GPUs that it asks for
    options += ["--gpus-per-node", job.gpus] if job.gpus else []
    options += ["--nodelist", ",".join(hosts)]
    options += ["--overlap"]  # the step of an earlier start cannot end while one of its nodes is dead, and occupies the others
    # --wait 0: the first node may still be writing long after the others are done. --kill-on-bad-exit: nobody waits for a failed node
    options += ["--kill-on-bad-exit=1", "--wait", 0, "--unbuffered", *size.srun_options]
    rendezvous = [f"--nnodes={count}", f"{PROCESSES}{size.processes}", f"--rdzv-backend={BACKEND}", f"--rdzv-endpoint={endpoint}"]
    known = [] if size.cpu else [f"gpus={size.processes}"]
    known += [f"interface={size.interface}"] if size.interface else []
    rendezvous += [f"--rdzv-conf={','.join(known)}"] if known else []
    return list(map(str, ["srun", *options, *size.python, *torchrun([*size.torchrun, *rendezvous]), *command]))


def dead_nodes(slurm: Slurm, job: Allocation, hosts: Iterable[str]) -> list[str] | None:
    """The nodes on which no program starts; None if SLURM gives no step for now, or none starts on this node either, so that SLURM itself does
    not answer."""
    here = job.hosts[0]
    try:
        silent = slurm.silent_nodes(job.number, sorted({*hosts, here}))
    except SlurmError:
        return None
    return None if here in silent else silent


def first_cause(
    code: int, endings: Mapping[str, Ending], silent: list[str], dead: list[str], ended: Mapping[str, str] | None = None
) -> Ending:
    """`code`: srun's exit code; `silent`: nodes without a report, all of whose processes are gone; `ended`: how those among them ended by themselves."""
    if dead:
        return Ending(code or FAILED, f"{', '.join(dead)} {'does' if len(dead) == 1 else 'do'} not answer")
    for ending in endings.values():
        if ending.memory_kill and not ending.lost:
            return ending
    for host, ending in endings.items():
        if ending.lost:
            return replace(ending, lost=f"{ending.lost} on {host}")
    if silent and code == SETUP_FAILED:  # the setup has reported why
        return Ending(code)
    if ended:  # srun has ended the others for it
        return Ending(code or FAILED, "; ".join(f"{host} ended without a report ({how})" for host, how in ended.items()))
    if silent:
        return Ending(code or FAILED, f"the processes on {', '.join(silent)} ended without a report (srun: exit code {code})")
    if endings and all(ending.code == ENDED_BY_SIGTERM for ending in endings.values()):
        # unless the job itself is signalled as well: by a user, or by the srun of an earlier start, on a node that was cut off and is back
        return Ending(ENDED_BY_SIGTERM, "SIGTERM ended the step, but not the job")
    return Ending(max((ending.code for ending in endings.values()), default=0) or code)
