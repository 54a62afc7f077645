"""Which examples an epoch takes, and how often: a pure function of labels, seed and epoch, whatever the number of processes."""

from typing import TYPE_CHECKING

import numpy as np

from snaketrain.config.schema import Train
from snaketrain.data.loading.training_data import Lengths, TrainingData
from snaketrain.runtime.manifests import Manifest

if TYPE_CHECKING:
    from snaketrain.data.loading.examples import TextExamples

DRAW = 3  # beside the order of blocks, which is drawn from the same seed and epoch


class ByClass:
    """Lengths of examples of which an epoch takes those of rare classes more often."""

    def __init__(self, lengths: Lengths, labels: np.ndarray, power: float):
        self.lengths = lengths
        small = np.min_scalar_type(len(labels))
        self.members = [np.flatnonzero(labels == label).astype(small) for label in np.unique(labels)]
        self.counts = shares(np.array([len(members) for members in self.members]), power)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, examples: slice, /) -> np.ndarray:
        return self.lengths[examples]

    def of_epoch(self, seed: int, epoch: int) -> np.ndarray:
        """Of each class all examples equally often, and some of them once more, others in each epoch."""
        random = np.random.default_rng([seed, epoch, 0, DRAW])
        drawn = []
        for members, count in zip(self.members, self.counts, strict=True):
            times, more = divmod(int(count), len(members))
            drawn += [members] * times + [random.permutation(members)[:more]]
        return np.sort(np.concatenate(drawn))


def shares(counts: np.ndarray, power: float) -> np.ndarray:
    """Of as many examples as there are, how many are of each class: never fewer than one, since the power is below 1."""
    wanted = counts.sum() * counts**power / (counts**power).sum()
    found: np.ndarray = np.floor(wanted).astype(int)
    left = counts.sum() - found.sum()
    found[np.argsort(found - wanted, kind="stable")[:left]] += 1  # those that were cut most
    return found


def drawn(examples: "TextExamples", data: Manifest, train: Train) -> TrainingData:
    """Called where training data is opened."""
    sampling = train.sampling  # type: ignore[attr-defined]  # one of the FIELDS of settings.py
    if sampling is not None and len(examples):
        examples.lengths = ByClass(examples.lengths, np.asarray(examples.table["label"].combine_chunks()), sampling.power)  # type: ignore[assignment]
    return examples
