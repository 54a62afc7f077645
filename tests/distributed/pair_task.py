"""A task with two modules that are trained against each other: a discriminator of first tokens and a generator of second ones."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from snaketrain.tasks.base import Task
from snaketrain.tasks.text_classification import TextClassification


def layers(inputs: int, outputs: int) -> nn.Module:
    inner = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])  # two blocks
    return nn.Sequential(nn.Linear(inputs, 16), Chain(inner), nn.Linear(16, outputs))


class Chain(nn.Module):
    def __init__(self, blocks: nn.ModuleList):
        super().__init__()
        self.blocks = blocks
        self.register_buffer("shift", torch.randn(16) / 10, persistent=False)  # in no file, but the same in all processes

    def forward(self, rows):
        rows = rows + self.shift
        for block in self.blocks:
            rows = torch.tanh(block(rows))
        return rows


class Pair(Task):
    def build(self, model, folder, data):
        self.tokens = data["vocab_size"]
        return {"maker": layers(self.tokens, self.tokens), "judge": layers(self.tokens, 1)}

    def objectives(self, modules):
        return [(self.judge, ["judge"]), (self.maker, ["maker"])]

    def judge(self, modules, batch):
        made = modules["maker"](self.rows(batch, 1)).detach()
        true, false = modules["judge"](self.rows(batch, 0)), modules["judge"](made)
        return {"true": functional.softplus(-true).sum(), "false": functional.softplus(false).sum()}

    def maker(self, modules, batch):
        return {"maker": functional.softplus(-modules["judge"](modules["maker"](self.rows(batch, 1)))).sum()}

    def evaluation_step(self, modules, batch):
        return {"count": torch.tensor(len(batch["labels"])), "loss": self.maker(modules, batch)["maker"]}

    def rows(self, batch, place):
        return functional.one_hot(batch["input_ids"][:, place], self.tokens).float()


class OwnPair(Pair):
    """Wraps its modules by itself."""

    wraps = False

    def build(self, model, folder, data):
        several = dist.is_initialized() and dist.get_world_size() > 1
        return {name: DistributedDataParallel(module) if several else module for name, module in super().build(model, folder, data).items()}


class JointPair(Pair):
    """Both learn from one loss."""

    def objectives(self, modules):
        return [(self.both, ["maker", "judge"])]

    def both(self, modules, batch):
        return self.maker(modules, batch)["maker"] / 64  # scaled up it is still in the range of fp16


class Normed(Pair):
    """The label by the first token, with a module with a BatchNorm, whose statistics are updated by each process."""

    def build(self, model, folder, data):
        self.tokens = data["vocab_size"]
        return {"model": nn.Sequential(nn.Linear(self.tokens, 16), nn.BatchNorm1d(16, momentum=0.5), nn.Linear(16, 2))}

    def objectives(self, modules):
        return [(self.training_step, ["model"])]

    def training_step(self, modules, batch):
        return functional.cross_entropy(modules["model"](self.rows(batch, 0)), batch["labels"], reduction="sum")

    def evaluation_step(self, modules, batch):
        return {"count": torch.tensor(len(batch["labels"])), "loss": self.training_step(modules, batch)}


class TwoLosses(TextClassification):
    """Of one module, which are learnt in turn."""

    def objectives(self, modules):
        return [(self.first, ["model"]), (self.second, ["model"])]

    def first(self, modules, batch):
        return {"first": self.training_step(modules, batch)}

    def second(self, modules, batch):
        return {"second": 0.5 * self.training_step(modules, batch)}
