"""Exports the model of a checkpoint to a folder that transformers and an evaluation read."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.references import load
from snaketrain.config.schema import Model, Train
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.manifests import Manifest
from snaketrain.training.checkpoints.ranking import AVERAGED, exported_files, is_sharded

if TYPE_CHECKING:
    from snaketrain.tasks.base import Task

TASK = "task.memory.pt"
WEIGHT_FILES = (".safetensors", ".distcp", TASK)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def weights_in(training: Manifest, checkpoint: str) -> dict[str, str]:
    """The digests of the files with a checkpoint's weights, by the names that they are exported under."""
    found = {
        Path(name).name: digest
        for name, digest in training.files.items()
        if name.startswith(f"{checkpoint}/") and name.endswith(WEIGHT_FILES)
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
    elif is_sharded(best):
        from snaketrain.training.checkpoints.exporting import export_weights  # with torch

        export_weights(best, folder)
    else:
        copied |= exported_files(best)
    for name, path in copied.items():
        shutil.copyfile(path, folder / name)


HEADS = ("classifier.", "score.")  # as peft names them


def merge(training: Manifest, data: Manifest, fetched: Manifest, folder: Path) -> None:
    """Write the adapters as peft does into `folder`/adapter, and replace the trained weights in `folder`/model by the merged model's."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import save_file

    from snaketrain.models.adapters import as_trained, to_peft
    from snaketrain.models.weights import read_weights, save_weights

    adapter, merged = folder / "adapter", folder / "model"
    train, model = Train.model_validate(training.settings["train"]), Model.model_validate(training.settings["model"])
    task: Task = load(train.task.use, "tasks")(**resolved(train.task.arguments))
    facts = data.facts | {"tokenizer_folder": str(merged)}  # where it was exported to
    built = task.build(model.model_dump(exclude={"adapters"}), fetched.model_files, facts)
    described = json.loads(training.file(f"adapter/{ADAPTER_CONFIG}").read_text(encoding="utf-8"))
    for each in built.values():
        as_trained(each, model.model_dump()["adapters"], described["modules_to_save"] or [])
    (name, module), *without = built.items()
    for other, pretrained in without:  # such as the reference of preferences, which in the training is the model without adapters
        save_weights(pretrained, merged, other)
    trained = read_weights(merged, name)
    own, parameters = module.state_dict(), dict(module.named_parameters())
    module.load_state_dict({key: tensor for key, tensor in trained.items() if key in own}, strict=False)  # heads and buffers
    adapter.mkdir(parents=True)
    shutil.copyfile(training.file(f"adapter/{ADAPTER_CONFIG}"), adapter / ADAPTER_CONFIG)
    # peft reads a classifier's head even if it was not trained, since the pretrained weights have one
    heads = {key: own[key] for key in parameters if described["task_type"] == "SEQ_CLS" and key.startswith(HEADS)}
    saved = to_peft(heads | {key: tensor for key, tensor in trained.items() if key in parameters or key not in own})
    save_file(saved, adapter / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    adapted = PeftModel.from_pretrained(module, str(adapter))
    if different := saved.keys() ^ get_peft_model_state_dict(adapted).keys():
        raise SystemExit(f"{adapter}: peft reads other weights than were trained: {', '.join(sorted(different)[:5])}. Please report this.")
    for path in merged.glob(f"{name}*.safetensors*"):  # still mapped into memory, so not overwritten
        path.unlink()
    save_weights(adapted.merge_and_unload(), merged, name)
