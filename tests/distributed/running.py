"""Real trainings, started by the workflow's command, on tiny data with tiny models."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import limits
from distributed import forking
from pipeline.warm_python import warm_python

from snaketrain.config.schema import Model, Train
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.stages import settings_words

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


def arguments(data: Path, folder: Path, model: Model = MODEL, pretrained: Path | None = None, **train) -> list[str]:
    """Of the training script; `pretrained`: the manifest of the fetched model."""
    settings = Train(**({"batch_size": 16, "epochs": 2, "learning_rate": 1e-3, "evaluations_per_epoch": 2} | train))
    paths = ["--run-name", "test", "--data", str(data), "--output", str(folder / "manifest.json"), "--log-every", "1", "--device", "cpu"]
    paths += ["--model", str(pretrained)] if pretrained else []
    return [*paths, *settings_words(folder, "train_model", {"train": settings.as_json, "model": model.as_json})]


def command(data: Path, folder: Path, processes: int = 1, **settings) -> list[str]:
    start = [sys.executable]
    if processes > 1:
        start = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(processes)]
    return [*start, str(forking.SCRIPT), *arguments(data, folder, **settings)]


def launch(data: Path, folder: Path, processes: int = 1, **settings) -> dict[int, float]:
    """Train to the end, with torchrun if the workflow would use it; returns the losses by step."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(data, folder, processes, **settings), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(folder)


def train(data: Path, folder: Path, processes: int = 1, **settings) -> dict[int, float]:
    """The same in processes forked from this one, for tests that are not about the launcher: most of the time is spent on imports."""
    codes = forking.wait(start(data, folder, processes, **settings))
    assert codes == [0] * processes, log_of(folder).read_text()
    return losses(folder)


def start(data: Path, folder: Path, processes: int = 1, **settings) -> list[int]:
    """The pids of a training that is to be interrupted."""
    forking.preload()
    folder.parent.mkdir(parents=True, exist_ok=True)
    return forking.start(arguments(data, folder, **settings), processes, log_of(folder))


def log_of(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.log"


def interrupted(pids: list[int], number: signal.Signals, when: Callable[[], object]) -> list[int]:
    """The exit codes of a training whose first process gets a signal as soon as `when` holds."""
    limits.until(lambda: when() or forking.ended(pids), 120)
    assert not forking.ended(pids), "it ended before it could be interrupted"
    os.kill(pids[0], number)
    return forking.wait(pids)


def run_stage(stage: str, words: list[object], log: Path, processes: int = 1) -> str:
    """Run another stage and return its output. It is not forked from this process, in which libraries may have started threads."""
    scripts = forking.SCRIPT.parent
    (script,) = [*scripts.glob(f"{stage}.py"), *scripts.glob(f"snaketrain/extras/*/{stage}.py")]
    command = [warm_python(), str(script), *map(str, words)]
    with open(log, "w") as file:
        ranks = [
            subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | variables)
            for variables in forking.rank_variables(processes)
        ]
    codes = [rank.wait(limits.seconds(300)) for rank in ranks]
    assert codes == [0] * processes, log.read_text()
    return log.read_text()


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["metrics"]["loss"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == "train"}
