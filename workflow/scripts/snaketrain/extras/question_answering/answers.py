"""Answers: how rows name them, how the prepared data has them, and how well a text agrees with them, as SQuAD defines it."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
MEASURES = ("exact_match", "f1")  # F1: of the words that a text and an answer have
ARTICLES = re.compile(r"\b(a|an|the)\b")


class Answer(NamedTuple):
    start: int  # in the characters of the context
    text: str


# --- of rows


def answers_of(cell: object) -> list[Answer] | None:
    """`{text: [...], answer_start: [...]}`, as of SQuAD, or a list of `{text, start}`; either may be JSON in a text. None: it is missing."""
    if isinstance(cell, str):
        cell = json.loads(cell) if cell.strip() else None
    if isinstance(cell, dict) and isinstance(texts := cell.get("text"), list) and isinstance(starts := cell.get("answer_start"), list):
        if len(texts) != len(starts):
            raise ValueError(f"{len(texts)} texts with {len(starts)} starts")
        cell = [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(cell, list | None):
        raise ValueError(f"{str(cell)[:40]!r} is neither {{text: [...], answer_start: [...]}} nor a list of {{text, start}}")
    return None if cell is None else [answer_of(each, number) for number, each in enumerate(cell, 1)]


def answer_of(given: object, number: int) -> Answer:
    text, start = (given.get("text"), given.get("start", given.get("answer_start"))) if isinstance(given, dict) else (None, None)
    if not isinstance(text, str) or type(start) is not int:
        raise ValueError(f"answer {number} has not a text and a whole number as its start")
    if not text.strip():
        raise ValueError(f"answer {number} is empty; the list of a question without an answer is empty")
    return Answer(start, text)


def misplaced(answers: Iterable[Answer], context: str) -> str | None:
    """The first of them that is not in the context where it says."""
    for number, (start, text) in enumerate(answers, 1):
        if start < 0 or not context.startswith(text, start):
            there = repr(context[start : start + len(text)]) if 0 <= start < len(context) else "nothing"
            found = f"; it begins at {context.index(text)}" if text in context else ", which has it nowhere"
            return f"answer {number}, {text!r}, is not at character {start} of the context, where {there} is{found}"
    return None


# --- of the prepared data: numbers, of each answer its start, its length and its characters


def coded(answers: Iterable[Answer]) -> tuple[int, ...]:
    return tuple(number for start, text in answers for number in (start, len(text), *map(ord, text)))


def decoded(numbers: Sequence[int]) -> list[str]:
    """The texts of the answers; numbers below 0 follow them where a batch is padded."""
    found, place = list[str](), 0
    while place < len(numbers) and numbers[place] >= 0:
        end = place + 2 + numbers[place + 1]
        found.append("".join(map(chr, numbers[place + 2 : end])))
        place = end
    return found


# --- agreement


def normalized(text: str) -> str:
    """Without case, punctuation, articles and further spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def agreement(predicted: str, answers: Iterable[str]) -> tuple[float, float]:
    """MEASURES with the answer that agrees most; where there is none, the right text is empty."""
    ours, found = normalized(predicted).split(), []
    for theirs in [words for answer in answers if (words := normalized(answer).split())] or [[]]:
        both, all_words = (Counter(ours) & Counter(theirs)).total(), len(ours) + len(theirs)
        found.append((float(ours == theirs), 2 * both / all_words if all_words else 1.0))
    exact, f1 = map(max, zip(*found, strict=True))
    return exact, f1
