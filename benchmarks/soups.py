"""How often a greedy soup is better on the test set than the best of its runs, in sweeps on three data sets: SST-2, STS-B and scikit-learn's digits.

The runs of a sweep begin with the same weights and differ in learning rate, batch size, epochs and order. So that all takes minutes, the models are
small: convolutions with batch norm for digits, and for texts two layers on the pretrained MiniLM, which itself stays as it is. They are trained by a
plain loop, since only their weights matter; the soup is chosen and averaged as by the extra. Goal: on the development set no soup is worse.
"""

import copy
import csv
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import command_line, judge, pretrained_file, write_figures
from safetensors.torch import load_model, save_file
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from snaketrain.extras.soups.make_soup import average, greedy

SPLITS = ("train", "dev", "test")
Split = tuple[Tensor, Tensor]  # inputs and labels


@dataclass(frozen=True)
class Problem:
    splits: dict[str, Split]
    make: Callable[[], nn.Module]

    @property
    def is_regression(self) -> bool:
        return self.splits["train"][1].is_floating_point()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.mse_loss(outputs[:, 0], labels) if self.is_regression else functional.cross_entropy(outputs, labels)

    @torch.no_grad()
    def metric(self, module: nn.Module, split: str) -> float:
        """Spearman's correlation, or the accuracy."""
        inputs, labels = self.splits[split]
        outputs = module.eval()(inputs)
        return float(spearmanr(outputs[:, 0], labels).statistic if self.is_regression else (outputs.argmax(1) == labels).double().mean())

    def train(self, module: nn.Module, generator: np.random.Generator) -> nn.Module:
        """With settings that are drawn, and a rate that falls to 0."""
        rate, size, epochs = (
            math.exp(generator.uniform(math.log(3e-4), math.log(1e-2))),
            int(generator.choice([16, 32])),
            int(generator.choice([4, 8])),
        )
        inputs, labels = self.splits["train"]
        optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.01)
        steps = epochs * math.ceil(len(labels) / size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        torch.manual_seed(int(generator.integers(2**31)))  # of order and dropout
        module.train()
        for _ in range(epochs):
            for some in torch.randperm(len(labels)).split(size):
                optimizer.zero_grad()
                self.loss(module(inputs[some]), labels[some]).backward()
                optimizer.step()
                schedule.step()
        return module


# --- the data and the models


def digits() -> Problem:
    found = load_digits()
    images, labels = torch.tensor(found.images / 16, dtype=torch.float32)[:, None], torch.tensor(found.target)
    parts = torch.as_tensor(np.random.default_rng(0).permutation(len(labels))).split([600, 400, 797])
    return Problem({name: (images[rows], labels[rows]) for name, rows in zip(SPLITS, parts, strict=True)}, convolutions)


def sst2(folder: Path, examples: int) -> Problem:
    rows = {
        split: [line.split(" ", 1) for line in (folder / f"stsa.binary.{split}").read_text(encoding="latin-1").splitlines()]
        for split in SPLITS
    }
    rows["train"] = some(rows["train"], examples)
    return Problem(
        {split: (vectors([row[1] for row in each]), torch.tensor([int(row[0]) for row in each])) for split, each in rows.items()},
        lambda: head(384, 2),
    )


def stsb(folder: Path, examples: int) -> Problem:
    splits = {}
    for split in SPLITS:
        with open(folder / f"{split}.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        rows = some(rows, examples) if split == "train" else rows
        one, other = (vectors([row[column] for row in rows]) for column in (0, 1))
        splits[split] = torch.cat([(one - other).abs(), one * other], 1), torch.tensor([float(row[2]) for row in rows]) / 5
    return Problem(splits, lambda: head(768, 1))


def some(rows: list[Any], number: int) -> list[Any]:
    return [rows[place] for place in np.random.default_rng(0).permutation(len(rows))[:number]]


@torch.no_grad()
def vectors(texts: list[str]) -> Tensor:
    """Of each text the mean of what the second layer of MiniLM returns, of similar size."""
    folder = pretrained_file("tokenizer.json").parent
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, num_hidden_layers=2).eval()
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    found = torch.empty(len(texts), model.config.hidden_size)
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        given = tokenizer([texts[row] for row in rows], padding=True, truncation=True, max_length=64, return_tensors="pt")
        mask = given["attention_mask"][..., None]
        found[rows] = (model(**given).last_hidden_state * mask).sum(1) / mask.sum(1)
    return found


def head(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, outputs))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip


# --- the soups


def sweep(problem: Problem, runs: int, seed: int) -> dict[str, float]:
    """The figures of the soup beside those of the best run."""
    torch.manual_seed(seed)
    start, generator = problem.make(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folders = {f"run {number}": Path(temporary, str(number)) for number in range(runs)}
        dev = {}
        for name, folder in folders.items():
            module = problem.train(copy.deepcopy(start), generator)
            dev[name] = problem.metric(module, "dev")
            folder.mkdir()
            save_file({key: tensor.contiguous() for key, tensor in module.state_dict().items()}, folder / "model.safetensors")

        def averaged(names: list[str]) -> nn.Module:
            average({name: folders[name] for name in names}, Path(temporary, "average"))
            load_model(start, Path(temporary, "average/model.safetensors"))
            return start

        alone = {name: dev[name] for name in sorted(dev, key=lambda name: -dev[name])}
        tried = list(greedy(alone, "max", lambda names: problem.metric(averaged(names), "dev")))
        kept = [each["run"] for each in tried if each["kept"]]
        soup, best = averaged(kept), next(iter(alone))
        found = {"runs in the soup": len(kept), "dev, soup": problem.metric(soup, "dev"), "dev, best run": alone[best]}
        return found | {"test, soup": problem.metric(soup, "test"), "test, best run": problem.metric(averaged([best]), "test")}


def summary(sweeps: list[dict[str, float]]) -> dict[str, Any]:
    gaps = [each["test, soup"] - each["test, best run"] for each in sweeps]
    said = Counter("better" if gap > 0 else "worse" if gap < 0 else "equal" for gap in gaps)
    return {
        "sweeps": len(sweeps),
        "soups of several runs": sum(each["runs in the soup"] > 1 for each in sweeps),
        "worse on dev": sum(each["dev, soup"] < each["dev, best run"] for each in sweeps),
        "on test": {word: said[word] for word in ("better", "equal", "worse")},
        "mean gap on dev": statistics.fmean(each["dev, soup"] - each["dev, best run"] for each in sweeps),
        "mean gap on test": statistics.fmean(gaps),
        "its standard error": statistics.stdev(gaps) / math.sqrt(len(gaps)),
    }


def main() -> None:
    parser = command_line("soups", __doc__)
    parser.add_argument(
        "sst2", type=Path, metavar="SST2_FOLDER", help="with stsa.binary.train, .dev and .test: a label and a sentence a line"
    )
    parser.add_argument(
        "stsb", type=Path, metavar="STSB_FOLDER", help="with train.csv, dev.csv and test.csv: two sentences and a score a line"
    )
    parser.add_argument("--sweeps", type=int, default=10, help="number of sweeps of each data set (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each sweep (default: %(default)s)")
    parser.add_argument("--examples", type=int, default=1000, help="number of texts that a run is trained on (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    problems = {"digits": digits(), "SST-2": sst2(args.sst2, args.examples), "STS-B": stsb(args.stsb, args.examples)}
    found: dict[str, list[dict[str, float]]] = {}
    for name, problem in problems.items():
        found[name] = []
        for seed in range(args.sweeps):
            found[name].append(sweep(problem, args.runs, seed))
            print(name, seed, found[name][-1], flush=True)
    every = [each for sweeps in found.values() for each in sweeps]
    figures = {name: summary(sweeps) for name, sweeps in found.items()} | {"all": summary(every)}
    write_figures(args.output, {"runs": args.runs, "examples": args.examples, "data": figures})
    worse = figures["all"]["worse on dev"]
    judge({f"{worse} of {len(every)} soups are worse than the best run on dev; the goal is 0": worse == 0})


if __name__ == "__main__":
    main()
