"""Pairs of texts, each text tokenised once, whatever the number of its pairs."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snaketrain.config.schema import Data
from snaketrain.data.cells import DESCRIPTIONS, BadData, DataIssues
from snaketrain.data.loading.examples import padded
from snaketrain.data.loading.training_data import Batch
from snaketrain.data.reading import cell, check_columns, parser_of, readable, rows
from snaketrain.data.surveying import decodable
from snaketrain.data.tokenizer_files import PAD_TOKENS
from snaketrain.runtime.loaded_code import count_as_read
from snaketrain.runtime.strict_json import JsonObject

AT_ONCE = 10_000  # texts: what the tokenizer returns takes far more memory than the tokens


class Pairs:
    """Map-style. `pairs` has the numbers of both texts: equal texts have the same one."""

    def __init__(
        self, path: str, tokenizer: str, first: str = "first", second: str = "second", score: str | None = None, max_length: int = 128,
        columns: list[str] | None = None, least_score: float | None = None,
    ):  # fmt: skip
        """`path`: CSV, TSV, JSON or Parquet; `columns`: of a file without a header. `least_score`: pairs with a lower one are left out."""
        if least_score is not None and score is None:
            raise ValueError("`least_score` needs `score`, the column of the scores: name it, or remove `least_score`")
        self.path, self.issues, self.left_out = path, DataIssues(), 0
        text = {"text": [first, second], "columns": columns, "tokenizer": {"path": tokenizer}}
        data = Data.model_validate({"name": "pairs", "train": {"path": path}, "label": None} | text)
        numbers: dict[str, int] = {}
        pairs, scores = [], []
        for one, other, of_pair in self.read(data, first, second, score):
            if least_score is None or of_pair >= least_score:
                pairs.append([numbers.setdefault(each, len(numbers)) for each in (one, other)])
                scores.append(of_pair)
            else:
                self.left_out += 1
        if not pairs:
            raise BadData(f"{path} has no pairs{f' with a score of at least {least_score}' if self.left_out else ''}")
        self.pairs, self.scores = np.array(pairs), np.array(scores, np.float32)
        self.tokenise(tokenizer, list(numbers), max_length)
        self.texts = [f"{of_text[one]} | {of_text[other]}" for of_text in [list(numbers)] for one, other in pairs]
        self.lengths = np.array([len(each) for each in self.tokens])[self.pairs].max(1)

    def read(self, data: Data, first: str, second: str, score: str | None) -> Iterator[tuple[str, str, float]]:
        """The texts of each pair, and its score; NaN without a column of scores."""
        file, parse = Path(self.path), parser_of(data)
        if not file.is_file():
            raise ValueError(f"`path`: there is no file {file}")
        count_as_read(self.path)
        further = [score] if score else []
        if problems := check_columns(data, "pairs", readable([file], data), further=[("score", column) for column in further]):
            raise BadData("\n".join(problems))
        for row in rows([file], data, self.issues, further=further):
            one, other = (decodable(row, "text", column, self.issues, parse).strip() for column in (first, second))
            if not one or not other:
                raise BadData(f"{row.location}: column {(second if one else first)!r} has no text. Complete the pair, or remove it.")
            found = cell("score", row, score, as_number) if score else math.nan
            yield one, other, found

    def tokenise(self, folder: str, texts: list[str], max_length: int) -> None:
        opened = open_tokenizer(folder)
        library = opened.backend_tokenizer
        library.no_padding()
        library.enable_truncation(max_length)
        parts = (library.encode_batch(texts[at : at + AT_ONCE]) for at in range(0, len(texts), AT_ONCE))
        encoded = [(np.array(each.ids, np.int32), bool(each.overflowing)) for part in parts for each in part]
        self.tokens, self.truncated = [tokens for tokens, _ in encoded], sum(cut for _, cut in encoded)
        self.padding = opened.pad_token_id or 0
        self.about = {"tokenizer": folder, "vocab_size": len(opened), "pad_token_id": self.padding, "max_length": max_length}

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> int:
        return number  # `collate` takes all of a batch at once

    def collate(self, items: list[int]) -> Batch:
        pairs = self.pairs[items]
        tokens = [self.tokens[number] for number in pairs.ravel()]
        both = {"input_ids": padded(tokens, self.padding), "attention_mask": padded([np.ones_like(each) for each in tokens], 0)}
        by_pair = {name: values.view(len(items), 2, -1) for name, values in both.items()}
        return by_pair | {"texts": torch.from_numpy(pairs), "scores": torch.from_numpy(self.scores[items])}

    def facts(self) -> JsonObject:
        return self.about

    def check(self) -> None:
        """Says what was changed or left out: a bad row was an error when it was read."""
        counts = {"pairs": len(self), "different texts": len(self.tokens), f"cut to {self.about['max_length']} tokens": self.truncated}
        counts |= {"pairs left out, with a lower score than `least_score`": self.left_out}
        counts |= {f"{DESCRIPTIONS[kind]} ({'; '.join(self.issues.examples[kind])})": count for kind, count in self.issues.counts.items()}
        print(f"{self.path}: {'; '.join(f'{count} {what}' for what, count in counts.items() if count)}", flush=True)


def as_number(value: object) -> float:
    number = float(str(value))
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no number")
    return number


def open_tokenizer(folder: str) -> Any:  # of transformers
    from transformers import AutoTokenizer

    if not (file := Path(folder) / "tokenizer.json").is_file():
        raise ValueError(f"`tokenizer`: there is no {file}")
    count_as_read(*(str(each) for each in (file, file.with_name("tokenizer_config.json")) if each.is_file()))
    opened = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    known = opened.get_vocab()
    opened.pad_token = opened.pad_token or next((token for token in PAD_TOKENS if token in known), None)
    return opened
