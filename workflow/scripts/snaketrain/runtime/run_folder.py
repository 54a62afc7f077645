"""The folder of a training: which training it belongs to, and what it was started with."""

import json
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from snaketrain.runtime.credentials import hidden, hidden_in
from snaketrain.runtime.integrity import damage
from snaketrain.runtime.job_settings import JobSettings
from snaketrain.runtime.journal import as_line, read_events
from snaketrain.runtime.manifests import Manifest, digest, write_json
from snaketrain.runtime.ownership import end_previous_owner, is_ours, sign
from snaketrain.runtime.private_files import PRIVATE_FILE, private
from snaketrain.runtime.provenance import git_state, write_provenance
from snaketrain.runtime.ranks import Ranks
from snaketrain.runtime.stages import Job, previous_manifest

EXECUTION_ONLY = ("train.strategy.", "train.accumulate=")  # settings that do not affect the losses, as tests/distributed shows
TRUNK = "trunk.json"  # the trunk that a training continues
MICROBATCHES = "microbatches.txt"  # into how many a batch is split since the memory ran out
FINGERPRINT, EXECUTION_OPTIONS = "purpose", "ways"  # keys of run.json, as in folders of earlier versions


@dataclass(frozen=True)
class Description:
    """What run.json records besides the settings: for MLflow, and to reproduce a training."""

    run: str
    paths: dict[str, str]  # of the manifests that the training reads, by role
    log_every: int
    device: str
    experiment: str
    notes: str


class Device(Protocol):
    @property
    def type(self) -> str: ...


class Execution(Protocol):
    """The part of a strategy that is recorded: rank, number of processes, device and precision."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def device(self) -> Device: ...
    @property
    def precision(self) -> str: ...


def execution_options(given: JobSettings) -> list[str]:
    """The code and the settings that only affect how a training is computed; an unfinished one may resume with others."""
    return [*given.code, *(string for string in given.settings if string.startswith(EXECUTION_ONLY))]


def fingerprint(job: Job, inputs: dict[str, str]) -> str:
    """Identifies a training, however it is executed."""
    return digest("train", [string for string in sorted(job.given.settings) if not string.startswith(EXECUTION_ONLY)], inputs)


def take_over(job: Job, inputs: dict[str, str]) -> dict[str, str]:
    """Make the folder this training's: end a process that a killed workflow left behind, and set aside another training's files."""
    end_previous_owner(job.folder)
    changed = prepare_run_folder(job.folder, fingerprint(job, inputs), execution_options(job.given))
    sign(job.folder)
    move_damaged_checkpoints(job.folder)
    return {"warning": f"code or strategy changed during this training: {', '.join(changed)}"} if changed else {}


def prepare_run_folder(folder: Path, purpose: str, options: list[str]) -> list[str]:
    """Make sure that the folder belongs to this training; the results of another one are moved aside, never deleted.

    Different settings or data mean another training. With changed code or strategy an unfinished training resumes and logs that;
    the changed execution options are returned.
    """
    try:
        before = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        before = None
    changed: list[str] = []
    other_options = before and before[EXECUTION_OPTIONS] != options
    if before and (before[FINGERPRINT] != purpose or (other_options and _finished(folder))):
        began = time.strftime("%Y%m%d-%H%M%S", time.localtime(before["started"]))
        aside = folder.parent / "superseded" / f"{folder.name}-{began}-{before[FINGERPRINT][:6]}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        print(f"warning: {folder}: belonged to other settings or code; moved to {aside}", file=sys.stderr, flush=True)
    elif before and other_options:
        changed = sorted(set(options) ^ set(before[EXECUTION_OPTIONS]))
        names = ", ".join(sorted({option.partition("=")[0] for option in changed}))  # the journal has the values, most of them digests
        print(
            f"warning: {folder}: code or strategy changed during this training; it resumes with the new one ({names})",
            file=sys.stderr,
            flush=True,
        )
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def record_trunk(folder: Path, manifest: Path | None) -> None:
    """Record it for the workflow: a training that has begun keeps its trunk, or none where it resumes without the one that it had."""
    if manifest:
        write_json(folder / TRUNK, {"trunk": manifest.resolve().parents[1].name})
    else:
        (folder / TRUNK).unlink(missing_ok=True)


def last_saved(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")), default=0)


def microbatches_that_fit(folder: Path) -> int:
    """In how many microbatches a rank computes a batch since the memory ran out; 0 if it never did."""
    path = folder / MICROBATCHES
    return int(path.read_text()) if path.is_file() else 0


def move_damaged_checkpoints(folder: Path) -> None:
    """If checkpoints of a finished training are missing or changed, move the first of them and all later ones aside, so that their steps are repeated."""
    if not (made := previous_manifest(folder)) or not (found := damage(made, lambda name: name.startswith("checkpoints/"))):
        return
    first = Path(min(found)).parent.name
    aside = folder.parent / "superseded" / f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}-checkpoints"
    aside.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("checkpoints/step-*"):
        if path.name >= first:
            path.rename(aside / path.name)
    Path(made.path).unlink()  # makes it an unfinished training, which resumes
    print(f"warning: {folder / min(found)}: {found[min(found)]}; the steps from there on are repeated ({aside} has the old checkpoints)",
          file=sys.stderr, flush=True)  # fmt: skip


def _finished(folder: Path) -> bool:
    return any(line["event"] == "end" and line["status"] == "FINISHED" for line in read_events(folder / "journal.jsonl")[0])


def end_of_journal(folder: Path) -> int:
    """The offset at which the next attempt starts writing."""
    journal = folder / "journal.jsonl"
    return journal.stat().st_size if journal.is_file() else 0


def stopped_by(folder: Path, since: int) -> list[str]:
    """The signals that stopped the attempt that began at this offset; none if it finished or was killed."""
    events = read_events(folder / "journal.jsonl", since)[0]
    last = events[-1] if events else {}
    return last.get("signals", []) if last.get("status") == "STOPPED" else []


def record_start(job: Job, description: Description, inputs: dict[str, str], data: Manifest, started: float, execution: Execution) -> None:
    """Write run.json: what is known at the start, for MLflow and the comparison."""
    import torch

    git = git_state()
    write_provenance(job.folder, git["dirty"], job.given.code)
    write_json(
        job.folder / "run.json",
        {
            FINGERPRINT: fingerprint(job, inputs),
            EXECUTION_OPTIONS: execution_options(job.given),
            "run": description.run,
            "identity": job.identity(inputs),
            "started": started,
            "settings": [*job.given.settings, *data.settings],
            "inputs": inputs,
            "paths": description.paths,
            "log_every": description.log_every,
            "device": description.device,
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
                "processes": execution.world_size,
                "device": execution.device.type,
                "precision": execution.precision,
            },
            "experiment": hidden(description.experiment),
            "notes": hidden(description.notes),
        },
        PRIVATE_FILE,
    )


def record_failure(folder: Path, cause: str) -> None:
    """Write the last line of a failed training's journal, on rank 0."""
    if Ranks.of_environment().rank == 0 and is_ours(folder) and (folder / "run.json").exists():
        last = {
            "event": "end",
            "status": "FAILED",
            "error": cause[:2000],
        }
        attempts = sum(line["event"] == "attempt" for line in read_events(folder / "journal.jsonl")[0])
        with open(folder / "journal.jsonl", "a", encoding="utf-8", opener=private) as journal:
            journal.write(as_line(hidden_in(last) | {"time": time.time(), "attempt": max(1, attempts)}))
