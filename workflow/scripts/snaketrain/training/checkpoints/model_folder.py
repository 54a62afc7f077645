"""Exports the model of a checkpoint to a folder that transformers and an evaluation read."""

import shutil
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.runs import from_strings
from snaketrain.config.schema import Model, Train
from snaketrain.runtime.manifests import Manifest
from snaketrain.training.checkpoints.exported import AVERAGED, exported_files

TASK = "task.memory.pt"
WEIGHTS = (".safetensors", ".distcp", TASK)


class KeptCheckpoint(NamedTuple):
    step: int
    path: str  # relative to the training's folder
    weights: dict[str, str]  # what identifies them: digests by file


def kept_checkpoints(training: Manifest) -> list[KeptCheckpoint]:
    """The checkpoints of a finished training that are still there, in the order of their steps."""
    paths = sorted({str(Path(name).parent) for name in training.files if name.startswith("checkpoints/step-") and name.count("/") == 2})
    steps = {path: int(path.rpartition("-")[2]) for path in paths if (training.folder / path).is_dir()}
    return [KeptCheckpoint(step, path, weights_in(training, path)) for path, step in sorted(steps.items(), key=lambda item: item[1])]


def weights_in(training: Manifest, checkpoint: str) -> dict[str, str]:
    """The digests of the files with a checkpoint's weights, by the names that they are exported under."""
    found = {
        Path(name).name: digest for name, digest in training.files.items() if name.startswith(f"{checkpoint}/") and name.endswith(WEIGHTS)
    }
    return found | {name.replace(AVERAGED, ".safetensors"): found.pop(name) for name in list(found) if name.endswith(AVERAGED)}


def export(checkpoints: list[Path], training: Manifest, tokenizer: Path, folder: Path) -> None:
    """Write weights, the task's state, configuration and tokenizer into a new folder. Of several checkpoints, the best first: their average."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    best = checkpoints[0]
    described = [best / TASK, *(training.folder / "description").glob("*"), *tokenizer.glob("*")]
    copied = {path.name: path for path in described}
    if len(checkpoints) > 1:
        from snaketrain.training.checkpoints.exporting import average_checkpoints  # with torch

        average_checkpoints(checkpoints, folder)
    elif (best / "weights").is_dir():
        from snaketrain.training.checkpoints.exporting import export_weights  # with torch

        export_weights(best, folder)
    else:
        copied |= exported_files(best)
    for name, path in copied.items():
        shutil.copyfile(path, folder / name)


def merge(training: Manifest, data: Manifest, fetched: Manifest, folder: Path) -> None:
    """Write the adapters into `folder`/adapter, and replace the trained weights in `folder`/model by the merged model's."""
    from snaketrain.training.checkpoints.merging import merge_adapters  # with torch

    sections = from_strings(training.settings)
    train, model = Train.model_validate(sections["train"]), Model.model_validate(sections["model"])
    config = training.file("adapter/adapter_config.json")
    merge_adapters(train, model, data.facts, fetched.folder / "files", config, folder / "adapter", folder / "model")
