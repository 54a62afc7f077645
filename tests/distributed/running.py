"""Real trainings, by the command that the workflow runs, on tiny data and with tiny models."""

import os
import subprocess
import sys
from pathlib import Path

from distributed import forking

from snaketrain.config.runs import strings
from snaketrain.config.schema import Model, Train
from snaketrain.runtime.journal import read_events

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


def arguments(data: Path, folder: Path, model: Model = MODEL, **train) -> list[str]:
    """Of the training script."""
    settings = Train(**({"batch_size": 16, "epochs": 2, "learning_rate": 1e-3, "evaluations_per_epoch": 2} | train))
    paths = ["--run-name", "test", "--data", str(data), "--output", str(folder / "manifest.json"), "--log-every", "1", "--device", "cpu"]
    return [*paths, "--settings", *strings("train", settings), *strings("model", model)]


def command(data: Path, folder: Path, processes: int = 1, **settings) -> list[str]:
    start = [sys.executable]
    if processes > 1:
        start = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(processes)]
    return [*start, str(forking.SCRIPT), *arguments(data, folder, **settings)]


def launch(data: Path, folder: Path, processes: int = 1, **settings) -> dict[int, float]:
    """Train to the end, with torchrun where the workflow would; the losses by step."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(data, folder, processes, **settings), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(folder)


def train(data: Path, folder: Path, processes: int = 1, **settings) -> dict[int, float]:
    """The same in processes that are forked from this one, where what is launched is not what is tested: it saves most of the time."""
    forking.preload()
    log = folder.parent / f"{folder.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    codes = forking.run(arguments(data, folder, **settings), processes, log)
    assert codes == [0] * processes, log.read_text()
    return losses(folder)


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["metrics"]["loss"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == "train"}
