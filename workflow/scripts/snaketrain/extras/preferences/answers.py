"""How probable a model finds the answers of pairs, and a reference, of which this is computed once for all runs on the same data."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from snaketrain.data.loading.training_data import Batch
from snaketrain.models.token_losses import NO_TARGET, sees_later_tokens, token_losses, vocabulary_size

MOST_TOKENS = 2**14  # of a batch, padded
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Item = dict[str, tuple[list[int], int]]  # for each side the tokens, and how many of them are the prompt's


class Dataset(Protocol):
    lengths: np.ndarray  # of pairs, about

    def __getitem__(self, number: int) -> Item: ...
    def collate(self, items: Sequence[Item]) -> Batch: ...


def log_probabilities(module: nn.Module, batch: Batch) -> Tensor:
    """The sum over the tokens of each answer."""
    targets = batch["input_ids"].flatten(0, 1)[:, 1:].masked_fill(batch["answers"].flatten(0, 1)[:, 1:] == 0, NO_TARGET)
    return all_sides(batch, lambda rows: -token_losses(module(**rows, use_cache=False).logits[:, :-1], targets).sum(1))


def all_sides(batch: Batch, compute: Callable[[Batch], Tensor]) -> Tensor:
    """In one pass, as rows of one batch; a row for each pair, and a column for each side."""
    rows = {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask")}
    return compute(rows).view(batch["input_ids"].shape[:2])


def of_reference(folder: str, precision: str, vocabulary: int, dataset: Dataset, numbers: np.ndarray) -> np.ndarray:
    """A row for each of these pairs."""
    from transformers import AutoModelForCausalLM

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{folder}: log probabilities of the answers of {len(numbers)} pairs, in {precision} on {device}", flush=True)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    if sees_later_tokens(model.to(device).eval()):
        raise ValueError(f"{folder}: attends to the tokens that it has to predict. Name a causal model.")
    if (size := vocabulary_size(model)) < vocabulary:
        raise ValueError(f"{folder}: has {size} tokens, but the tokenizer {vocabulary}. Name the tokenizer that belongs to the reference.")
    order = numbers[np.argsort(dataset.lengths[numbers], kind="stable")]
    found: dict[int, Tensor] = {}
    seconds = 0.5 if sys.stderr.isatty() else 10  # in a log file each update is a line
    with tqdm(desc="reference", total=len(order), unit=" pairs", mininterval=seconds, delay=2, file=sys.stderr) as shown:
        for some in in_batches(order.tolist(), dataset):
            batch = {name: tensor.to(device) for name, tensor in dataset.collate([*some.values()]).items()}
            with torch.no_grad(), torch.autocast(device.type, PRECISIONS[precision], enabled=precision != "fp32"):
                found |= zip(some, log_probabilities(model, batch).float().cpu(), strict=True)
            shown.update(len(some))
    return torch.stack([found[number] for number in numbers.tolist()]).numpy()


def in_batches(order: list[int], dataset: Dataset) -> Iterator[dict[int, Item]]:
    batch: dict[int, Item] = {}
    width = 0
    for number in order:
        item = dataset[number]
        longest = max(len(tokens) for tokens, _ in item.values())
        if batch and (len(batch) + 1) * len(item) * max(width, longest) > MOST_TOKENS:
            yield batch
            batch, width = {}, 0
        batch[number], width = item, max(width, longest)
    if batch:
        yield batch
