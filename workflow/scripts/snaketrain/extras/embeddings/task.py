"""Learns embeddings in which the texts of a pair are close, by a contrastive loss: all other pairs of the batch, of all ranks, are the negatives."""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import cross_entropy, normalize

from snaketrain.data.loading.training_data import Batch
from snaketrain.extras.embeddings.pairs import open_tokenizer
from snaketrain.extras.embeddings.retrieval import GAINS, RANKED, retrieval_metrics
from snaketrain.models.pretrained import describe_model, make_model
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Modules, Task
from snaketrain.tasks.metrics import Spearman

POOLING = ("mean", "cls")


class Embeddings(Task):
    metrics: Mapping[str, str] = {  # written out, so that they are known before any job
        "recall_at_1": "max", "recall_at_10": "max", "mrr": "max", "ndcg_at_10": "max", "spearman": "max", "cosine": "max",
    }  # fmt: skip
    counts = "pairs"
    whole_batches = True

    def __init__(self, temperature: float = 0.05, pooling: str = "mean", symmetric: bool = True):
        """`temperature`: what similarities are divided by. `pooling`: the `mean` of a text's tokens, or the first one, `cls`. `symmetric`: first texts are found from second ones as well."""
        if not temperature > 0:
            raise SystemExit(f"train.task.arguments.temperature: is {temperature}. Give a number above 0, such as 0.05.")
        if pooling not in POOLING:
            raise SystemExit(f"train.task.arguments.pooling: is {pooling!r}. Choose one of {', '.join(POOLING)}.")
        self.temperature, self.pooling, self.symmetric = temperature, pooling, symmetric

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        if "tokenizer" not in data:
            raise SystemExit(
                "data.train.use: `embeddings` learns from snaketrain.extras.embeddings.pairs.Pairs. Name it, or another train.task."
            )
        self.use, self.tokenizer, self.max_length = model["use"], data["tokenizer"], data["max_length"]
        self.measured = {**retrieval_metrics(), "spearman": Spearman(), **self.measured}
        built = make_model(model, folder, {}, {name: data[name] for name in ("vocab_size", "pad_token_id")})
        config = built.config
        if (known := getattr(config, "vocab_size", data["vocab_size"])) < data["vocab_size"]:
            raise SystemExit(
                f"data.train.arguments.tokenizer: has {data['vocab_size']} tokens, and the model {known}. Name the model's own."
            )
        if (most := getattr(config, "max_position_embeddings", self.max_length)) < self.max_length:
            raise SystemExit(f"data.train.arguments.max_length: is {self.max_length}, and the model has {most} positions. Make it smaller.")
        if getattr(built, "pooler", None) is not None:
            built.pooler.requires_grad_(False)  # not used, and DDP would wait for its gradients
        return {"model": built}

    def training_step(self, modules: Modules, batch: Batch) -> Tensor:
        own = self.outputs(modules, batch)
        start, total = place_among_ranks(len(own))
        firsts, seconds = of_all_ranks(own, start, total).unbind(1)
        numbers = of_all_ranks(torch.cat([batch["ids"][:, None], batch["texts"]], 1), start, total)
        excluded = no_negatives(numbers[:, 0], numbers[:, 1:], start, len(own))
        right = torch.arange(start, start + len(own), device=own.device)
        sides = [(own[:, 0], seconds, excluded[0]), (own[:, 1], firsts, excluded[1])][: 1 + self.symmetric]
        losses = [
            cross_entropy((rows @ candidates.T / self.temperature).masked_fill(no_negative, -torch.inf), right, reduction="sum")
            for rows, candidates, no_negative in sides
        ]
        return torch.stack(losses).mean()

    def outputs(self, modules: Modules, batch: Batch) -> Tensor:
        """The embeddings of both texts of each pair, of length 1."""
        mask = batch["attention_mask"].flatten(0, 1)
        found = modules["model"](input_ids=batch["input_ids"].flatten(0, 1), attention_mask=mask)
        if (states := getattr(found, "last_hidden_state", None)) is None:
            raise SystemExit(f"model.use: {self.use} does not return the states of tokens. Name a class such as transformers.AutoModel.")
        hidden = states.float()
        with torch.autocast(hidden.device.type, enabled=False):
            weights = mask[:, :, None].float()
            pooled = hidden[:, 0] if self.pooling == "cls" else (hidden * weights).sum(1) / weights.sum(1)
            return normalize(pooled, dim=1).view(len(batch["texts"]), 2, -1)

    def evaluation_step(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"cosine": cosines(outputs).sum(), "count": torch.tensor(len(outputs))}

    def metric_inputs(self, metric: str, outputs: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        if metric in GAINS:
            return (outputs, batch["texts"]) if metric == RANKED else (batch["ids"],)
        return cosines(outputs), batch["scores"]

    def predict(self, outputs: Tensor, batch: Batch) -> Columns:
        scores = {} if batch["scores"].isnan().all() else {"score": batch["scores"]}  # all pairs of a file have one, or none has
        return {"cosine": cosines(outputs)} | scores

    def describe(self, modules: Modules, folder: Path) -> None:
        describe_model(modules["model"], folder)
        open_tokenizer(self.tokenizer).save_pretrained(folder)


def cosines(embeddings: Tensor) -> Tensor:
    return (embeddings[:, 0] * embeddings[:, 1]).sum(1)


def no_negatives(ids: Tensor, texts: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """For `count` pairs from `start` on, and for the second and the first texts of all pairs: whether they are no negatives. That is where they belong
    to the same text, or are it, and where the same example is there again, such as on a rank that has none of its own."""
    order = ids.argsort(stable=True)
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[order[1:]] = ids[order[1:]] == ids[order[:-1]]
    firsts, seconds = texts.unbind(1)
    first, second = (of_all[start : start + count, None] for of_all in (firsts, seconds))
    alike = repeated | (firsts == first) | (seconds == second)
    found = alike | (seconds == first), alike | (firsts == second)
    for excluded in found:
        excluded[:, start : start + count].fill_diagonal_(False)
    return found


# --- What the ranks exchange: each adds its rows to zeros, at its own place. Ranks may have different numbers of rows, and the sum of the
# gradients of all ranks is the gradient.


def place_among_ranks(rows: int) -> tuple[int, int]:
    """Where the rows of this rank begin among those of all ranks, and how many these are."""
    if not dist.is_initialized():
        return 0, rows
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)  # on the CPU, so that the device's queue is not interrupted
    counts[dist.get_rank()] = rows
    dist.all_reduce(counts)
    start, total = int(counts[: dist.get_rank()].sum()), int(counts.sum())
    if total < start + rows:  # in a plan, whose tensors have no values: all ranks have as many
        return rows * dist.get_rank(), rows * dist.get_world_size()
    return start, total


def of_all_ranks(rows: Tensor, start: int, total: int) -> Tensor:
    if total == len(rows):
        return rows
    whole = torch.cat([rows.new_zeros(start, *rows.shape[1:]), rows, rows.new_zeros(total - start - len(rows), *rows.shape[1:])])
    return _Sum.apply(whole)  # type: ignore[no-untyped-call]  # torch has no types for it


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: FunctionCtx, rows: Tensor) -> Tensor:
        dist.all_reduce(total := rows.contiguous().clone())
        return total

    @staticmethod
    def backward(context: FunctionCtx, above: Tensor) -> Tensor:
        dist.all_reduce(total := above.contiguous().clone())
        return total
