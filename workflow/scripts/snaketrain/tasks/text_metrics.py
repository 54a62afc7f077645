"""Metrics of generated texts as sums over examples, so that batches and processes make no difference.

`exact_match`: the share of texts that equal their reference but for white space. `token_f1`: of words, normalised as for SQuAD. `rouge1`, `rouge2`, `rougeL`: the
F-measures, without stemming, as the package rouge-score computes them. `bleu`: of the whole corpus, from 0 to 100, as sacrebleu computes it.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

ROUGE = ("rouge1", "rouge2", "rougeL")
MEANS = ("exact_match", "token_f1", *ROUGE)


def text_sums(generated: Sequence[str], references: Sequence[str]) -> dict[str, Tensor]:
    """Sums over the texts of a batch: of each metric that is a mean, and the counts of n-grams that make BLEU."""
    totals = dict.fromkeys(MEANS, 0.0)
    for text, reference in zip(generated, references, strict=True):
        totals["exact_match"] += text.split() == reference.split()
        totals["token_f1"] += token_f1(text, reference)
        for name, f_measure in rouge(text, reference).items():
            totals[name] += f_measure
    bleu = BLEU().corpus_score(generated, [references])
    counts = {"answers": [len(generated)], "bleu_right": bleu.counts, "bleu_all": bleu.totals, "bleu_lengths": [bleu.sys_len, bleu.ref_len]}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in (totals | counts).items()}


def text_metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """The metrics from the sums over all texts."""
    right, of_all, (length, reference_length) = (sums[f"bleu_{name}"].round().long().tolist() for name in ("right", "all", "lengths"))
    bleu = BLEU.compute_bleu(right, of_all, length, reference_length, smooth_method="exp")
    return {name: float(sums[name] / sums["answers"]) for name in MEANS} | {"bleu": bleu.score}


def token_f1(text: str, reference: str) -> float:
    """Of the words that both have in common, each as often as it occurs in both."""
    words, expected = _words(text), _words(reference)
    if not (words and expected):
        return float(words == expected)
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected))


def rouge(text: str, reference: str) -> dict[str, float]:
    """Of the words and pairs of words that both have in common, and of their longest common subsequence."""
    words, expected = (re.findall("[a-z0-9]+", each.lower()) for each in (text, reference))
    pairs, expected_pairs = (list(pairwise(each)) for each in (words, expected))
    return {
        "rouge1": _f_measure((Counter(words) & Counter(expected)).total(), len(words), len(expected)),
        "rouge2": _f_measure((Counter(pairs) & Counter(expected_pairs)).total(), len(pairs), len(expected_pairs)),
        "rougeL": _f_measure(_longest_common_subsequence(words, expected), len(words), len(expected)),
    }


def _f_measure(common: int, number: int, expected: int) -> float:
    return 2 * common / (number + expected) if common else 0.0


def _longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Its length, by dynamic programming over the words of the first text."""
    before = [0] * (len(second) + 1)
    for word in first:
        now = [0]
        for place, other in enumerate(second):
            now.append(before[place] + 1 if word == other else max(before[place + 1], now[place]))
        before = now
    return before[-1]


def _words(text: str) -> list[str]:
    """Without case, punctuation and articles, as the script that evaluates SQuAD does it."""
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()
