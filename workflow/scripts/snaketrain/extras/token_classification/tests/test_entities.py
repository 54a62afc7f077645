"""Counts of entities: against seqeval's figures, and against a definition that looks at all spans of a sentence."""

import random
from itertools import combinations

import numpy as np
import pytest

from snaketrain.extras.token_classification.entities import all_figures, counts, entities, types_of

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b"]
# By seqeval 1.2.2 for `sentences(seed)`, in both modes: `precision_recall_fscore_support(..., average=, zero_division=0)` of
# seqeval.metrics.sequence_labeling, and with scheme=IOB2 of seqeval.metrics.v1, where the macro average of no type is undefined (here 0).
# f1, macro_f1, precision, recall, and the same of strict mode
SEQEVAL = [
    (0.73913, 0.749206, 0.73913, 0.73913, 0.695652, 0.700337, 0.666667, 0.727273),
    (0.666667, 0.488889, 0.666667, 0.666667, 0.666667, 0.4, 1.0, 0.5),
    (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    (0.647059, 0.610526, 0.647059, 0.647059, 0.5, 0.40404, 0.5, 0.5),
    (0.521739, 0.371429, 0.5, 0.545455, 0.5, 0.4, 0.5, 0.5),
    (0.465116, 0.465659, 0.47619, 0.454545, 0.4, 0.444444, 0.5, 0.333333),
]


def sentences(seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """True and predicted tags, of which most agree."""
    draw = random.Random(seed)

    def tags(count: int) -> list[str]:
        return draw.choices(TAGS, [3, 1, 1, 1, 1, 0.5, 0.5], k=count)

    sizes = [draw.randint(1, 9) for _ in range(draw.randint(1, 12))]
    true = [tags(size) for size in sizes]
    return true, [[tag if draw.random() < 0.7 else other for tag, other in zip(row, tags(len(row)), strict=True)] for row in true]


@pytest.mark.parametrize("seed", range(len(SEQEVAL)))
def test_figures_are_those_of_seqeval(seed):
    found = all_figures(counts(*sentences(seed), types_of(TAGS)).sum(0))
    names = ("f1", "macro_f1", "precision", "recall")
    assert [found[f"{start}{name}"] for start in ("", "strict_") for name in names] == pytest.approx(SEQEVAL[seed], abs=1e-6)


def by_definition(tags: list[str], strict: bool) -> set[tuple[str, int, int]]:
    """Spans of one type, of which only the first word may begin an entity, and which cannot be longer on either side."""

    def begins(place: int) -> bool:
        prefix, _, of_type = tags[place].partition("-")
        return prefix == "B" or (prefix == "I" and (place == 0 or tags[place - 1][2:] != of_type))

    def is_entity(start: int, end: int) -> bool:
        inside = tags[start + 1 : end]
        is_one = begins(start) and all(tag == f"I-{tags[start][2:]}" for tag in inside)
        return is_one and (end == len(tags) or tags[end] != f"I-{tags[start][2:]}") and (tags[start][0] == "B" or not strict)

    return {(tags[start][2:], start, end) for start, end in combinations(range(len(tags) + 1), 2) if is_entity(start, end)}


@pytest.mark.parametrize("strict", [False, True])
def test_entities_are_the_longest_spans_of_one_type(strict):
    for seed in range(300):
        for tags in sentences(seed)[1]:
            assert {each[:3] for each in entities(tags) if each.begun or not strict} == by_definition(tags, strict)


def test_counts_add_up_over_sentences():
    true, predicted = sentences(4)
    types = types_of(TAGS)
    whole, parts = counts(true, predicted, types), [counts([a], [b], types)[0] for a, b in zip(true, predicted, strict=True)]
    assert np.array_equal(whole, parts) and whole[:, 0, 2].sum() == sum(len(by_definition(tags, False)) for tags in true)
    assert types == ["LOC", "PER", "a-b"]
