"""What being recorded costs a training with steps of 5 ms: its journal, and the follower that tells MLflow, with a store that is well or not.

One training runs all the while. By turns its journal writes or does not; then the follower, a process of its own as a workflow
starts it, works or is stopped (SIGSTOP). Turns are short, so that what else the machine does disturbs both; by the clock, and in CPU time of the training. Goal: at most 1.01.
"""

import contextlib
import itertools
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import training_loop
from harness import REPOSITORY, Stopwatch, command_line, write_figures
from torch import nn
from training_loop import Rows, trainer_of
from workspace import make_workspace

from snaketrain.config.schema import Train

WIDTH, BATCH = 512, 64  # about 5 ms on one thread
FOLLOW = REPOSITORY / "workflow/scripts/tools/follow_runs.py"


def steps_of(results: Path, count: int) -> tuple[object, Iterator[Callable[[], None]]]:
    """A training whose journal lies where the follower looks for it, and its steps."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    train = Train(batch_size=BATCH, steps=count, evaluate_every=10 * count, learning_rate=1e-4, warmup=0)
    rows = Rows(torch.randn(4096, WIDTH))
    training = trainer_of(results / "runs/first/training", module, rows, train)
    return training, training_loop.steps_of(training)


def compared(switch: Callable[[bool], None], steps: Iterator[Callable[[], None]], turn: int, turns: int) -> dict[str, object]:
    """Steps with what `switch` turns on, against steps without; the order of the two changes from pair to pair."""
    seconds: dict[str, dict[bool, list[float]]] = {"clock": {True: [], False: []}, "CPU": {True: [], False: []}}
    for number in range(turns):
        for on in (True, False) if number % 2 else (False, True):
            switch(on)
            watch = Stopwatch()
            for step in itertools.islice(steps, turn):
                step()
            for clock, spent in zip(seconds, watch.read(), strict=True):
                seconds[clock][on].append(spent / turn)
    found: dict[str, object] = {"ms of a step": round(1000 * statistics.mean(seconds["clock"][False]), 2)}
    for kind, each in seconds.items():
        ratio, between = ratio_of_sums(each[True], each[False])
        found |= {f"ratio, {kind}": ratio, f"95 % between, {kind}": between}
    return found


def ratio_of_sums(on: list[float], off: list[float], draws: int = 2000) -> tuple[float, list[float]]:
    """With an interval from drawing the pairs again: what happens now and then counts, which a median would not see."""
    draw, pairs = random.Random(0), list(zip(on, off, strict=True))
    drawn = sorted(sum(a for a, _ in some) / sum(b for _, b in some) for some in (draw.choices(pairs, k=len(pairs)) for _ in range(draws)))
    return round(sum(on) / sum(off), 4), [round(drawn[int(share * draws)], 4) for share in (0.025, 0.975)]


@contextlib.contextmanager
def follower(results: Path, uri: str) -> Iterator[Callable[[bool], None]]:
    """Past its start, which takes seconds of CPU once for each workflow."""
    environment = os.environ | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, FOLLOW, "--results", results, "--uri", uri, "--no-models", "--while-pid", str(os.getpid())]
    process = subprocess.Popen(list(map(str, command)), env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(30)
    try:
        yield lambda on: process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = command_line("recording", __doc__)
    parser.add_argument("--turns", type=int, default=600, help="with and without each (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of each turn (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, object] = {"turns": args.turns}
    with tempfile.TemporaryDirectory(prefix="recording-") as folder, contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        results = make_workspace(Path(folder), {"first": {"ends": "nothing"}})
        training, steps = steps_of(results, 2 * args.steps * (4 * args.turns + 1))
        for step in itertools.islice(steps, args.steps):
            step()  # warms up

        def write(on: bool) -> None:
            training.journal.writes = training.rank_journal.writes = on

        found["journal"] = compared(write, steps, args.steps, args.turns)
        print("journal", found["journal"], flush=True)
        write(True)
        stores = {
            "follower, a database": f"sqlite:///{folder}/mlflow.db",
            "follower, a server that hangs": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "follower, no server": "http://127.0.0.1:9",
        }
        for name, uri in stores.items():
            with follower(results, uri) as switch:
                found[name] = compared(switch, steps, args.steps, args.turns)
            print(name, found[name], flush=True)
    write_figures(args.output, found)


if __name__ == "__main__":
    main()
