"""Lets a model write its answers, and turns them and their references into texts."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from snaketrain.config.schema.generation import Generate
from snaketrain.runtime.json_types import JsonObject

if TYPE_CHECKING:
    from transformers import GenerationConfig


class Answers(NamedTuple):
    """Texts of a batch, one of each for each example."""

    prompts: list[str]
    references: list[str]
    generated: list[str]


class Generates(Protocol):
    """What generating needs of a transformers model."""

    generation_config: "GenerationConfig"

    def generate(self, **options: object) -> Tensor: ...


class Generation:
    def __init__(self, settings: JsonObject, module: nn.Module, ends: list[int], data: JsonObject):
        """`ends`: the tokens at which an answer ends. `data`: its facts, with the folder of its tokenizer."""
        from tokenizers import Tokenizer

        self.settings = Generate.model_validate(settings)
        self.tokenizer = Tokenizer.from_file(str(Path(data["tokenizer_folder"]) / "tokenizer.json"))
        self.pad, self.ends = data["pad_token_id"], ends
        if not ends:
            raise SystemExit("data.end_token: is missing, and the model names no end token: nothing says where an answer ends. Set it.")
        self.written = bool(getattr(module.config, "is_encoder_decoder", False))  # by a decoder of its own, rather than after the prompt
        self.checked = False

    def answers(self, module: nn.Module, prompts: Sequence[list[int]], references: Sequence[list[int]]) -> Answers:
        """The answers to prompts, all of which the model gets at once."""
        self.check_ends(references)
        generated = self.generate(module, prompts)
        return Answers(*([self.text(row) for row in rows] for rows in (prompts, references, generated)))

    def generate(self, module: nn.Module, prompts: Sequence[list[int]]) -> list[list[int]]:
        width = max(1, *map(len, prompts))
        room = [width - len(prompt) for prompt in prompts]
        if self.written:
            rows = [prompt + [self.pad] * spare for prompt, spare in zip(prompts, room, strict=True)]
            mask = [[1] * len(prompt) + [0] * spare for prompt, spare in zip(prompts, room, strict=True)]
        else:  # on the left, so that each answer continues its prompt
            rows = [[self.pad] * spare + prompt for prompt, spare in zip(prompts, room, strict=True)]
            mask = [[0] * spare + [1] * len(prompt) for prompt, spare in zip(prompts, room, strict=True)]
        device = next(module.parameters()).device
        model: Generates = module  # type: ignore[assignment]  # of transformers
        written = model.generate(
            input_ids=torch.tensor(rows, device=device), attention_mask=torch.tensor(mask, device=device), do_sample=False, use_cache=True,
            eos_token_id=self.ends, pad_token_id=self.pad, **self.settings.model_dump(exclude_none=True),
        )  # fmt: skip
        start = 1 if self.written else width
        return [self.until_end(row) for row in written[:, start:].tolist()]

    def text(self, tokens: list[int]) -> str:
        """Without special tokens."""
        text: str = self.tokenizer.decode(self.until_end(tokens), skip_special_tokens=True)
        return text.strip()

    def until_end(self, tokens: list[int]) -> list[int]:
        return tokens[: next((place for place, token in enumerate(tokens) if token in self.ends), len(tokens))]

    def check_ends(self, references: Sequence[list[int]]) -> None:
        """Warn of a model that never learns to stop: each of its answers is as long as allowed."""
        if not self.checked and not any(set(self.ends) & set(reference) for reference in references):
            last = self.tokenizer.id_to_token(references[0][-1]) if references[0] else None
            logging.warning(
                "answers in the data end with %r, but the model stops at %s: its answers may never end. Set data.end_token.",
                last, ", ".join(repr(self.tokenizer.id_to_token(end)) for end in self.ends),
            )  # fmt: skip
        self.checked = True


def stop_at_end(module: nn.Module, data: JsonObject) -> list[int]:
    """The tokens at which an answer ends: those of the model, and that of the data, at which the model then stops wherever it is used."""
    config: GenerationConfig | None = getattr(module, "generation_config", None)
    own: int | list[int] | None = config.eos_token_id if config else None
    ends = sorted({data.get("end_token_id"), *(own if isinstance(own, list) else [own])} - {None})
    if config and ends:
        config.eos_token_id = ends if len(ends) > 1 else ends[0]
    return ends


def split_answer(tokens: list[int], types: list[int]) -> tuple[list[int], list[int]]:
    """The tokens before the last answer, and that answer: the last ones of type 1."""
    end = next((place for place in range(len(types), 0, -1) if types[place - 1]), len(types))
    start = next((place for place in range(end, 0, -1) if not types[place - 1]), 0)
    return tokens[:start], tokens[start:end]
