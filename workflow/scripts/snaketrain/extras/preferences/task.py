"""Learns which of two answers is better: a language model by DPO, IPO or KTO, beside a frozen copy of itself, or by ORPO without one; or a reward model."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import logsigmoid

from snaketrain.data.loading.training_data import Batch
from snaketrain.extras.preferences import WITH_REFERENCE
from snaketrain.extras.preferences.answers import all_sides, log_probabilities
from snaketrain.extras.preferences.pairs import SIDES
from snaketrain.models.adapters import config_of, without_adapters
from snaketrain.models.pretrained import describe_model, make_model
from snaketrain.models.token_losses import can_be_probed, refuse_later_tokens
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Columns, Figures, Modules, Objective, Task
from snaketrain.tasks.predicting_tokens import check_vocabulary

LOSSES = ("dpo", "ipo", "kto", "orpo", "reward")
SMOOTHED = ("dpo", "reward")
OF_EACH_SIDE = ("input_ids", "attention_mask", "answers", "reference")
OF_ONE_LOSS = {"nll": "orpo", "log_odds_ratio": "orpo", "kl": "kto"}  # metrics
WHERE = "train.task.arguments"
FOR_KTO = "data: the argument `mismatched` must be true for kto, in all sets, and false for all other losses."


class Rewards(NamedTuple):
    """Of the answers of each pair; their difference is the margin."""

    chosen: Tensor
    rejected: Tensor
    more: dict[str, Tensor]  # metrics that only one loss has


class Preferences(Task):
    metrics: Mapping[str, str] = {
        "loss": "min", "accuracy": "max", "margin": "max", "chosen_reward": "max", "rejected_reward": "min",
        "nll": "min", "log_odds_ratio": "max", "kl": "min",
    }  # fmt: skip

    def __init__(
        self, loss: str = "dpo", beta: float = 0.1, label_smoothing: float = 0.0, desirable_weight: float = 1.0, undesirable_weight: float = 1.0
    ):  # fmt: skip
        """`loss`: `dpo`, `ipo`, `kto`, `orpo` or `reward`. `beta`: how much the model is held to where it started; with `orpo`, the weight of the preference beside the likelihood. `label_smoothing`: the share of pairs whose answers may be in the wrong order. `desirable_weight`, `undesirable_weight`: with `kto`, of the chosen and of the rejected answers."""
        if loss not in LOSSES:
            raise SystemExit(f"{WHERE}.loss: {loss} is not one of {', '.join(LOSSES)}.")
        if beta <= 0:
            raise SystemExit(f"{WHERE}.beta: is {beta:g}. Give a number above 0.")
        if not 0 <= label_smoothing < 0.5 or (label_smoothing and loss not in SMOOTHED):
            raise SystemExit(f"{WHERE}.label_smoothing: is {label_smoothing:g}. Give one below 0.5, and only with {' or '.join(SMOOTHED)}.")
        for name, weight in (("desirable_weight", desirable_weight), ("undesirable_weight", undesirable_weight)):
            if weight <= 0 or (weight != 1 and loss != "kto"):
                raise SystemExit(f"{WHERE}.{name}: is {weight:g}. Give a number above 0, and only with kto.")
        self.whole_batches = loss == "kto"
        self.loss, self.beta, self.label_smoothing, self.weights = loss, beta, label_smoothing, (desirable_weight, undesirable_weight)
        without = [name for name, of in OF_ONE_LOSS.items() if of != loss] + ["loss"] * (loss == "kto")
        self.metrics = {name: mode for name, mode in self.metrics.items() if name not in without}

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        self.tokenizer = data["tokenizer"]
        if data["mismatched"] != (self.loss == "kto"):
            raise SystemExit(FOR_KTO)
        if data["reference"] and self.loss not in WITH_REFERENCE:
            raise SystemExit(f"data: the argument `reference` has no effect on the loss {self.loss}, which has none. Remove it.")
        self.is_precomputed = data["reference"]
        if self.loss == "reward" and data["pad_token_id"] is None:
            raise SystemExit(
                f"data.train.arguments.tokenizer: {self.tokenizer} has no padding token, by which a reward model finds the end of each row. Give it one."
            )
        always: JsonObject = {}
        if self.loss == "reward":
            always = {"num_labels": 1}
            # an argument, which in a trial replaces the field of published weights as well
            model = model | {"arguments": model["arguments"] | {"pad_token_id": data["pad_token_id"]}}
        made = {"model": make_model(model, folder, always, {"vocab_size": data["vocab_size"]})}
        self.use, self.longest = model["use"], getattr(made["model"].config, "max_position_embeddings", None)
        self.check_positions(data["max_length"] or 0)
        if self.loss != "reward":
            check_vocabulary(made["model"], data["vocab_size"])
            if can_be_probed(made["model"]):
                refuse_later_tokens(made["model"], model["use"])
        needs_reference = self.loss in WITH_REFERENCE and not self.is_precomputed
        if needs_reference and model.get("adapters"):
            if heads := getattr(config_of(made["model"]), "modules_to_save", None):
                raise SystemExit(
                    f"model.adapters: {', '.join(heads)} would be trained in full, and the reference is the model without its adapters. "
                    "Remove them from modules_to_save, or name pretrained weights that have them."
                )
        elif needs_reference:
            made["reference"] = make_model(model, folder, {}, {}).requires_grad_(False)
        for module in made.values():  # answers and modules are compared, so that dropout would be noise in every margin
            for part in module.modules():
                if isinstance(part, nn.Dropout):
                    part.p = 0.0
        return made

    def check_positions(self, needed: int) -> None:
        if self.longest is not None and needed > self.longest:
            raise SystemExit(
                f"data: answers may have {needed} tokens with their prompt, but {self.use} has {self.longest} positions. Make the argument `max_length` smaller."
            )

    def objectives(self, modules: Modules) -> list[Objective]:
        return [(self.training_step, ["model"])]

    def training_step(self, modules: Modules, batch: Batch) -> tuple[Tensor, Figures]:
        found = self.rewards(modules, batch)
        if self.loss == "kto":
            losses = kto_losses(found.chosen, found.rejected, point_of_batch(batch["ids"], self.beta * found.more["kl"]), *self.weights)
        else:
            losses = self.losses(found)
        return losses.sum(), {name: value.detach() for name, value in figures(found).items()}

    def count(self, batch: Batch) -> int:
        return len(batch["input_ids"])

    def outputs(self, modules: Modules, batch: Batch) -> Rewards:
        return self.rewards(modules, batch)

    def evaluation_step(self, outputs: Rewards, batch: Batch) -> dict[str, Tensor]:
        return {
            "count": torch.tensor(self.count(batch)), **figures(outputs),
            **{name: losses.sum() for name, losses in self.losses_of_pairs(outputs).items()},
        }  # fmt: skip

    def predict(self, outputs: Rewards, batch: Batch) -> Columns:
        margins = outputs.chosen - outputs.rejected
        return {"margin": margins, "accuracy": (margins > 0).long(), **self.losses_of_pairs(outputs)}  # by which runs are tested

    def losses_of_pairs(self, found: Rewards) -> dict[str, Tensor]:
        """None for KTO, whose loss in an evaluation would depend on how the set is divided into batches."""
        return {} if self.loss == "kto" else {"loss": self.losses(found)}

    def describe(self, modules: Modules, folder: Path) -> None:
        from transformers import AutoTokenizer

        describe_model(modules["model"], folder)
        AutoTokenizer.from_pretrained(self.tokenizer, local_files_only=True).save_pretrained(folder)

    # --- rewards

    def rewards(self, modules: Modules, batch: Batch) -> Rewards:
        if (batch["input_ids"].shape[1] > len(SIDES)) != (self.loss == "kto"):
            raise SystemExit(FOR_KTO)
        self.check_positions(batch["input_ids"].shape[2])
        more = dict[str, Tensor]()
        if self.loss == "reward":
            rewards = all_sides(batch, lambda rows: modules["model"](**rows).logits.float().squeeze(-1))
        elif self.loss == "orpo":
            likely = log_probabilities(modules["model"], batch) / lengths(batch)
            chosen_odds, rejected_odds = log_odds(likely).unbind(1)
            rewards, more = self.beta * likely, {"nll": -likely[:, 0], "log_odds_ratio": chosen_odds - rejected_odds}
        else:
            if self.loss == "kto":
                with torch.no_grad():
                    more["kl"] = self.log_ratios(modules, columns(batch, slice(len(SIDES), None))).mean(1)
            rewards = self.beta * self.log_ratios(modules, columns(batch, slice(len(SIDES))))
        chosen, rejected = rewards.unbind(1)
        return Rewards(chosen, rejected, more)

    def losses(self, found: Rewards) -> Tensor:
        """Of each pair, of a loss that needs no other pairs."""
        margins = found.chosen - found.rejected
        if self.loss == "orpo":
            return found.more["nll"] - self.beta * logsigmoid(found.more["log_odds_ratio"])
        if self.loss == "ipo":
            return (margins / self.beta - 1 / (2 * self.beta)).square()
        return -(1 - self.label_smoothing) * logsigmoid(margins) - self.label_smoothing * logsigmoid(-margins)

    def log_ratios(self, modules: Modules, batch: Batch) -> Tensor:
        """How much more probable the model finds the answers than the reference does; with IPO on average over their tokens."""
        of_reference = self.of_reference(modules, batch)
        ratios = log_probabilities(modules["model"], batch) - of_reference
        return ratios / lengths(batch) if self.loss == "ipo" else ratios

    def of_reference(self, modules: Modules, batch: Batch) -> Tensor:
        """Its log probabilities: computed with the data, or by a copy of the model, or by the model without its adapters."""
        if ("reference" in batch) != self.is_precomputed:
            raise SystemExit("data: some sets have the argument `reference` and others do not. Give it to all of them.")
        if self.is_precomputed:
            return batch["reference"]
        adapted = "reference" not in modules
        with torch.no_grad(), without_adapters(modules["model"]) if adapted else nullcontext():
            return log_probabilities(modules["model" if adapted else "reference"], batch)


# --- KTO: an answer is good or bad by how its reward compares with a point that the whole batch, of all ranks, decides


def kto_losses(chosen: Tensor, rejected: Tensor, point: float, desirable: float, undesirable: float) -> Tensor:
    """For each pair the mean over its two answers, from their rewards."""
    return (desirable * (1 - torch.sigmoid(chosen - point)) + undesirable * (1 - torch.sigmoid(point - rejected))) / 2


def point_of_batch(ids: Tensor, rewards: Tensor) -> float:
    """The mean reward of answers that do not belong to their prompt, which estimates how far the model is from the reference; at least 0.

    An example that several ranks have, such as where one would have none, counts once; the sum is exact, so that their number does not matter.
    """
    if isinstance(rewards, FakeTensor):  # of a plan, which has no values
        return 0.0
    found = dict(zip(ids.tolist(), rewards.tolist(), strict=True))
    if dist.is_initialized():
        of_ranks: list[dict[int, float]] = [{}] * dist.get_world_size()
        dist.all_gather_object(of_ranks, found)
        found = {number: reward for each in of_ranks for number, reward in each.items()}
    return max(0.0, math.fsum(found.values()) / len(found))


# --- of any loss


def log_odds(likely: Tensor) -> Tensor:
    """Of log probabilities: log(p / (1 - p)). One that rounds to 0 has no gradient, rather than an infinite one."""
    below = likely.clamp(max=-torch.finfo(likely.dtype).eps)
    return below - torch.log(-torch.expm1(below))


def columns(batch: Batch, sides: slice) -> Batch:
    return {name: value[:, sides] for name, value in batch.items() if name in OF_EACH_SIDE}


def lengths(batch: Batch) -> Tensor:
    """Of the answers, in tokens that are predicted."""
    return batch["answers"][:, :, 1:].sum(2)


def figures(found: Rewards) -> dict[str, Tensor]:
    margins = found.chosen - found.rejected
    return {
        "accuracy": (margins > 0).sum(), "margin": margins.sum(), "chosen_reward": found.chosen.sum(), "rejected_reward": found.rejected.sum()
    } | {name: values.sum() for name, values in found.more.items()}  # fmt: skip
