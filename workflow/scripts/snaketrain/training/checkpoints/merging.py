"""From the trained weights of a checkpoint to peft's folder of adapters, and to a model into whose weights they are merged."""

import shutil
from pathlib import Path

from safetensors.torch import save_file

from snaketrain.config.references import load
from snaketrain.config.schema import Model, Train
from snaketrain.models.adapters import to_peft
from snaketrain.models.weights import read_weights, save_weights
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Task

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def merge_adapters(train: Train, model: Model, facts: JsonObject, pretrained: Path, config: Path, adapter: Path, merged: Path) -> None:
    """`merged` has the trained weights, which the whole model's replace; the folder `adapter` is created."""
    from peft import PeftModel, get_peft_model_state_dict

    task: Task = load(train.task.use, "tasks")(**resolved(train.task.arguments))
    ((name, module),) = task.build(model.model_dump(exclude={"adapters"}), pretrained, facts).items()
    trained = read_weights(merged, name)
    own, parameters = module.state_dict(), dict(module.named_parameters())
    module.load_state_dict({key: tensor for key, tensor in trained.items() if key in own}, strict=False)  # heads and buffers
    adapter.mkdir(parents=True)
    shutil.copyfile(config, adapter / CONFIG)
    saved = to_peft({key: tensor for key, tensor in trained.items() if key in parameters or key not in own})
    save_file(saved, adapter / WEIGHTS, metadata={"format": "pt"})
    adapted = PeftModel.from_pretrained(module, str(adapter))
    if different := saved.keys() ^ get_peft_model_state_dict(adapted).keys():
        raise SystemExit(f"{adapter}: peft reads other weights than were trained: {', '.join(sorted(different)[:5])}. Please report this.")
    for path in merged.glob(f"{name}*.safetensors*"):  # still mapped into memory, so not overwritten
        path.unlink()
    save_weights(adapted.merge_and_unload(), merged, name)
