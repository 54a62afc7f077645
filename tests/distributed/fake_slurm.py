"""SLURM's programs for one job, whose nodes are names of this machine; the name under which it is started selects the program.

The parent folder describes the job: `nodes` (its nodes), `dead` (nodes that start no program), `restarts`, and `asked` (changes that were requested).
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(sys.argv[0]).resolve().parents[1]


def words(name: str) -> list[str]:
    return (HERE / name).read_text().split() if (HERE / name).exists() else []


def note(*what: str) -> None:
    with open(HERE / "asked", "a") as file:
        file.write(" ".join(what) + "\n")


def scontrol(*given: str) -> int:
    if given[:2] == ("show", "job"):
        print(f"JobId=7 Restarts={words('restarts')[0]} NodeList={','.join(words('nodes'))} ExcNodeList=(null) BatchHost=a1")
    elif given[:2] == ("show", "hostnames"):
        print("\n".join(given[2].split(",")))
    else:
        note(*given)
        for setting in given:
            if setting.startswith("NodeList="):
                (HERE / "nodes").write_text(setting.partition("=")[2].replace(",", " "))
    return 0


def srun(*given: str) -> int:
    hosts = given[given.index("--nodelist") + 1].split(",")
    if "--jobid" in given:
        return 1 if set(hosts) & set(words("dead")) else 0
    note("srun", ",".join(hosts))
    command = given[given.index(sys.executable) :]
    step = str(len(list(HERE.glob("step-*"))))
    (HERE / f"step-{step}").touch()
    agents = [
        subprocess.Popen(
            command, env=os.environ | {"SLURMD_NODENAME": host, "SLURM_NODEID": str(number), "SLURM_STEP_ID": step, "SLURM_JOB_ID": "7"}
        )
        for number, host in enumerate(hosts)
    ]
    while None in (codes := [agent.poll() for agent in agents]):
        if any(codes):  # --kill-on-bad-exit
            kill(step)
        time.sleep(0.1)
    return max(abs(code or 0) for code in codes)


def scancel(number: str) -> int:
    note("scancel", number)
    kill(number.partition(".")[2])
    return 0


def kill(step: str, host: str = "") -> None:
    """Every process of a step, or of one node, at once."""
    marks = [f"SLURM_STEP_ID={step}".encode()] + ([f"SLURMD_NODENAME={host}".encode()] if host else [])
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            if all(mark in environment for mark in marks) and f"{HERE}/bin".encode() in b"".join(environment):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


if __name__ == "__main__":
    sys.exit(globals()[Path(sys.argv[0]).name](*sys.argv[1:]))
