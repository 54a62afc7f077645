"""Which items of a dataset class make up which split: their numbers are written down, the items stay where they are.

A stream has no numbers: it is the training data as it is, and the other splits are given.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from snaketrain.config.schema import Data
from snaketrain.config.schema.data import stream_data_problems
from snaketrain.data.loading.items import Items, make, numbered
from snaketrain.data.loading.streams import IterableDataset, Stream, is_stream
from snaketrain.data.sources.data_issues import BadData
from snaketrain.data.text.splitting import SPLITS, assign
from snaketrain.runtime.strict_json import JsonObject


def prepare_items(data: Data, output: Path, splits: Sequence[str] = SPLITS) -> JsonObject:
    """Write `train.npy`, `dev.npy` and `test.npy`, or only those that are asked for; return the facts about them, including those the dataset gives about itself."""
    given = {split: source for split in SPLITS if (source := getattr(data, split))}
    made = {split: make(source.use, source.arguments, f"data.{split}") for split, source in given.items()}
    if is_stream(stream := made.get("train")):
        return _prepare_stream(data, stream, output)
    datasets = {split: numbered(dataset, given[split].use, f"data.{split}") for split, dataset in made.items()}
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


def _prepare_stream(data: Data, stream: IterableDataset, output: Path) -> JsonObject:
    """The facts with a stream as the training data; the other splits are prepared as without it."""
    source = data.train
    assert source and source.use, "what makes the stream"
    if problems := list(stream_data_problems(data)):
        raise BadData("\n".join(problems))
    facts = prepare_items(data.model_copy(update={"train": None}), output, SPLITS[1:])
    if not facts["splits"]["dev"]["examples"]:
        raise BadData(f"data.dev: {facts['datasets']['dev']['use']} has no items. Give some, since a checkpoint is selected on them.")
    first = Stream(stream, source.use, data.fields, 0, batch_size=1).batch([0])
    fields = {name: described(value) for name, value in first.items() if name != "ids"}
    facts |= {name: value for name, value in own_facts(stream).items() if value}  # a stream without label names leaves those of the dev set
    facts["datasets"] = {"train": {"use": source.use, "arguments": source.arguments}} | facts["datasets"]
    facts["splits"] = {"train": {"stream": True, "examples": None, "labelled": True, "fields": fields}} | facts["splits"]
    return facts


def own_facts(dataset: object) -> JsonObject:
    """What a dataset says about itself: `facts()`, and the names of its classes in `label_names` or, as in torchvision, `classes`."""
    names = getattr(dataset, "label_names", None) or getattr(dataset, "classes", None) or []
    facts = getattr(dataset, "facts", None)
    return {"label_names": [str(name) for name in names]} | (facts() if callable(facts) else {})


def described(value: Tensor) -> JsonObject:
    return {"shape": list(value.shape[1:]), "type": str(value.dtype).removeprefix("torch.")}
