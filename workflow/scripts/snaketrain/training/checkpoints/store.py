"""Checkpoints that are complete or absent: written to a temporary folder, verified by digests, renamed into place.

checkpoints/step-00000120/   the files of the format, state.json, and last of all checkpoint.json with the sizes and digests of the others
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError

from snaketrain.runtime.background import Background
from snaketrain.runtime.manifests import file_digest, write_json
from snaketrain.training.checkpoints.best_metric import Selection
from snaketrain.training.checkpoints.ranking import CheckpointState, best_first, evaluated, read_state
from snaketrain.training.checkpoints.whole_tensors import WholeTensors
from snaketrain.training.plan import folder_name
from snaketrain.training.state import Stateful, TrainState

GONE = ".gone-"  # prefix of what is being removed


class CheckpointFormat(Protocol):
    """How modules, optimizers and every other `Stateful` become files."""

    def collect(self, state: TrainState, stateful: dict[str, Stateful]) -> Callable[[Path], None]:
        """Copy the state, in which all ranks take part. The first rank calls what it returns to write the copy, while training goes on."""
        ...

    def load(self, state: TrainState, stateful: dict[str, Stateful], folder: Path) -> None: ...


class Checkpoints:
    def __init__(self, folder: Path, selection: Selection, keep_best: int, format: CheckpointFormat | None = None):
        self.folder, self.format = folder, format or WholeTensors()
        self.selection, self.keep_best = selection, keep_best
        self._background, self._newly_saved = Background(), list[int]()
        self.evaluated = False  # whether the restored checkpoint has metrics

    def save(self, state: TrainState, metrics: dict[str, float] | None, stateful: dict[str, Stateful]) -> None:
        """All ranks take part; the first one writes in the background."""
        self.finish()
        write = self.format.collect(state, stateful)
        if state.rank == 0:
            facts = CheckpointState(step=state.step, metrics=metrics, scaler=state.strategy.scaler.state_dict())
            self._background.start(partial(self._write, write, facts))

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and raise its error if there was one."""
        self._background.finish()

    def newly_saved(self) -> list[int]:
        """The steps whose checkpoints were completed since the last call."""
        self._background.raise_error()
        steps, self._newly_saved = self._newly_saved, []
        return steps

    def _write(self, write: Callable[[Path], None], facts: CheckpointState) -> None:
        final = self.folder / folder_name(facts["step"])
        beside = self.folder / f".{final.name}"
        try:
            self._mend()
            beside.mkdir(parents=True)
            write(beside)
            write_json(beside / "state.json", facts)
            written = {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in sorted(beside.iterdir())}
            for name in written:
                _flush(beside / name)
            write_json(beside / "checkpoint.json", written)
            if final.exists():  # of the same step, saved before it was evaluated
                final.rename(self.folder / f"{GONE}{final.name}")
            os.rename(beside, final)
            _flush(self.folder)
            self._prune()
        except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors raise their own errors on a full disk
            shutil.rmtree(beside, ignore_errors=True)
            raise SystemExit(
                f"{final}: the checkpoint cannot be saved: {error}. Earlier ones are intact. Make room or repair the folder, and run the same "
                "command again: it resumes from the last of them."
            ) from error
        self._newly_saved.append(facts["step"])

    def _prune(self) -> None:
        """Keep the last and the best."""
        *earlier, _last = self.found()
        best = {each.path for each in best_first(evaluated(self.folder), self.selection.metric, self.selection.mode)[: self.keep_best]}
        for path in earlier:
            if path not in best:
                path.rename(self.folder / f"{GONE}{path.name}")  # atomic, so that nobody finds half of it
        self._mend()

    def _mend(self) -> None:
        """Complete or undo what a killed process left: a checkpoint half removed, half written, or not yet renamed."""
        for torn in self.folder.glob(".step-*"):
            final = self.folder / torn.name.removeprefix(".")
            if final.exists() or damage(torn):
                shutil.rmtree(torn)
            else:
                torn.rename(final)
        for gone in self.folder.glob(f"{GONE}*"):
            shutil.rmtree(gone)

    def found(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def metrics(self) -> dict[str, dict[str, float] | None]:
        """The metrics of the checkpoints that are kept, by step."""
        states = map(read_state, self.found())
        return {str(state["step"]): state["metrics"] for state in states}

    def files_to_select(self, above: Path) -> list[str]:
        """The files that later stages read of the checkpoints that are kept."""
        names = ("*.safetensors", "task.memory.pt", "state.json")
        return sorted(str(path.relative_to(above)) for name in names for path in self.folder.glob(f"step-*/{name}"))

    def restore(self, state: TrainState, stateful: dict[str, Stateful]) -> int:
        """Load the last intact checkpoint; the step it was saved at, 0 if there is none.

        The first rank chooses it for all, since a shared file system may not show every rank the same files at the same time.
        """
        if state.rank == 0:
            self.finish()
            self._mend()
        path = state.strategy.all_gather_object(self._last_whole() if state.rank == 0 else None)[0]
        if path is None:
            return 0
        self.format.load(state, stateful, path)
        saved = read_state(path)
        self.evaluated = saved["metrics"] is not None
        if saved["scaler"]:
            state.strategy.scaler.load_state_dict(saved["scaler"])
        return int(saved["step"])

    def _last_whole(self) -> Path | None:
        for path in reversed(self.found()):
            if not (message := damage(path)):
                return path
            print(f"checkpoints: {path} is damaged ({message}); trying the one before", file=sys.stderr, flush=True)
        return None


def damage(path: Path) -> str | None:
    """Why a checkpoint is damaged; None if it is intact."""
    try:
        written = json.loads((path / "checkpoint.json").read_text())
    except (OSError, ValueError):
        return "checkpoint.json is missing or torn"
    for name, expected in written.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if (path / name).stat().st_size != expected["bytes"] or file_digest(path / name) != expected["sha256"]:
            return f"{name} is not what was written"
    return None


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
