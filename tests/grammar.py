"""Texts of known entropy: no language model can predict them better, and one that sees only a single word is far from it."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"]
END = "<|endoftext|>"
ENDS = 1 / 16  # chance that a text ends after a word, from the second on
CHANCES = (0.7, 0.1, 0.1, 0.1)


def texts(count: int, seed: int = 0) -> tuple[list[str], float]:
    """This many texts, and the perplexity under the true grammar: from the probabilities of all that was drawn, each END included.

    The first two words of a text are arbitrary; each further word is one of four, which depend on the two words before it.
    """
    rules, draw = random.Random(1), random.Random(seed)
    follow = {(a, b): rules.sample(WORDS, len(CHANCES)) for a in WORDS for b in WORDS}
    lines, surprise, tokens = [], 0.0, 0
    for _ in range(count):
        words = draw.choices(WORDS, k=2)
        chance = math.log(1 / len(WORDS)) * 2 + math.log(ENDS)
        while draw.random() > ENDS:
            number = draw.choices(range(len(CHANCES)), CHANCES)[0]
            words.append(follow[words[-2], words[-1]][number])
            chance += math.log(CHANCES[number] * (1 - ENDS))
        lines.append(" ".join(words))
        surprise, tokens = surprise - chance, tokens + len(words) + 1
    return lines, math.exp(surprise / tokens)


def write_texts(path: Path, count: int, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts(count, seed)[0]), encoding="utf-8")


def write_word_tokenizer(folder: Path, more: Sequence[str] = ()) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate([END, *WORDS, "[UNK]", *more])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
