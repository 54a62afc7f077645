"""Data of many sections: every example once, shuffled, in the same order after a resume, and no process holds the order of all examples."""

import numpy as np
import pytest

from snaketrain.data.loading import batches
from snaketrain.data.loading.batches import Batches, Order

SIZES = [1, 63, 64, 65, 640, 1000, 4097]


@pytest.fixture(autouse=True)
def small_sections(monkeypatch):
    monkeypatch.setattr(batches, "SECTION", 512)
    monkeypatch.setattr(batches, "BLOCK", 64)


def lengths(examples: int) -> np.ndarray:
    return np.random.default_rng(examples).integers(3, 60, examples)


class Asked:
    """Lengths that record how many are asked for at a time."""

    def __init__(self, examples: int):
        self.known, self.most = lengths(examples), 0

    def __len__(self) -> int:
        return len(self.known)

    def __getitem__(self, examples: slice, /) -> np.ndarray:
        found = self.known[examples]
        self.most = max(self.most, len(found))
        return found


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("multiple", [1, 100, 1000])
def test_sections_hold_every_example_once_with_its_length(examples, multiple):
    known = lengths(examples)
    made = Order(known, 42, 0, multiple)
    sections = [made.section(number)[:2] for number in range(made.sections)]
    assert sorted(np.concatenate([ids for ids, _ in sections])) == list(range(examples))
    assert all((known[ids] == of_these).all() for ids, of_these in sections)
    assert all(len(ids) % multiple == 0 and len(ids) >= min(512, multiple) for ids, _ in sections[:-1])


def test_a_section_is_of_blocks_from_anywhere_and_shuffled():
    made = Order(lengths(1 << 16), 42, 0)
    first, of_first, _ = made.section(0)
    assert len(set(first // 64)) == 8 and first.max() - first.min() > 1 << 14  # 8 whole blocks
    assert abs(np.corrcoef(np.arange(512), first)[0, 1]) < 0.2 and abs(np.corrcoef(of_first[:-1], of_first[1:])[0, 1]) < 0.2
    assert set(first) != set(Order(lengths(1 << 16), 42, 1).section(0)[0]) != set(Order(lengths(1 << 16), 43, 1).section(0)[0])


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("tokens", [None, 400])
@pytest.mark.parametrize("padded", [True, False])
def test_batches_of_all_sections_hold_every_example_once(examples, tokens, padded):
    known = lengths(examples)
    batches = Batches(known, 42, 3, tokens, padded)
    found = batches.of(1)
    assert sorted(np.concatenate(found)) == list(range(examples)) and len(found) == batches.count(1)
    if tokens is None:
        assert sorted(map(len, found))[1:] == [3] * (len(found) - 1)  # only one in the epoch is smaller
    else:
        assert max(known[ids].max() * len(ids) if padded else known[ids].sum() for ids in found) <= tokens


@pytest.mark.parametrize("tokens", [None, 400])
@pytest.mark.parametrize("first", [0, 1, 170, 171, 500, 1365, 1366, 2000])
def test_a_resumed_training_continues_with_the_same_batches(first, tokens):
    whole, rest = (
        [pair for _, steps in Batches(lengths(4097), 42, 3, tokens).after(start, 2100) for pair in steps] for start in (0, first)
    )
    assert [step for step, _ in rest] == list(range(first + 1, 2101))
    assert all(a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(whole[first:], rest, strict=True))


def test_a_late_step_needs_the_lengths_of_one_section():
    known = Asked(1 << 16)
    batches = Batches(known, 42, 4)
    _, steps = next(batches.after(16_000, 16_001))
    assert [step for step, _ in steps] == [16_001]
    assert known.most <= 64
    assert len(batches._of_section(0, 160)) == 100  # of 400 examples: a multiple of 50 batches
