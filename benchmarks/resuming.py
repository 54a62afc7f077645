"""How long a resumed training takes to its first step, besides imports and building the model; after few steps and after many.

A small BERT is trained for ten steps. In a copy of its folder the checkpoint is changed to one after `--far` steps, and the journal
extended accordingly. Both resume, in turn with a process that only imports what train_model.py imports and
builds the same model. Goal: less than a second more, at any step.
"""

import ast
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import SCRIPTS, command_line, judge, run, training, write_figures
from pipeline.workspace import configuration, prepared

from snaketrain.config.schema import Model, Train
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import file_digest, read_manifest, write_json
from snaketrain.training.plan import folder_name

FEW, LOG_EVERY, GOAL_SECONDS = 10, 10, 1.0
MODEL = Model(**configuration()["model"])
BARE = """
import time
from snaketrain.runtime.provenance import seconds_alive
{imports}
from snaketrain.training.building import build
from torch.utils.tensorboard import SummaryWriter
import torch._dynamo  # the first step of an optimizer imports it
task = make_task(Train())
build(task, Train(), Model(**{model}), None, {facts})
print(seconds_alive())
"""


def train(data: Path, folder: Path, steps: int) -> None:
    of_train = Train(batch_size=16, steps=steps, schedule={"use": "constant"}, warmup=0, evaluate_every=10**9)
    run([sys.executable, *training(folder, data, of_train, MODEL, "--log-every", 1)])


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
    return float(run([sys.executable, "-c", code], {"PYTHONPATH": str(SCRIPTS)}).output)


def main() -> None:
    parser = command_line("resuming", __doc__)
    parser.add_argument("--far", type=int, default=1_000_000, help="step from which the longer training resumes (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each of the two (default: %(default)s)")
    args = parser.parse_args()
    turns: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="resuming-") as name:
        folder = Path(name)
        data = prepared(folder / "workspace")
        train(data, folder / "few", FEW)
        shutil.copytree(folder / "few", folder / "far")
        went_far(folder / "far", args.far)
        for _ in range(args.turns):
            steps = {"few": FEW, "far": args.far}
            turns.append({"bare": bare(data)} | {which: resumed(data, folder / which, step) for which, step in steps.items()})
            print({which: round(seconds, 2) for which, seconds in turns[-1].items()}, file=sys.stderr, flush=True)
    found: dict[str, Any] = {"turns": args.turns, "far": args.far}
    found |= {f"{which}, s": round(statistics.median(each[which] for each in turns), 2) for which in ("bare", "few", "far")}
    for which in ("few", "far"):
        found[f"{which} beyond bare, s"] = round(statistics.median(each[which] - each["bare"] for each in turns), 2)
    write_figures(args.output, found)
    judge({f"goal {GOAL_SECONDS:g} s": found["far beyond bare, s"] <= GOAL_SECONDS})


if __name__ == "__main__":
    main()
