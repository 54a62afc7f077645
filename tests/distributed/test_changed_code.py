"""Code that is changed in the middle of a training."""

import json
import signal
from pathlib import Path

import pytest
from distributed import forking
from distributed.running import MODEL, arguments, interrupted, log_of

from snaketrain.config.schema import Train
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import digest
from snaketrain.runtime.stages import JobSettings


def attempts(training: Path) -> list[int]:
    return [line["resume_step"] for line in read_events(training / "journal.jsonl")[0] if line["event"] == "attempt"]


@pytest.mark.parametrize("asked", [False, True])
def test_code_changed_in_the_middle(data, tmp_path, asked):
    """It begins anew, with the old training set aside; or continues where that is asked for, and is marked as a mixture."""
    training, longer = tmp_path / "results/runs/a/training", {"epochs": 6, "save_every": 5}
    training.parent.mkdir(parents=True)

    def words(code: int) -> list[str]:
        settings = {"train": Train(batch_size=16, learning_rate=1e-3, **longer).as_json, "model": MODEL.as_json}
        file = JobSettings("train_model", settings, {"snaketrain.training.step": str(code)}).store(folder=training.parent / "settings")
        return [*arguments(data, training, **longer), "--settings", str(file), *(["--resume-changed"] if asked and code == 2 else [])]

    saved = training / "checkpoints/step-00000005"
    assert interrupted(forking.start(words(1), 1, log_of(training)), signal.SIGKILL, saved.exists)
    (last,) = {max(int(path.name[5:]) for path in training.glob("checkpoints/step-*"))}
    assert forking.run(words(2), 1, log_of(training)) == [0], log_of(training).read_text()
    log, about, made = log_of(training).read_text(), *(json.loads((training / name).read_text()) for name in ("run.json", "manifest.json"))
    aside = list((training.parent / "superseded").glob("*"))
    if not asked:
        assert attempts(training) == [0] and len(aside) == 1 and f"moved to {aside[0]}, and begins anew" in log
        assert "--config 'compute={resume_changed: true}'" in log and about["mixed"] == [] and "mixed" not in made["facts"]
        return
    mixed = [{"step": last, "changed": ["code.snaketrain.training.step"]}]
    assert attempts(training) == [0, last] and not aside and "continues from step" in log
    assert about["mixed"] == made["facts"]["mixed"] == mixed
    attempt = [line for line in read_events(training / "journal.jsonl")[0] if line["event"] == "attempt"][-1]
    assert attempt["mixed"] == mixed
    states = {path.parent.name: json.loads(path.read_text()) for path in training.glob("checkpoints/*/state.json")}
    assert all("callbacks" not in state for state in states.values() if state["step"] > last)
    assert forking.run(words(2)[:-1], 1, log_of(training)) == [0], "once asked, it stays what it is"
    assert json.loads((training / "run.json").read_text())["mixed"] == mixed
    assert made["identity"] != digest("train_model", made["settings"], {"snaketrain.training.step": "2"}, made["inputs"])
