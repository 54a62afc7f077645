"""One training with another library, in a process of its own, which peers.py starts.

- trainer_defaults: transformers' Trainer with its defaults: random batches, padded to their longest text (it is given the tokenizer).
- trainer_tutorial: the same, with every text padded to `data.max_length` (128), as transformers' tutorial on fine-tuning does
  with `padding="max_length"`.
- trainer_best: batches of similar length, and a checkpoint at each evaluation, like ours. Its fused AdamW is now a default.
- lightning: random batches, padded to their longest text, and a checkpoint at each evaluation; no logger, no bar.

Evaluation batches are twice as large as training batches, like ours.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import harness  # noqa: F401 - finds the package
import numpy as np
import pyarrow
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed

from snaketrain.runtime.manifests import read_manifest


class Timings:
    """From the start of the training; and the best accuracy, which tells whether all have learnt."""

    def __init__(self, launched: float):
        self.launched, self.best = launched, 0.0

    def begin(self) -> None:
        self.startup, self.began = time.time() - self.launched, time.perf_counter()

    def evaluated(self, accuracy: float) -> None:
        self.best = max(self.best, float(accuracy))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"startup": self.startup, "seconds": time.perf_counter() - self.began, "best": self.best}))


def tokens(manifest: str, split: str) -> Dataset:
    """The same tokens that our training uses."""
    found = Dataset(pyarrow.ipc.open_file(pyarrow.memory_map(str(read_manifest(manifest).file(f"{split}.arrow")))).read_all())
    return found.select_columns(["input_ids", "label"]).rename_column("label", "labels")


def trainer(task: dict[str, Any], timings: Timings, dataset_of: Any, collate: Any, **own: Any) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class RecordEvaluations(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **_):
            timings.evaluated(metrics["eval_accuracy"])

    train = task["train"]
    same = {"learning_rate": train["learning_rate"], "max_steps": train["steps"], "warmup_steps": train["warmup"], "seed": train["seed"]}
    same |= {"weight_decay": train["weight_decay"], "max_grad_norm": train["clip_norm"]}
    same |= {"use_cpu": task["device"] == "cpu", "bf16": task["precision"] == "bf16"}
    same |= {"per_device_train_batch_size": train["batch_size"], "per_device_eval_batch_size": 2 * train["batch_size"]}
    same |= {"eval_strategy": "steps", "eval_steps": train["evaluate_every"], "output_dir": task["folder"]}
    made = Trainer(
        AutoModelForSequenceClassification.from_pretrained(files(task["model"]), num_labels=2),
        TrainingArguments(**same, **own),
        data_collator=collate,
        train_dataset=dataset_of("train"),
        eval_dataset=dataset_of("dev"),
        compute_metrics=lambda found: {"accuracy": np.mean(found.predictions.argmax(-1) == found.label_ids)},
        callbacks=[RecordEvaluations()],
    )
    timings.begin()
    made.train()


def trainer_defaults(task: dict[str, Any], timings: Timings) -> None:
    trainer(task, timings, lambda split: tokens(task["data"], split), padding_collator(task))


def trainer_tutorial(task: dict[str, Any], timings: Timings) -> None:
    from transformers import default_data_collator

    tokenizer, length = tokenizer_of(task), read_manifest(task["data"]).facts["max_length"]

    def whole(split: str) -> Dataset:
        padded = tokens(task["data"], split).map(lambda rows: tokenizer.pad(rows, padding="max_length", max_length=length), batched=True)
        return padded.with_format("torch")

    trainer(task, timings, whole, default_data_collator)


def trainer_best(task: dict[str, Any], timings: Timings) -> None:
    saves = {"save_strategy": "steps", "save_steps": task["train"]["evaluate_every"], "save_total_limit": 2}
    dataset = lambda split: tokens(task["data"], split)  # noqa: E731
    trainer(task, timings, dataset, padding_collator(task), train_sampling_strategy="group_by_length", disable_tqdm=True, **saves)


def lightning(task: dict[str, Any], timings: Timings) -> None:
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader
    from transformers import get_linear_schedule_with_warmup

    train = task["train"]

    class Classifier(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = AutoModelForSequenceClassification.from_pretrained(files(task["model"]), num_labels=2)

        def training_step(self, batch, number):
            return self.model(**batch).loss

        def on_validation_epoch_start(self):
            self.right = self.count = 0

        def validation_step(self, batch, number):
            self.right += (self.model(**batch).logits.argmax(-1) == batch["labels"]).sum()
            self.count += len(batch["labels"])

        def on_validation_epoch_end(self):
            timings.evaluated(self.right / self.count)

        def configure_optimizers(self):
            parameters = list(self.model.parameters())
            groups = [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": train["weight_decay"]},
                {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
            ]
            # Lightning refuses to clip gradients of a fused optimizer in half precision
            optimizer = torch.optim.AdamW(groups, lr=train["learning_rate"], fused=task["precision"] == "fp32")
            schedule = get_linear_schedule_with_warmup(optimizer, train["warmup"], train["steps"])
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    seed_everything(train["seed"], verbose=False)
    batches = {"batch_size": train["batch_size"], "collate_fn": padding_collator(task)}
    loaders = [
        DataLoader(tokens(task["data"], "train"), shuffle=True, **batches),
        DataLoader(tokens(task["data"], "dev"), **batches | {"batch_size": 2 * train["batch_size"]}),
    ]
    made = Trainer(
        max_steps=train["steps"], val_check_interval=train["evaluate_every"], check_val_every_n_epoch=None, num_sanity_val_steps=0,
        gradient_clip_val=train["clip_norm"], accelerator=task["device"], logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(task["folder"], every_n_train_steps=train["evaluate_every"])], default_root_dir=task["folder"],
        devices=1, precision="bf16-mixed" if task["precision"] == "bf16" else "32-true",
    )  # fmt: skip
    model = Classifier().train()
    timings.begin()
    made.fit(model, *loaders)


def files(manifest: str) -> Path:
    return next((read_manifest(manifest).folder / "files").rglob("config.json")).parent


def tokenizer_of(task: dict[str, Any]) -> Any:
    return AutoTokenizer.from_pretrained(files(task["model"]))


def padding_collator(task: dict[str, Any]) -> DataCollatorWithPadding:
    return DataCollatorWithPadding(tokenizer_of(task))


def main() -> None:
    task = json.loads(sys.argv[1])
    timings = Timings(task["launched"])
    set_seed(task["train"]["seed"])
    globals()[task["contender"]](task, timings)
    timings.write(Path(task["folder"]) / "found.json")


if __name__ == "__main__":
    main()
