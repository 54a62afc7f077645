"""Requeues a training many times, on a SLURM cluster on this machine: what it costs, and that the result does not change.

Two nodes with two processes each. Between two interruptions it takes a few steps, and saves only when it is stopped. Compared
with the same training without interruptions: the weights, the steps in the journal and in MLflow, the number of MLflow runs.
Needs root and the packages that `make test-slurm` needs.
"""

import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import command_line, judge, write_figures
from slurm import lab
from slurm.conftest import SIZE, why_not

STEPS_EACH = 3
PACE_SECONDS = 0.2


def interrupted(folder: Path, times: int) -> None:
    """The training from start to end, requeued `times` times."""
    workflow = lab.Workflow(folder, f"{lab.TRAINING}/manifest.json")
    for number in range(1, times + 1):
        done = max(lab.steps(folder), default=0)
        lab.until(
            lambda number=number, done=done: lab.attempts(folder) == number and max(lab.steps(folder), default=0) >= done + STEPS_EACH,
            f"start {number} takes steps",
            workflow=workflow,
            seconds=900,
        )
        subprocess.run(["scontrol", "requeue", lab.job_of(folder)], check=True)
        print(f"requeued {number} of {times} times, at step {max(lab.steps(folder))}", flush=True)
    lab.set_pace(folder, 0)
    workflow.finish()


def figures(folder: Path, alone: Path, steps: int) -> dict[str, Any]:
    events = lab.events(folder, "attempt")
    ends = [event["time"] for event in lab.events(folder, "end")]
    away = [event["time"] - end for end, event in zip(ends, events[1:], strict=False)]  # from the last word to the first
    found, expected = (lab.weights(each, steps) for each in (folder, alone))
    written = lab.steps(folder)
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        runs = store.execute("select count(*) from tags where value like 'train:%'").fetchone()[0]
        counted = store.execute("select step, count(*) from metrics where key = 'train/loss' group by step order by step").fetchall()
    return {
        "times queued again": len(events) - 1,
        "jobs": len({*(folder / "logs/slurm/rule_train_model").glob("*/*.log")}),
        "steps": steps,
        "same weights to the bit": all((found[name] == expected[name]).all() for name in expected),
        "each step once in the journal": sorted(written) == list(range(1, steps + 1)),
        "each step once in MLflow": counted == [(step, 1) for step in range(1, steps + 1)],
        "MLflow runs": runs,
        "seconds away, median": round(statistics.median(away), 1),
        "seconds away, all": [round(seconds, 1) for seconds in away],
    }


def main() -> None:
    parser = command_line("requeue", __doc__)
    parser.add_argument("--times", type=int, default=20, help="how often it is requeued (%(default)s)")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    steps = (args.times + 2) * (STEPS_EACH + 12)  # it continues until a signal arrives
    folder = Path(tempfile.mkdtemp(prefix="requeue-"))
    folder.chmod(0o755)
    with lab.started(folder / "cluster", **SIZE):
        alone = lab.make(folder / "alone", steps=steps, evaluate_every=steps)
        lab.Workflow(alone, f"{lab.TRAINING}/manifest.json").finish()
        started = time.monotonic()
        interrupted(again := lab.make(folder / "again", PACE_SECONDS, steps, evaluate_every=steps), args.times)
        found = figures(again, alone, steps) | {"minutes": round((time.monotonic() - started) / 60, 1)}
    shutil.rmtree(folder)
    write_figures(args.output, found)
    judge({"it made no difference": found["same weights to the bit"] and found["each step once in MLflow"] and found["MLflow runs"] == 1})


if __name__ == "__main__":
    main()
