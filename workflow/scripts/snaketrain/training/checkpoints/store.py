"""Checkpoints that are complete or not there: written beside, verified by digests, renamed into place.

checkpoints/step-00000120/   <module>.safetensors, <module>.optimizer.pt, <what remembers>.memory.pt, state.json,
                             and last of all checkpoint.json with the sizes and digests of the others
"""

import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._pytree import tree_map_only

from snaketrain.runtime.background import Background
from snaketrain.runtime.manifests import file_digest, write_json
from snaketrain.training.checkpoints.ranking import best_first, evaluated, read_state
from snaketrain.training.checkpoints.snapshot import Snapshot
from snaketrain.training.plan import folder_name

GONE = ".gone-"  # in front of what is being removed


class Checkpoints:
    def __init__(self, folder: Path, metric: str, mode: str, keep_best: int):
        self.folder = folder
        self.metric, self.mode, self.keep_best = metric, mode, keep_best
        self._background, self._snapshot, self._newly_saved = Background(), Snapshot(), []
        self.evaluated = False  # whether the checkpoint that was restored knows its metrics

    def save(self, learner: Any, step: int, metrics: dict[str, float] | None, memory: dict[str, Any]) -> None:
        """All processes take part in gathering the state; the first one writes a copy of it, while the training goes on."""
        self.finish()
        self._snapshot.begin()
        strategy, keep, files = learner.strategy, self._snapshot.keep, {}
        for name, part in memory.items():
            state = part.state()
            files[f"{name}.memory.pt"] = tree_map_only(Tensor, keep, state) if strategy.rank == 0 else None
        for name, module in learner.modules.items():
            files[f"{name}.safetensors"] = self._weights(strategy, module)
            files[f"{name}.optimizer.pt"] = strategy.optimizer_state(module, learner.optimizers[name], keep)
        if strategy.rank == 0:
            facts = {"step": step, "metrics": metrics, "scaler": strategy.scaler.state_dict()}
            self._background.start(partial(self._write, files, facts))

    def _weights(self, strategy: Any, module: torch.nn.Module) -> dict[str, Tensor]:
        weights, tied = strategy.weights(module), _tied_names(strategy.unwrapped(module))
        if strategy.rank != 0:
            return {}
        # gathered from several processes, tied weights no longer share their memory
        untied = _untied({name: tensor for name, tensor in weights.items() if name not in tied})
        return {name: self._snapshot.keep(tensor) for name, tensor in untied.items()}

    def finish(self) -> None:
        """Wait for what is being saved, and raise what went wrong with it."""
        self._background.finish()

    def newly_saved(self) -> list[int]:
        """The steps whose checkpoints have come to be since the last call."""
        self._background.raise_error()
        steps, self._newly_saved = self._newly_saved, []
        return steps

    def _write(self, files: dict[str, Any], facts: dict[str, Any]) -> None:
        final = self.folder / folder_name(facts["step"])
        beside = self.folder / f".{final.name}"
        try:
            self._mend()
            beside.mkdir(parents=True)
            for name, content in files.items():
                if name.endswith(".safetensors"):
                    save_file(content, beside / name, metadata={"format": "pt"})
                else:
                    torch.save(content, beside / name)
            write_json(beside / "state.json", facts)
            written = {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in sorted(beside.iterdir())}
            for name in written:
                _flush(beside / name)
            write_json(beside / "checkpoint.json", written)
            if final.exists():  # of the same step, before it was evaluated
                final.rename(self.folder / f"{GONE}{final.name}")
            os.rename(beside, final)
            _flush(self.folder)
            self._prune()
        except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have errors of their own for a full disk
            shutil.rmtree(beside, ignore_errors=True)
            raise SystemExit(
                f"{final}: the checkpoint cannot be saved: {error}. Those saved before are whole. Make room or mend the folder, and run the "
                "same command again: it goes on from the last of them."
            ) from error
        self._newly_saved.append(facts["step"])

    def _prune(self) -> None:
        """Keep the last and the best."""
        *earlier, _last = self.found()
        best = {each.path for each in best_first(evaluated(self.folder), self.metric, self.mode)[: self.keep_best]}
        for path in earlier:
            if path not in best:
                path.rename(self.folder / f"{GONE}{path.name}")  # at once, so that nobody ever finds half of it
        self._mend()

    def _mend(self) -> None:
        """Finish what an earlier process was killed in: removing a checkpoint, writing one, or putting it in another one's place."""
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

    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of those that are kept, by step."""
        states = map(read_state, self.found())
        return {str(state["step"]): state["metrics"] for state in states}

    def files_to_select(self, above: Path) -> list[str]:
        """What a later stage reads of those that are kept."""
        names = ("*.safetensors", "task.memory.pt", "state.json")
        return sorted(str(path.relative_to(above)) for name in names for path in self.folder.glob(f"step-*/{name}"))

    def restore(self, learner: Any, memory: dict[str, Any]) -> int:
        """Load the last whole checkpoint; the step it was saved at, 0 if there is none.

        The first process looks for it, so that all take the same one, whatever others may see of the folder at that moment.
        """
        if learner.strategy.rank == 0:
            self.finish()
            self._mend()
        path = learner.strategy.all_gather_object(self._last_whole() if learner.strategy.rank == 0 else None)[0]
        if path is None:
            return 0
        for name, module in learner.modules.items():
            # both stay in the file until somebody reads them, so that processes on one machine need the memory only once
            weights = load_file(path / f"{name}.safetensors")
            optimizer_state = torch.load(path / f"{name}.optimizer.pt", weights_only=True, mmap=True)
            weights |= {tied: weights[kept] for tied, kept in _tied_names(learner.strategy.unwrapped(module)).items()}
            learner.strategy.load_state(module, learner.optimizers[name], weights, optimizer_state)
        for name, part in memory.items():
            part.load_state(torch.load(path / f"{name}.memory.pt", weights_only=True))
        state = read_state(path)
        self.evaluated = state["metrics"] is not None
        if state["scaler"]:
            learner.strategy.scaler.load_state_dict(state["scaler"])
        return state["step"]

    def _last_whole(self) -> Path | None:
        for path in reversed(self.found()):
            if not (message := damage(path)):
                return path
            print(f"checkpoints: {path} is damaged ({message}); trying the one before", file=sys.stderr, flush=True)
        return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
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


def _untied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory only once, as safetensors wants it; under the name that comes first."""
    kept = {}
    for name in sorted(weights):
        kept.setdefault((weights[name].data_ptr(), weights[name].shape) if weights[name].numel() else name, name)
    return {name: weights[name] for name in kept.values()}


def _tied_names(module: torch.nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in sorted(module.named_parameters(remove_duplicate=False)):
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        first.setdefault(id(tensor), name)
    return tied


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
