"""A task with slow steps, so that there is time to disturb it: `.pace` has the seconds per step, and may change: hidden, it is no input of the task."""

import os
import time
from pathlib import Path

import torch
from torch import nn

from snaketrain.tasks.base import Task


class Words(nn.Module):
    """The mean of its words decides. It imports nothing large, since all processes on two cores would have to."""

    def __init__(self, words: int, size: int = 32, drop: float = 0.1):
        super().__init__()
        self.words, self.drop, self.classes = nn.Embedding(words, size), nn.Dropout(drop), nn.Linear(size, 2)

    def forward(self, ids, mask):
        mask = mask.unsqueeze(-1)
        return self.classes(self.drop((self.words(ids) * mask).sum(1) / mask.sum(1)))


class Patient(Task):
    metrics = {"loss": "min", "accuracy": "max"}  # noqa: RUF012

    def build(self, model, folder, data):
        return {"model": Words(data["vocab_size"], **model["arguments"])}

    def on_worker_start(self):
        print(f"GPUs of this process: {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}")

    def training_step(self, modules, batch):
        time.sleep(float(Path(".pace").read_text()))
        return self.losses(modules, batch)[0].sum()

    def evaluation_step(self, modules, batch):
        losses, right = self.losses(modules, batch)
        return {"count": torch.tensor(len(right)), "loss": losses.sum(), "accuracy": right.sum()}

    def losses(self, modules, batch):
        answers = modules["model"](batch["input_ids"], batch["attention_mask"])
        return nn.functional.cross_entropy(answers, batch["labels"], reduction="none"), answers.argmax(1) == batch["labels"]
