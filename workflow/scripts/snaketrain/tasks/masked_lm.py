"""Predicts the masked tokens of a text from those on both sides: pretraining of encoders, or continued on texts of one's own."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from snaketrain.data.loading.training_data import Batch
from snaketrain.models.pretrained import make_model
from snaketrain.models.token_losses import NO_TARGET
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Modules
from snaketrain.tasks.predicting_tokens import TokenOutputs, TokenPrediction, check_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MASK_TOKENS = ("[MASK]", "<mask>")  # of BERT and its descendants, and of RoBERTa and BART
MASKED, REPLACED = 0.8, 0.1  # shares of the predicted tokens; the others stay, so that the model cannot trust what it sees
OF_EVALUATIONS = -1  # in place of an epoch: masks that are the same in each evaluation


class MaskedLm(TokenPrediction):
    epoch = 0

    def __init__(self, mask_probability: float = 0.15, mask_token: str | None = None, seed: int = 0):
        """`mask_probability`: share of a text's tokens that are predicted, at least one. `mask_token`: null, the tokenizer's. `seed`: of the masks, which also depend on text and epoch."""
        super().__init__()
        if not 0 < mask_probability < 1:
            raise SystemExit(f"train.task.arguments.mask_probability: is {mask_probability}. Give a share between 0 and 1, such as 0.15.")
        self.share, self.mask_token, self.seed = mask_probability, mask_token, seed

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(Path(data["tokenizer_folder"]) / "tokenizer.json"))
        self.mask = mask_of(tokenizer, self.mask_token)
        special = {*special_tokens(tokenizer), self.mask, data["pad_token_id"]}
        # no tensor, since ranks that do not build the model are here without memory
        self.ordinary = np.setdiff1d(np.arange(data["vocab_size"]), sorted(special))
        text = {"vocab_size": data["vocab_size"], "pad_token_id": data["pad_token_id"]}
        module = make_model(model, folder, {}, text)
        check_vocabulary(module, data["vocab_size"])
        self.use, self.longest = model["use"], getattr(module.config, "max_position_embeddings", None)
        return {"model": module}

    def on_epoch_start(self, epoch: int, modules: Modules) -> None:
        self.epoch = epoch

    def count(self, batch: Batch) -> int:
        """Of an epoch that has perhaps not begun: how many tokens of a text are predicted depends on its length alone."""
        self.check(batch)
        return int(self.predicted_of(self.can_be_masked(batch)).sum())

    def outputs(self, modules: Modules, batch: Batch) -> TokenOutputs:
        self.check(batch)
        return TokenOutputs(*self.logits(modules, batch, OF_EVALUATIONS))

    def predictions(self, modules: Modules, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.logits(modules, batch, self.epoch)

    def logits(self, modules: Modules, batch: Batch, epoch: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.masked(batch, epoch)
        return modules["model"](input_ids=inputs, attention_mask=batch["attention_mask"]).logits, targets

    def masked(self, batch: Batch, epoch: int) -> tuple[Tensor, Tensor]:
        """The tokens that the model sees, and those that it predicts: a function of seed, epoch and text, whatever else is in the batch."""
        tokens, possible = batch["input_ids"], self.can_be_masked(batch)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        of_text = (scrambled(scrambled(tokens) + places) * batch["attention_mask"]).sum(1, keepdim=True) + self.seed
        drawn = scrambled(scrambled(scrambled(of_text) + epoch) + places)  # a number for each token
        ranks = drawn.masked_fill(~possible, torch.iinfo(torch.int64).max).argsort(1).argsort(1)
        chosen = possible & (ranks < self.predicted_of(possible))
        share, ordinary = share_of(scrambled(drawn)), torch.tensor(self.ordinary, device=tokens.device)
        others = ordinary[(share_of(scrambled(drawn + 1)) * len(ordinary)).long()]
        instead = torch.where(share < MASKED, self.mask, torch.where(share < MASKED + REPLACED, others, tokens))
        return torch.where(chosen, instead, tokens), tokens.masked_fill(~chosen, NO_TARGET)

    def can_be_masked(self, batch: Batch) -> Tensor:
        tokens = batch["input_ids"]
        return torch.isin(tokens, torch.tensor(self.ordinary, device=tokens.device)) & (batch["attention_mask"] > 0)

    def predicted_of(self, possible: Tensor) -> Tensor:
        """How many tokens of each text."""
        tokens = possible.sum(1, keepdim=True)
        return (self.share * tokens.double()).round().long().clamp(min=1).minimum(tokens)

    def check(self, batch: Batch) -> None:
        if "position_ids" in batch:
            raise SystemExit("train.packing: is for causal_lm. Remove it, or set train.block_length, which fills rows as well.")
        if "token_type_ids" in batch:
            raise SystemExit("data.text: names two columns, and masked_lm masks one text. Name one.")
        self.check_positions(batch["input_ids"].shape[1], "cut texts by data.max_length, or make train.block_length smaller")


def mask_of(tokenizer: "Tokenizer", named: str | None) -> int:
    found = [number for name in ((named,) if named else MASK_TOKENS) if (number := tokenizer.token_to_id(name)) is not None]
    if not found:
        which = f"no token {named!r}" if named else f"none of {', '.join(MASK_TOKENS)}"
        raise SystemExit(f"data.tokenizer: has {which}, with which tokens are masked. Name its token as train.task.arguments.mask_token.")
    return int(found[0])


def special_tokens(tokenizer: "Tokenizer") -> set[int]:
    """Those that are marked as special, and those that are added to every text."""
    marked = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return marked | set(tokenizer.encode("").ids)


# --- Random numbers that follow from what they are for, and are the same on each device.

FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))  # of the generator SplitMix64


def scrambled(numbers: Tensor) -> Tensor:
    """Another number for each, with no visible relation to it."""
    numbers = numbers * -0x61C8864680B583EB  # products of 64 bits wrap around
    for shift, factor in zip((30, 27), FACTORS, strict=True):
        numbers = (numbers ^ shifted(numbers, shift)) * factor
    return numbers ^ shifted(numbers, 31)


def shifted(numbers: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def share_of(numbers: Tensor) -> Tensor:
    """As fractions, from 0 up to 1."""
    return shifted(numbers, 11).double() / (1 << 53)
