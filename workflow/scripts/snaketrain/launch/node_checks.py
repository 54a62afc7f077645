"""What makes a node of a job unfit for a training, found before each start by a short step of srun: a shell and Python, without torch.

A node on which Python is missing, for example, would fail each start, and would be given to the job again and again.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from snaketrain.launch.workers import TORCHRUN
from snaketrain.slurm.client import Slurm, SlurmError

SECONDS_APART = 5  # that the clocks of two nodes may be
CANNOT_WRITE = "cannot write to the folder of the run"  # which the nodes share
# Each node prints one line: its name, its time, and what is wrong. It exits with 0 even so, since a failure would end the step on the others
CHECKS = r"""
working=$1 run=$2 version=$3 torchrun=$4; shift 4
now=$(date +%s)
answer() { echo "node=$SLURMD_NODENAME time=$now $*"; exit 0; }
try() { error=$( (head -c 4096 /dev/zero > "$1/.check-$SLURMD_NODENAME-$$") 2>&1 && rm -f "$1/.check-$SLURMD_NODENAME-$$" 2>&1 ) && return
    rm -f "$1/.check-$SLURMD_NODENAME-$$" 2> /dev/null
    answer "$2 $1: ${error##*: }"; }
cd "$working" 2> /dev/null || answer "does not see the working folder $working: is its file system mounted there?"
[ -r "$torchrun" ] || answer "does not see $torchrun: is its file system mounted there?"
if [ $# -gt 0 ]; then
    for python; do :; done
    [ -x "$python" ] || answer "has no Python at $python, or not what that links to"
    found=$("$@" -c 'import sys, importlib.util as util
print("%d.%d" % sys.version_info[:2], util.find_spec("torch") is not None)' 2>&1) || answer "cannot run $python: $(echo "$found" | tail -n 1)"
    [ "${found%% *}" = "$version" ] || answer "has another Python at $python: ${found%% *} instead of $version"
    [ "${found##* }" = True ] || answer "has a Python at $python that does not find the package torch"
fi
try "$run" "CANNOT_WRITE"
temporary=/tmp; if [ -d "$TMPDIR" ]; then temporary=$TMPDIR; fi
try "$temporary" "cannot write to its temporary folder"
answer
""".replace("CANNOT_WRITE", CANNOT_WRITE)


@dataclass(frozen=True)
class Answer:
    host: str
    seconds: int  # since the epoch, by its clock
    problem: str


def unfit_nodes(
    slurm: Slurm, number: str, hosts: Sequence[str], folder: Path, python: Sequence[str], say: Callable[[str], None]
) -> dict[str, str]:
    """What is wrong with each of these nodes that is unfit. Nothing is known of those that do not answer; the start will show it."""
    version = "{}.{}".format(*sys.version_info[:2])
    words = ["sh", "-c", CHECKS, "checks", os.getcwd(), str(folder.absolute()), version, str(TORCHRUN), *plain(python)]
    before = time.time()
    try:
        shown = slurm.on_each_node(number, hosts, words)
    except SlurmError as error:
        why = str(error).rpartition(" failed: ")[2] or "srun failed"
        say(f"its nodes are not checked: {why.splitlines()[0]}")
        return {}
    answers = list(read(shown))
    found = {answer.host: answer.problem or of_clock(answer.seconds, before, time.time()) for answer in answers}
    unfit = {host: problem for host, problem in found.items() if problem}
    if len(unfit) == len(hosts) and all(problem.startswith(CANNOT_WRITE) for problem in unfit.values()):
        return {}  # it is not the nodes; the training says what it cannot write
    return unfit


def plain(python: Sequence[str]) -> list[str]:
    """The command that starts this Python; nothing where a site's setup or a container has to come before, which may take long."""
    words = list(python)
    before = words[: words.index(sys.executable)] if sys.executable in words else ["other"]
    is_plain = not before or (before[0] == "env" and all("=" in word for word in before[1:]))
    return [*before, sys.executable] if is_plain else []


def read(shown: str) -> Iterable[Answer]:
    for host, seconds, problem in re.findall(r"^node=(\S+) time=(\d+) ?(.*)$", shown, re.M):
        yield Answer(host, int(seconds), problem.strip())


def of_clock(seconds: int, before: float, after: float) -> str:
    """The node has looked at its clock between two moments of this node's, which is the job's first one."""
    apart = before - seconds - 1 if seconds < before else seconds - after
    return f"has a clock that is {apart:.0f} seconds {'behind' if seconds < before else 'ahead'}" if apart > SECONDS_APART else ""
