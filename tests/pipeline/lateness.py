"""How late curves are: from a training's journal to MLflow's database."""

import contextlib
import sqlite3
import statistics
import time
from pathlib import Path

import limits

from snaketrain.runtime.journal import read_events


def seconds_behind(folder: Path, journal: Path, seconds: float = 15) -> float:
    """How much later a training's losses are in MLflow's database than in its journal: the median over this many seconds."""
    seen: dict[int, float] = {}
    before = shown_step(folder / "mlflow.db")
    end = time.monotonic() + limits.seconds(seconds)
    while time.monotonic() < end:
        shown, now = shown_step(folder / "mlflow.db"), time.time()
        told = [event for event in read_events(journal)[0] if event["event"] == "train" and event["step"] > before]
        seen |= {event["step"]: now - event["time"] for event in told if event["step"] not in seen and event["step"] <= shown}
        time.sleep(0.1)
    waiting = {event["step"]: time.time() - event["time"] for event in told}  # those that are not shown yet are even later
    late = list((waiting | seen).values())
    print(f"MLflow is behind by at most {max(late):.1f} s, by {statistics.median(late):.1f} s as a rule")
    return statistics.median(late)


def shown_step(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as store:
        return store.execute("select coalesce(max(step), 0) from metrics where key = 'train/loss'").fetchone()[0]
