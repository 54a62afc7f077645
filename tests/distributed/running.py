"""Real trainings, by the command that the workflow runs, on tiny data and with tiny models."""

import os
import subprocess
import sys
from pathlib import Path

from snaketrain.configuration import strings
from snaketrain.journal import read_events
from snaketrain.settings import Model, Train

REPOSITORY = Path(__file__).parents[2]
MODEL = Model(
    use="transformers.BertForSequenceClassification",
    arguments={
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
)


def command(data: Path, folder: Path, processes: int = 1, model: Model = MODEL, **train) -> list[str]:
    settings = Train(**({"batch_size": 16, "epochs": 2, "learning_rate": 1e-3, "evaluations_per_epoch": 2} | train))
    start = [sys.executable]
    if processes > 1:
        start = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(processes)]
    script = str(REPOSITORY / "workflow/scripts/train_model.py")
    paths = ["--run-name", "test", "--data", str(data), "--output", str(folder / "manifest.json"), "--log-every", "1", "--device", "cpu"]
    return [*start, script, *paths, "--settings", *strings("train", settings), *strings("model", model)]


def train(*args, **kwargs) -> dict[int, float]:
    """Train to the end; the losses by step."""
    done = subprocess.run(command(*args, **kwargs), capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(args[1])


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["metrics"]["loss"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == "train"}
