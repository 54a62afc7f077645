"""What the training data says about the examples of other sets: their classes, and whether their texts are trained on."""

from dataclasses import dataclass

import numpy

from snaketrain.config.schema import Data
from snaketrain.data.prepared_files import open_table, split_files
from snaketrain.data.sources.data_issues import BadData
from snaketrain.data.text.surveying import text_hash
from snaketrain.runtime.manifests import Manifest


@dataclass(frozen=True)
class TrainedOn:
    label_names: list[str]
    label_counts: list[int]  # of the training examples, by class; empty if nothing is trained
    hashes: numpy.ndarray  # of their texts
    selecting: numpy.ndarray  # the hashes of the texts of the development set

    @classmethod
    def read(cls, prepared: Manifest, data: Data) -> "TrainedOn":
        """From prepared training data, which was read by the settings `data`, or by ones with the same texts."""
        names, train = prepared.facts["label_names"], prepared.facts["splits"]["train"]
        counts = train.get("label_counts", []) if train["examples"] else []
        return cls(names, counts, _hashes(prepared, "train", data), _hashes(prepared, "dev", data))

    def classes(self, data: Data) -> dict[str, int]:
        """The number of each label's class, where another set calls it by `data.labels`."""
        labels = data.labels if data.labels is not None else {name: name for name in self.label_names}
        if unknown := next((name for name in labels.values() if name not in self.label_names), None):
            raise BadData(
                f"data.labels: {unknown!r} is not among the classes of the training data: {', '.join(self.label_names)}. Name one of them."
            )
        return {label: self.label_names.index(name) for label, name in labels.items()}


def _hashes(prepared: Manifest, split: str, data: Data) -> numpy.ndarray:
    batches = open_table(split_files(prepared, split)).to_batches()
    texts = (zip(*(batch[name].to_pylist() for name in data.text_columns), strict=True) for batch in batches)
    return numpy.fromiter((text_hash(each) for batch in texts for each in batch), numpy.int64)
