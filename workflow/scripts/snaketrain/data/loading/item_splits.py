"""Which items of a dataset class make up which split: noted as their places in it, so that the items stay where they are."""

from pathlib import Path
from typing import Any

import numpy as np

from snaketrain.config.schema import Data
from snaketrain.data.loading.items import Items, make_dataset
from snaketrain.data.sources.formats import BadData
from snaketrain.data.text.splitting import SPLITS, assign


def prepare_items(data: Data, output: Path) -> dict[str, Any]:
    """Write `train.npy`, `dev.npy` and `test.npy`; the facts about them, with those that the dataset tells of itself."""
    given = {split: source for split in SPLITS if (source := getattr(data, split))}
    datasets = {split: make_dataset(source.use, source.arguments, f"data.{split}") for split, source in given.items()}
    assigned = {split: assign(split, np.ones(len(dataset), bool), data) for split, dataset in datasets.items()}
    facts: dict[str, Any] = own_facts(datasets["train"]) | {"name": data.name, "label_kind": data.label_kind, "odd": {}}
    facts |= {"fields": data.fields, "datasets": {}, "splits": {}}
    for number, split in enumerate(SPLITS):
        origin = split if split in given else "train"
        chosen = np.flatnonzero(assigned[origin] == number)
        if not len(chosen) and split != "test":
            raise BadData(f"data.{split}: no item is left for it of the {len(datasets[origin])} of {given[origin].use}. Give more.")
        facts["datasets"][split] = {"use": given[origin].use, "arguments": given[origin].arguments}
        facts["splits"][split] = {"examples": len(chosen), "labelled": True}
        if len(chosen):  # a look at the first one: what cannot be read shows here, and not in the training
            first = Items(datasets[origin], given[origin].use, chosen, data.fields, 0).batch([0])
            facts["splits"][split]["fields"] = {name: described(value) for name, value in first.items() if name != "ids"}
        np.save(output / f"{split}.npy", chosen)
    return facts


def own_facts(dataset: Any) -> dict[str, Any]:
    """What a dataset tells of itself: `facts()`, and the names of its classes in `label_names` or, as in torchvision, `classes`."""
    names = getattr(dataset, "label_names", None) or getattr(dataset, "classes", None) or []
    told = dataset.facts() if callable(getattr(dataset, "facts", None)) else {}
    return {"label_names": [str(name) for name in names]} | told


def described(value: Any) -> dict[str, Any]:
    return {"shape": list(value.shape[1:]), "type": str(value.dtype).removeprefix("torch.")}
