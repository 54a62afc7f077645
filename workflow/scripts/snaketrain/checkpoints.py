"""Checkpoints that are complete or not there: written beside, verified by digests, renamed into place.

checkpoints/step-00000120/   <module>.safetensors, <module>.optimizer.pt, memory.pt, state.json, and last
                             of all checkpoint.json with the sizes and digests of the others
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from snaketrain.manifests import file_digest, write_json


class Checkpoints:
    def __init__(self, folder: Path, metric: str, mode: str, keep_best: int):
        self.folder = folder
        self.metric, self.sign, self.keep_best = metric, 1 if mode == "max" else -1, keep_best

    def save(self, learner: Any, step: int, metrics: dict[str, float] | None) -> str:
        """All processes take part in gathering the state; the first one writes it."""
        states = {name: learner.strategy.state(module, learner.optimizers[name]) for name, module in learner.modules.items()}
        if learner.strategy.rank == 0:
            self._write(learner, states, step, metrics)
            self._prune()
        return f"checkpoints/{folder_name(step)}"

    def _write(self, learner: Any, states: dict[str, tuple[dict, dict]], step: int, metrics: dict[str, float] | None) -> None:
        final = self.folder / folder_name(step)
        beside = self.folder / f".{final.name}"
        for torn in self.folder.glob(".step-*"):  # an earlier process was killed while it saved
            shutil.rmtree(torn)
        beside.mkdir(parents=True)
        for name, (weights, optimizer_state) in states.items():
            for tied in _tied_names(learner.strategy.unwrapped(learner.modules[name])):
                weights.pop(tied, None)  # gathered from several processes, they no longer share their memory
            save_file(_untied(weights), beside / f"{name}.safetensors", metadata={"format": "pt"})
            torch.save(optimizer_state, beside / f"{name}.optimizer.pt")
        torch.save({name: part.state() for name, part in remembering(learner).items()}, beside / "memory.pt")
        write_json(beside / "state.json", {"step": step, "metrics": metrics, "scaler": learner.strategy.scaler.state_dict()})
        written = {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in sorted(beside.iterdir())}
        for name in written:
            _flush(beside / name)
        write_json(beside / "checkpoint.json", written)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(beside, final)
        _flush(self.folder)

    def _prune(self) -> None:
        """Keep the last and the best; of equal ones the earlier."""
        *earlier, _last = found = self.found()
        scored = [(self._score(path), path) for path in found]
        best = [path for score, path in sorted(scored, key=lambda pair: (-pair[0], pair[1])) if score > -float("inf")][: self.keep_best]
        for path in earlier:
            if path not in best:
                shutil.rmtree(path)

    def _score(self, path: Path) -> float:
        value = (json.loads((path / "state.json").read_text())["metrics"] or {}).get(self.metric, float("nan"))
        return self.sign * value if value == value else -float("inf")

    def found(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of those that are kept, by step."""
        states = [json.loads((path / "state.json").read_text()) for path in self.found()]
        return {str(state["step"]): state["metrics"] for state in states}

    def weight_files(self, above: Path) -> list[str]:
        return [str(path.relative_to(above)) for path in sorted(self.folder.glob("step-*/*.safetensors"))]

    def resume(self, learner: Any) -> int:
        """Load the last whole checkpoint; the step it was saved at, 0 if there is none."""
        for path in reversed(self.found()):
            if message := damage(path):
                print(f"checkpoints: {path} is damaged ({message}); trying the one before", file=sys.stderr, flush=True)
                continue
            for name, module in learner.modules.items():
                weights = load_file(path / f"{name}.safetensors")
                optimizer_state = torch.load(path / f"{name}.optimizer.pt", weights_only=True)
                weights |= {tied: weights[kept] for tied, kept in _tied_names(learner.strategy.unwrapped(module)).items()}
                learner.strategy.load_state(module, learner.optimizers[name], weights, optimizer_state)
            memory = torch.load(path / "memory.pt", weights_only=True)
            for name, part in remembering(learner).items():
                part.load_state(memory[name])
            state = json.loads((path / "state.json").read_text())
            if state["scaler"]:
                learner.strategy.scaler.load_state_dict(state["scaler"])
            return state["step"]
        return 0


def remembering(learner: Any) -> dict[str, Any]:
    """What has a state of its own besides the modules and optimizers."""
    return {"task": learner.task, "patience": learner.patience}


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


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
    return {name: weights[name].contiguous() for name in kept.values()}


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
