"""How long a resumed training takes to its first step, besides imports and building the model; after few steps and after many.

A small BERT is trained for ten steps. In a copy of its folder the checkpoint is changed to one after `--far` steps, and the journal
extended accordingly. Both resume, in turn with a process that only imports what train_model.py imports and
builds the same model. Goal: less than a second more, at any step.
"""

import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import command_line, write_figures

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "workflow/scripts"
sys.path[:0] = [str(REPOSITORY / "tests"), str(SCRIPTS)]

from pipeline.workspace import configuration, prepared  # noqa: E402

from snaketrain.config.schema import Model, Train  # noqa: E402
from snaketrain.runtime.journal import read_events  # noqa: E402
from snaketrain.runtime.manifests import file_digest, read_manifest, write_json  # noqa: E402
from snaketrain.runtime.stages import settings_words  # noqa: E402
from snaketrain.training.plan import folder_name  # noqa: E402

FEW, LOG_EVERY, GOAL_SECONDS = 10, 10, 1.0
MODEL = Model(**configuration()["model"])
BARE = """
import time
from snaketrain.runtime.provenance import seconds_alive
{imports}
from torch.utils.tensorboard import SummaryWriter
import torch._dynamo  # the first step of an optimizer imports it
task = make_task(Train())
build(task, Train(), Model(**{model}), None, {facts})
print(seconds_alive())
"""


def train(data: Path, folder: Path, steps: int) -> None:
    settings = {"train": Train(batch_size=16, steps=steps, schedule={"use": "constant"}, warmup=0, evaluate_every=10**9).as_json}
    command = [sys.executable, str(SCRIPTS / "train_model.py"), "--run-name", "resumed", "--data", str(data), "--device", "cpu"]
    command += ["--output", str(folder / "manifest.json"), "--log-every", "1"]
    command += settings_words(folder, "train_model", settings | {"model": MODEL.as_json})
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])


def went_far(folder: Path, steps: int) -> None:
    """Make a training of few steps one of many."""
    checkpoint = folder / "checkpoints" / folder_name(steps)
    (folder / "checkpoints" / folder_name(FEW)).rename(checkpoint)
    write_json(checkpoint / "state.json", json.loads((checkpoint / "state.json").read_text()) | {"step": steps})
    written = json.loads((checkpoint / "checkpoint.json").read_text())
    written["state.json"] = {"bytes": (checkpoint / "state.json").stat().st_size, "sha256": file_digest(checkpoint / "state.json")}
    write_json(checkpoint / "checkpoint.json", written)
    line = next(event for event in read_events(folder / "journal.jsonl")[0] if event["event"] == "train")
    for journal in ("journal.jsonl", "logs/rank-0.jsonl"):
        with open(folder / journal, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line | {"step": step}) + "\n" for step in range(FEW + LOG_EVERY, steps + 1, LOG_EVERY))


def resumed(data: Path, pristine: Path, step: int) -> float:
    """Seconds from the start of the process to the end of its first step."""
    folder = pristine.with_name("resumed")
    shutil.copytree(pristine, folder)
    train(data, folder, step + 1)
    events = read_events(folder / "journal.jsonl")[0]
    began = [event for event in events if event["event"] == "attempt"][-1]
    if began["resume_step"] != step:
        raise SystemExit(f"it resumed at step {began['resume_step']}, not {step}")
    first = next(event for event in reversed(events) if event["event"] == "train" and event["step"] == step + 1)
    shutil.rmtree(folder)
    return first["time"] - began["began"]


def bare(data: Path) -> float:
    """Seconds from the start of a process to its model."""
    tree = ast.parse((SCRIPTS / "train_model.py").read_text())
    imports = "\n".join(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    code = BARE.format(imports=imports, model=MODEL.model_dump(), facts=read_manifest(data).facts)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(SCRIPTS)})
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return float(done.stdout)


def main() -> None:
    parser = command_line("resuming", __doc__)
    parser.add_argument("--far", type=int, default=1_000_000, help="step from which the longer training resumes (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each of the two (default: %(default)s)")
    args = parser.parse_args()
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="resuming-") as name:
        folder = Path(name)
        data = prepared(folder / "workspace")
        train(data, folder / "few", FEW)
        shutil.copytree(folder / "few", folder / "far")
        went_far(folder / "far", args.far)
        for _ in range(args.turns):
            steps = {"few": FEW, "far": args.far}
            runs.append({"bare": bare(data)} | {which: resumed(data, folder / which, step) for which, step in steps.items()})
            print({which: round(seconds, 2) for which, seconds in runs[-1].items()}, file=sys.stderr, flush=True)
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "turns": args.turns, "far": args.far}
    found |= {f"{which}, s": round(statistics.median(run[which] for run in runs), 2) for which in ("bare", "few", "far")}
    for which in ("few", "far"):
        found[f"{which} beyond bare, s"] = round(statistics.median(run[which] - run["bare"] for run in runs), 2)
    print(json.dumps(found, indent=2))
    print(f"goal {GOAL_SECONDS:g} s: {'met' if found['far beyond bare, s'] <= GOAL_SECONDS else 'missed'}")
    write_figures(args.output, found)


if __name__ == "__main__":
    main()
