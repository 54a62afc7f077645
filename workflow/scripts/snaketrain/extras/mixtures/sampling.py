"""Which examples of which training set each step takes: a pure function of the step, whatever the number of processes."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, pairwise

import numpy as np

from snaketrain.config.schema import Train
from snaketrain.data.loading import split_files
from snaketrain.data.loading.batches import Batches, Order, by_length
from snaketrain.data.loading.examples import Blocks, Packed, TextExamples, open_split
from snaketrain.data.loading.training_data import Lengths, TrainingData
from snaketrain.extras.mixtures.phases import dealt, taken, window_of
from snaketrain.extras.mixtures.settings import MAIN, mixture_of
from snaketrain.runtime.manifests import Manifest, digest

DRAW = 2  # beside the order of an epoch, which is drawn from the same seed


class Walk:
    """The examples of one set in random order, epoch after epoch of its own: none comes again before all have come."""

    def __init__(self, lengths: Lengths, seed: int):
        self.size = len(lengths)
        self._order = lru_cache(1)(partial(Order, lengths, seed))
        self._section = lru_cache(1)(lambda epoch, section: self._order(epoch).section(section)[:2])

    def between(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples at these places of the walk, and their lengths."""
        found = [(np.arange(0), np.arange(0))]
        while start < end:
            epoch, place = divmod(start, self.size)
            section, place = divmod(place, self._order(epoch).section_size)
            ids, lengths = (of_section[place : place + end - start] for of_section in self._section(epoch, section))
            found.append((ids, lengths))
            start += len(ids)
        ids, lengths = map(np.concatenate, zip(*found, strict=True))
        return ids, lengths


class MixedBatches(Batches):
    """Batches of `size` examples, each with the shares of its phase.

    Within a window of steps the examples of each set are sorted by length, so that a batch has the shortest of all sets, or the longest, and
    less padding. A window ends with its phase: so a step depends on no later one.
    """

    def __init__(self, mixed: "MixedLengths", train: Train):
        super().__init__(mixed, train.seed, train.batch_size)
        self.phases, self.content, self.window = dealt(train, mixed.tokens), mixed.content, window_of(train)
        self.walks = {name: Walk(lengths, train.seed) for name, lengths in mixed.sets.items()}
        self.starts = dict(zip(mixed.sets, mixed.starts.tolist(), strict=False))
        # the sets of later phases count for no step before these
        self.epoch_steps = -(-sum(self.walks[name].size for name in self.phases[0].sets) // self.size)
        self._of_window = lru_cache(1)(self._make_window)

    def count(self, epoch: int) -> int:
        """An epoch has as many examples as the sets of the first phase have together."""
        return self.epoch_steps

    def batch(self, epoch: int, number: int) -> np.ndarray:
        before = epoch * self.epoch_steps + number
        first, last = self._window(before)
        return self._of_window(first, last)[before - first]

    def begins(self, step: int) -> bytes:
        """Of a phase: its shares, and the content of its sets; of a window that is shorter than others: its length."""
        first, last = self._window(step - 1)
        phase = next((phase for phase in self.phases if phase.begins == step - 1), None)
        begun = [phase.sets, phase.shares, [self.content[name] for name in phase.sets]] if phase else []
        shorter = last - first if first == step - 1 and last - first < self.window else 0
        return digest(begun, shorter).encode() if begun or shorter else b""

    def times_seen(self, step: int) -> dict[str, float]:
        """By set, how many times its examples were taken after a step, on average."""
        return {name: place / self.walks[name].size for name, place in self._places(step).items()}

    def _window(self, before: int) -> tuple[int, int]:
        """The step before the window in which the step after `before` is, and its last step."""
        phase = next(phase for phase in self.phases if before < phase.last)
        first = before - (before - phase.begins) % self.window
        return first, min(first + self.window, phase.last)

    def _make_window(self, first: int, last: int) -> list[np.ndarray]:
        places = [self._places(step) for step in range(first, last + 1)]
        rank = np.random.default_rng([self.seed, first, 0, DRAW]).permutation(last - first).argsort()  # of a step's batch, by length
        batches: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in rank]
        for name, start in self.starts.items():
            at = [place[name] for place in places]
            for steps in self._of_one_epoch(name, at):
                ids, lengths = by_length(*self.walks[name].between(at[steps[0]], at[steps[-1] + 1]))
                done = 0
                for step in sorted(steps, key=rank.__getitem__):
                    end = done + at[step + 1] - at[step]
                    batches[step].append((start + ids[done:end], lengths[done:end]))
                    done = end
        return [by_length(*map(np.concatenate, zip(*parts, strict=True)))[0] for parts in batches]

    def _of_one_epoch(self, name: str, at: list[int]) -> Iterator[list[int]]:
        """The steps of a window, apart where the set begins anew: copies of an example would be neighbours by length, and in one batch."""
        size = self.walks[name].size
        epochs = [(start // size, (end - 1) // size) for start, end in pairwise(at)]
        for _, steps in groupby(range(len(epochs)), epochs.__getitem__):
            yield [*steps]

    def _places(self, step: int) -> dict[str, int]:
        """How many examples of each set the steps up to this one take."""
        places = dict.fromkeys(self.walks, 0)
        for phase in self.phases:
            examples = max(0, min(step, phase.last) - phase.begins) * self.size
            for name, count in zip(phase.sets, taken(phase.shares, examples), strict=True):
                places[name] += count
        return places


class MixedLengths:
    """The lengths of the examples of several sets, one set after another."""

    def __init__(self, sets: dict[str, Lengths], tokens: dict[str, float], content: dict[str, str]):
        """`tokens`: of each set, how many an example has on average; `content`: of each, a digest of its examples."""
        self.sets, self.tokens, self.content = sets, tokens, content
        self.starts = np.cumsum([0, *map(len, sets.values())])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, examples: slice, /) -> np.ndarray:
        start, stop, _ = examples.indices(len(self))
        each = zip(self.starts.tolist(), self.sets.values(), strict=False)
        return np.concatenate([lengths[max(0, start - first) : max(0, stop - first)] for first, lengths in each])

    def batches(self, train: Train) -> MixedBatches:
        return MixedBatches(self, train)


class MixedBlocks(Blocks):
    """Blocks of several sets, none of which has text of two of them."""

    def __init__(self, parts: Sequence[Blocks]):
        self.parts, self.length, self.pad_token_id = parts, parts[0].length, parts[0].pad_token_id
        self.firsts = np.cumsum([0, *map(len, parts)])

    def row(self, number: int) -> np.ndarray:
        part = int(np.searchsorted(self.firsts, number, side="right")) - 1
        return self.parts[part].row(number - int(self.firsts[part]))


def drawn(examples: TrainingData, data: Manifest, train: Train) -> TrainingData:
    """Called where training data is opened."""
    mixture = mixture_of(train)
    if mixture is None or not train.steps:  # of a model that is only evaluated
        return examples
    splits = {name: name if name == MAIN else f"train_sets.{name}" for name in mixture.sets_in_order}
    if not data.facts["splits"].keys() >= {*splits.values()}:  # what a plan assumes of data that is not prepared yet
        return examples
    opened = {name: open_split(data, split, train) for name, split in splits.items()}
    blocks = [each for each in opened.values() if isinstance(each, Blocks)]
    if blocks:
        joined: MixedBlocks | TextExamples | Packed = MixedBlocks(blocks)
    else:
        texts = TextExamples([file for split in splits.values() for file in split_files(data, split)], data.facts["pad_token_id"])
        joined = Packed(texts) if train.packing else texts
    facts = {name: data.facts["splits"][split] for name, split in splits.items()}
    tokens = {name: (facts[name]["tokens"] + facts[name].get("target_tokens", 0)) / len(each) for name, each in opened.items()}
    content = {name: digest([file.name, data.files.get(file.name)]) for name, split in splits.items() for file in split_files(data, split)}
    joined.lengths = MixedLengths({name: each.lengths for name, each in opened.items()}, tokens, content)  # type: ignore[assignment]
    return joined
