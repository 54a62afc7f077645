"""The folder of a training: whose it is, what it was started with, and the log of every process."""

import argparse
import json
import logging
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from snaketrain.runtime import stages
from snaketrain.runtime.credentials import ConcealingFormatter, hidden, hidden_in, hidden_setting
from snaketrain.runtime.integrity import damage
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import Manifest, write_json
from snaketrain.runtime.ownership import is_ours
from snaketrain.runtime.provenance import git_state, write_down
from snaketrain.runtime.ranks import Ranks

EXECUTION_ONLY = ("train.strategy.", "train.accumulate=")  # settings on which the losses do not depend, as tests/distributed shows


def execution_options(args: argparse.Namespace) -> list[str]:
    """By which code and in which way the training is computed; an unfinished one may go on in another way."""
    return [*args.code, *(string for string in args.settings if string.startswith(EXECUTION_ONLY))]


def prepare_run_folder(folder: Path, purpose: str, ways: list[str], steps: int) -> list[str]:
    """Make sure that what lies in the folder belongs to this training; another one's is moved aside, never deleted.

    Other settings or data are another training, and so are fewer steps than were taken already. Other code or another
    strategy goes on with an unfinished one, and says so; what changed is returned.
    """
    try:
        before = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        before = None
    taken, changed = last_saved(folder), []
    if before and (before["purpose"] != purpose or (before["ways"] != ways and _finished(folder)) or taken > steps):
        aside = (
            folder.parent
            / "superseded"
            / f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(before['started']))}-{before['purpose'][:6]}"
        )
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        print(f"{folder}: belonged to other settings or code; moved to {aside}", file=sys.stderr, flush=True)
    elif before and before["ways"] != ways:
        changed = sorted(set(ways) ^ set(before["ways"]))
        print(
            f"{folder}: code or strategy changed during this training; it goes on with the new one ({', '.join(changed)})",
            file=sys.stderr,
            flush=True,
        )
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def last_saved(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")), default=0)


def set_aside_from_damage(folder: Path) -> None:
    """A finished training whose checkpoints are missing or changed is taken again from before the first of these."""
    if not (made := stages.made_before(folder)) or not (found := damage(made, lambda name: name.startswith("checkpoints/"))):
        return
    first = Path(min(found)).parent.name
    aside = folder.parent / "superseded" / f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}-checkpoints"
    aside.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("checkpoints/step-*"):
        if path.name >= first:
            path.rename(aside / path.name)
    Path(made.path).unlink()  # from here on it is an unfinished training as any other
    print(f"{folder / min(found)}: {found[min(found)]}; the steps from there on are taken again ({aside} has what was there)",
          file=sys.stderr, flush=True)  # fmt: skip


def _finished(folder: Path) -> bool:
    return any(line["event"] == "end" and line["status"] == "FINISHED" for line in read_events(folder / "journal.jsonl")[0])


def end_of_journal(folder: Path) -> int:
    """Where the next attempt begins to write."""
    journal = folder / "journal.jsonl"
    return journal.stat().st_size if journal.is_file() else 0


def stopped_by(folder: Path, since: int) -> list[str]:
    """The signals that stopped the attempt which began there; none if it went to its end, or was killed."""
    events = read_events(folder / "journal.jsonl", since)[0]
    last = events[-1] if events else {}
    return last.get("signals", []) if last.get("status") == "STOPPED" else []


def record_start(
    folder: Path, purpose: str, args: argparse.Namespace, inputs: dict[str, str], data: Manifest, started: float, strategy: Any
) -> None:
    """What is known at the start, for MLflow and the comparison."""
    import torch

    git = git_state()
    write_down(folder, git["dirty"], args.code)
    write_json(
        folder / "run.json",
        {
            "purpose": purpose,
            "ways": execution_options(args),
            "run": args.run_name,
            "identity": stages.identity("train_model", args, inputs),
            "started": started,
            "settings": [hidden_setting(item) for item in (*args.settings, *data.settings)],
            "inputs": inputs,
            "paths": {role: path for role in inputs if (path := getattr(args, role))},
            "log_every": args.log_every,
            "device": args.device,
            "threads": torch.get_num_threads(),
            "data": {
                "path": data.path,
                "content": data.content,
                "name": data.facts["name"],
                "examples": data.facts["splits"]["train"]["examples"],
            },
            "git": git,
            "environment": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "host": platform.node(),
                "processes": strategy.world_size,
                "device": strategy.device.type,
                "precision": strategy.precision,
            },
            "experiment": hidden(args.experiment),
            "notes": hidden(args.notes),
        },
    )


def record_failure(folder: Path, error: BaseException) -> None:
    """The last line of a training that failed; of several processes, the first one's."""
    if Ranks.of_environment().rank == 0 and is_ours(folder) and (folder / "run.json").exists():
        last = {
            "event": "end",
            "status": "FAILED",
            "error": (str(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}")[:2000],
        }
        attempts = sum(line["event"] == "attempt" for line in read_events(folder / "journal.jsonl")[0])
        with open(folder / "journal.jsonl", "a", encoding="utf-8") as journal:
            journal.write(json.dumps(hidden_in(last) | {"time": time.time(), "attempt": max(1, attempts)}) + "\n")


def log_to(path: Path, strategy: Any) -> None:
    """Everything worth telling goes to a file of this process; the first process tells it on the terminal too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.raiseExceptions = False  # a line that finds no room on the disk is not worth a traceback of its own
    handlers: list[logging.Handler] = [logging.FileHandler(path)]
    if strategy.rank == 0:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(ConcealingFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.info("process %d of %d, pid %d, %s, %s", strategy.rank, strategy.world_size, os.getpid(), strategy.device, strategy.precision)
