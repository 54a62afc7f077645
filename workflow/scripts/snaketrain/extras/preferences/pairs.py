"""Pairs of answers to a prompt, as tokens: texts, or chats that the tokenizer's template writes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor

from snaketrain.config.schema import Data
from snaketrain.data.cells import DESCRIPTIONS, BadData, DataIssues
from snaketrain.data.formats import read_rows
from snaketrain.data.reading import readable
from snaketrain.extras.preferences.answers import PRECISIONS, Item, of_reference
from snaketrain.runtime.loaded_code import count_as_read
from snaketrain.runtime.strict_json import JsonObject, shortened

Part: TypeAlias = str | list[JsonObject]  # a text, or messages with a role and a content
SIDES = CHOSEN, REJECTED = "chosen", "rejected"
MISMATCHED = "mismatched_chosen", "mismatched_rejected"  # answers of another pair
CHARACTERS = 4  # of a token, about: by the length of texts similar ones are batched together
MOST_NAMED = 10  # rows in a message
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class Pair(NamedTuple):
    place: str  # a file and a line, or a row of it
    prompt: Part
    chosen: Part
    rejected: Part


class Pairs:
    """Map-style: for each side the tokens of prompt and answer, and which of them are the answer's."""

    def __init__(
        self,
        path: str,
        tokenizer: str,
        max_length: int | None = 1024,
        prompt: str = "prompt",
        chosen: str = CHOSEN,
        rejected: str = REJECTED,
        mismatched: bool = False,
        reference: str | None = None,
        reference_precision: str = "fp32",
    ):
        """`path`: JSON or Parquet. `tokenizer`: its folder. `max_length`: in tokens; the ends of longer answers are cut off. `prompt`, `chosen`
        and `rejected` are names of columns. `mismatched`: beside each pair its prompt with the answers of another pair, for `loss: kto`.
        `reference`: the folder of a model whose log probabilities are computed once, when the data is prepared, in `reference_precision`, `fp32`, `bf16` or `fp16`.
        """
        from transformers import AutoTokenizer

        self.path, self.folder, self.max_length, self.columns = path, tokenizer, max_length, (prompt, chosen, rejected)
        self.reference, self.reference_precision = reference, reference_precision
        if not (Path(tokenizer) / TOKENIZER_FILES[0]).is_file():
            raise ValueError(f"there is no {tokenizer}/{TOKENIZER_FILES[0]}")
        if reference_precision not in PRECISIONS:
            raise ValueError(f"`reference_precision` {reference_precision!r} is not one of {', '.join(PRECISIONS)}")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
        self.issues = DataIssues()
        pairs = list(self.read())
        self.equal = [pair.place for pair in pairs if pair.chosen == pair.rejected]
        self.pairs = [pair for pair in pairs if pair.chosen != pair.rejected]
        if not self.pairs:
            raise ValueError(f"{path}: has no pair of different answers")
        self.others = self.with_other_prompts() if mismatched else None
        self.texts = [as_text(pair.prompt) for pair in self.pairs]
        characters = [len(as_text(pair.prompt)) + max(len(as_text(part)) for part in (pair.chosen, pair.rejected)) for pair in self.pairs]
        self.lengths = 1 + np.array(characters) // CHARACTERS
        count_as_read(path, *(str(Path(tokenizer) / name) for name in TOKENIZER_FILES))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> Item:
        """For each side the tokens, and how many of them are the prompt's."""
        pair = self.pairs[number]
        found = {side: self.tokens(pair, getattr(pair, side)) for side in SIDES}
        if self.others is not None:
            other = self.pairs[self.others[number]]
            found |= {name: self.tokens(pair, getattr(other, side)) for name, side in zip(MISMATCHED, SIDES, strict=True)}
        return found

    def collate(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `answers`, of (pair, side, position)."""
        width = max(len(ids) for item in items for ids, _ in item.values())
        shape = (len(items), len(items[0]), width)
        ids, mask, answers = (torch.full(shape, fill) for fill in (self.tokenizer.pad_token_id or 0, 0, 0))
        for row, item in enumerate(items):
            for column, (tokens, prompt) in enumerate(item.values()):
                ids[row, column, : len(tokens)] = torch.tensor(tokens)
                mask[row, column, : len(tokens)] = 1
                answers[row, column, prompt : len(tokens)] = 1
        return {"input_ids": ids, "attention_mask": mask, "answers": answers}

    def facts(self) -> JsonObject:
        return {
            "tokenizer": self.folder,
            "vocab_size": len(self.tokenizer),
            "pad_token_id": self.tokenizer.pad_token_id,
            "max_length": self.max_length,
            "mismatched": self.others is not None,
            "reference": self.reference is not None,
        }

    def precompute(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """What the reference finds of these pairs, for each side."""
        if self.reference is None:
            return {}
        folder = Path(self.reference)
        if not (folder / "config.json").is_file():
            raise ValueError(f"there is no {folder}/config.json")
        if not len(numbers):
            return {"reference": np.zeros((0, len(self[0])), np.float32)}
        count_as_read(*(str(path) for path in folder.iterdir() if path.is_file()))
        return {"reference": of_reference(self.reference, self.reference_precision, len(self.tokenizer), self, numbers)}

    def check(self) -> None:
        """Encode all pairs once; tell which ones are left out or cut off, and what is odd about the file."""
        for kind, count in self.issues.counts.items():
            print(f"{self.path}: {count} {DESCRIPTIONS[kind]}: {'; '.join(self.issues.examples[kind])}", flush=True)
        if self.equal:
            print(
                f"{self.path}: {len(self.equal)} pairs have equal answers and are left out: {shortened(self.equal, MOST_NAMED)}", flush=True
            )
        cut, empty = [], []
        for number, pair in enumerate(self.pairs):
            item = self[number]
            for tokens, prompt in (item[side] for side in SIDES):
                if len(tokens) <= prompt:
                    empty.append(pair.place)
                elif self.max_length is not None and len(tokens) == self.max_length:
                    cut.append(pair.place)
        if empty:
            raise BadData(
                f"`max_length` {self.max_length} leaves no token of an answer: {shortened(empty, MOST_NAMED)}. Make it larger, or remove these."
            )
        if cut:
            print(
                f"{self.path}: {len(cut)} answers have {self.max_length} tokens with their prompt, or are cut off there: {shortened(cut, MOST_NAMED)}",
                flush=True,
            )

    # --- rows

    def with_other_prompts(self) -> list[int]:
        """For each pair the nearest one before it that has another prompt, a text or a chat like its own; the last one is before the first."""
        found = []
        for number, (_, prompt, *_) in enumerate(self.pairs):
            before = ((number - each) % len(self.pairs) for each in range(1, len(self.pairs)))
            others = (each for each in before if self.pairs[each].prompt != prompt and isinstance(self.pairs[each].prompt, type(prompt)))
            if (other := next(others, None)) is None:
                raise ValueError(f"{self.pairs[number].place}: no other pair has another prompt, and `mismatched` needs one")
            found.append(other)
        return found

    def read(self) -> Iterator[Pair]:
        path = Path(self.path)
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        for place, row in rows(path, self.issues):
            for column in self.columns:
                if column not in row:
                    raise ValueError(f"{place}: has no column `{column}`, but {', '.join(row)}")
                if not is_part(row[column]):
                    raise ValueError(f"{place}: `{column}` is neither a text nor a list of messages with `role` and `content`, or is empty")
                if not is_unicode(as_text(row[column])):
                    raise BadData(f"{place}: `{column}` has half of a surrogate pair, which is no character. Correct the text.")
            prompt, chosen, rejected = (row[column] for column in self.columns)
            if len({type(part) for part in (prompt, chosen, rejected)}) > 1:
                raise ValueError(f"{place}: some of {', '.join(self.columns)} are texts and others messages")
            yield Pair(place, prompt, chosen, rejected)

    def tokens(self, pair: Pair, answer: Part) -> tuple[list[int], int]:
        if isinstance(pair.prompt, str):
            before: list[int] = self.tokenizer(pair.prompt)["input_ids"]
            end = self.tokenizer.eos_token_id
            if before and before[-1] == end:  # of a tokenizer that ends each text
                before = before[:-1]
            after = self.tokenizer(answer, add_special_tokens=False)["input_ids"] + ([] if end is None else [end])
        else:
            written, whole = self.written(pair, answer)
            before = self.tokenizer(written, add_special_tokens=False)["input_ids"]
            after = self.tokenizer(whole.removeprefix(written), add_special_tokens=False)["input_ids"]
        return (before + after)[: self.max_length], len(before)

    def written(self, pair: Pair, answer: Part) -> tuple[str, str]:
        """The prompt, and the prompt with the answer, by the chat template."""
        try:
            prompt = self.tokenizer.apply_chat_template(pair.prompt, tokenize=False, add_generation_prompt=True)
            whole = self.tokenizer.apply_chat_template([*pair.prompt, *answer], tokenize=False)
        except (TemplateError, ValueError) as error:
            raise ValueError(f"{pair.place}: the chat template refuses it: {error}") from None
        if not whole.startswith(prompt):
            raise ValueError(f"{pair.place}: the chat template writes the prompt differently once an answer follows")
        return prompt, whole


def rows(path: Path, issues: DataIssues) -> Iterator[tuple[str, JsonObject]]:
    """With the place of each."""
    data = Data.model_validate({"name": "pairs", "train": {"path": str(path)}, "label": None, "tokenizer": {"path": str(path)}})
    for file, kind in readable([path], data):
        unit = "row" if kind == "parquet" else "line"
        yield from ((f"{path}, {unit} {number}", row) for number, row in read_rows(file, kind, data, issues, str(path)))


def is_part(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, dict) and isinstance(each.get("content"), str) and each.get("role") for each in value)
    return isinstance(value, str) and value != ""


def as_text(part: Part) -> str:
    return part if isinstance(part, str) else "\n".join(f"{message['role']}: {message['content']}" for message in part)


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
