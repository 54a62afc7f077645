"""Which items of a dataset class make up which split: their numbers are written down, the items stay where they are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from snaketrain.config.schema import Data
from snaketrain.data.loading.items import Dataset, Items, make_dataset
from snaketrain.data.sources.data_issues import BadData
from snaketrain.data.text.splitting import SPLITS, assign
from snaketrain.runtime.json_types import JsonObject


def prepare_items(data: Data, output: Path, splits: Sequence[str] = SPLITS) -> JsonObject:
    """Write `train.npy`, `dev.npy` and `test.npy`, or only those that are asked for; return the facts about them, including those the dataset gives about itself."""
    given = {split: source for split in SPLITS if (source := getattr(data, split))}
    datasets = {split: make_dataset(source.use, source.arguments, f"data.{split}") for split, source in given.items()}
    assigned = {split: assign(split, np.ones(len(dataset), bool), data) for split, dataset in datasets.items()}
    main = next(iter(given))  # the training data, or what a model is evaluated on as it is
    facts: JsonObject = own_facts(datasets[main]) | {"name": data.name, "label_kind": data.label_kind, "odd": {}}
    facts |= {"fields": data.fields, "datasets": {}, "splits": {}}
    for split in splits:
        origin = split if split in given else main
        chosen = np.flatnonzero(assigned[origin] == SPLITS.index(split))
        if not len(chosen) and split != "test" and "train" in given:
            raise BadData(f"data.{split}: none of the {len(datasets[origin])} items of {given[origin].use} is left for it. Give more.")
        facts["datasets"][split] = {"use": given[origin].use, "arguments": given[origin].arguments}
        facts["splits"][split] = {"examples": len(chosen), "labelled": True}
        if len(chosen):  # a look at the first one, so that items that cannot be read show here and not in the training
            first = Items(datasets[origin], given[origin].use, chosen, data.fields, 0).batch([0])
            facts["splits"][split]["fields"] = {name: described(value) for name, value in first.items() if name != "ids"}
        np.save(output / f"{split}.npy", chosen)
    return facts


def own_facts(dataset: Dataset) -> JsonObject:
    """What a dataset says about itself: `facts()`, and the names of its classes in `label_names` or, as in torchvision, `classes`."""
    names = getattr(dataset, "label_names", None) or getattr(dataset, "classes", None) or []
    facts = getattr(dataset, "facts", None)
    return {"label_names": [str(name) for name in names]} | (facts() if callable(facts) else {})


def described(value: Tensor) -> JsonObject:
    return {"shape": list(value.shape[1:]), "type": str(value.dtype).removeprefix("torch.")}
