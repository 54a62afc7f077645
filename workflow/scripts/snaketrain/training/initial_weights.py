"""Starts a model from weights of an earlier run, or a part of them. Not a resume: optimizer and step start from zero."""

import logging
import pickle
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from snaketrain.config.schema import InitialWeights

MOST_NAMES = 10  # logged of each kind
PICKLED = (".pt", ".pth", ".bin")


def start_from(modules: dict[str, nn.Module], folder: Path, chosen: InitialWeights) -> None:
    """Copy tensors of the same name, once `part` is replaced by `into`; log or refuse those without a counterpart."""
    into = chosen.part if chosen.into is None else chosen.into
    given = {
        (into or "") + name.removeprefix(chosen.part or ""): tensor for name, tensor in read(folder).items() if within(name, chosen.part)
    }
    wanted = {name: tensor for name, tensor in named(modules).items() if within(name, into)}
    fits = {name for name in given.keys() & wanted.keys() if given[name].shape == wanted[name].shape}
    filled = {place(wanted[name]) for name in fits}
    problems = {
        "not in the file": [name for name, tensor in wanted.items() if name not in given and place(tensor) not in filled],
        "not in the model": sorted(given.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {list(given[name].shape)} -> {list(wanted[name].shape)}" for name in sorted((given.keys() & wanted.keys()) - fits)
        ],
    }
    mismatches = "; ".join(f"{len(names)} {what}: {shortened(names)}" for what, names in problems.items() if names)
    if mismatches and (chosen.strict or not fits):
        raise SystemExit(
            f"model.initial_weights: do not match the model: {mismatches}. Correct `part` ({chosen.part}) and `into` ({into}), "
            "or set `strict: false` to take what fits."
        )
    with torch.no_grad():
        for name in fits:
            wanted[name].copy_(given[name])
    logging.info("initial weights: %d tensors of %s%s", len(fits), chosen.part or "the whole file", f"; {mismatches}" if mismatches else "")


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors in a folder. If the files are several modules, names begin with the file's name; shards of one model have plain names."""
    files = sorted(folder.rglob("*.safetensors")) or sorted(path for path in folder.rglob("*") if path.suffix in PICKLED)
    if not files:
        raise SystemExit(
            f"model.initial_weights.source: no .safetensors or .pt file in {folder}. Name a folder that has one, such as selection/model of a run."
        )
    one_model = len(files) == 1 or any(folder.rglob("*.index.json"))
    return {(name if one_model else f"{file.stem}.{name}"): tensor for file in files for name, tensor in tensors(file).items()}


def tensors(file: Path) -> dict[str, Tensor]:
    """The state dict in a file; of a pickled one nothing but tensors is loaded."""
    if file.suffix == ".safetensors":
        return load_file(file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise SystemExit(
            f"model.initial_weights.source: {file.resolve()} is not loaded, since it is more than tensors, or damaged: {str(error).splitlines()[0]} "
            "Save its state_dict() with safetensors.torch.save_file where you trust it."
        ) from None
    if isinstance(found, dict) and found.keys() & {"state_dict", "model"}:  # as trainers save it
        found = found.get("state_dict", found.get("model"))
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise SystemExit(
            f"model.initial_weights.source: {file.resolve()} has no state dict, tensors by name. Save one: torch.save(module.state_dict(), path)."
        )
    return found


def named(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The tensors to be filled, under the names that `read` gives."""
    return {
        (name if len(modules) == 1 else f"{module_name}.{name}"): tensor
        for module_name, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def within(name: str, prefix: str | None) -> bool:
    return name.startswith(prefix or "")


def place(tensor: Tensor) -> tuple[int, torch.Size]:
    """The same for tensors that share memory: files hold tied tensors only once."""
    return tensor.data_ptr(), tensor.shape


def shortened(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
