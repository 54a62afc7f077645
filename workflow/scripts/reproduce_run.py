"""Take the first steps of a training again, by what MLflow knows of it, and say whether the losses are equal to the bit."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from snaketrain.journal import all_events
from snaketrain.launching import torchrun
from snaketrain.manifests import Manifest, file_digest, read_manifest
from snaketrain.provenance import git_state

SCRIPT = Path(__file__).with_name("train_model.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_id", help="of the training's run in MLflow")
    parser.add_argument("--uri", help="an MLflow server or database (default: mlflow.db beside the results)")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER", help="of the workflow (default: results)")
    parser.add_argument("--steps", type=int, default=20, help="how many of the first steps (default: 20)")
    args = parser.parse_args()
    root = args.results.resolve().parent
    run, expected = recorded(args.uri or f"sqlite:///{root / 'mlflow.db'}", args.run_id, args.steps)
    if not expected:
        raise SystemExit(f"{args.run_id}: MLflow has no train/loss within the first {args.steps} steps. Give more --steps.")
    for difference in differences(run, root):
        print(f"not as it was: {difference}")
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        found = taken_again(run, root, Path(folder), max(expected))
    unequal = [step for step in sorted(expected) if found.get(step) != expected[step]]
    if unequal:
        step = unequal[0]
        print(f"{run['run']}: step {step} had a loss of {expected[step]!r}, and now has {found.get(step)!r}")
    print(f"{run['run']}: {len(expected) - len(unequal)} of {len(expected)} losses up to step {max(expected)} are equal to the bit")
    return int(bool(unequal))


def recorded(uri: str, run_id: str, steps: int) -> tuple[dict[str, Any], dict[int, float]]:
    """What the training was started with, and its losses by step."""
    from mlflow.exceptions import MlflowException

    from snaketrain.mlflow_store import Store

    client = Store(uri).client
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = json.loads(Path(client.download_artifacts(run_id, "training/run.json", folder)).read_text(encoding="utf-8"))
        except (MlflowException, OSError) as error:
            raise SystemExit(
                f"{run_id}: MLflow at {uri} has no training/run.json of such a run ({error}). Copy the id from a training's page."
            ) from None
    return run, {point.step: point.value for point in client.get_metric_history(run_id, "train/loss") if point.step <= steps}


def differences(run: dict[str, Any], root: Path) -> list[str]:
    """In the code, the machine and the files that it read: what may explain other losses."""
    import torch

    found, now = [], git_state()
    if now != run["git"]:
        found.append(
            f"the code: commit {run['git']['commit']}{' with changes' * bool(run['git']['dirty'])}; here it is {now['commit']}{' with changes' * bool(now['dirty'])}"
        )
    if torch.__version__ != run["environment"]["torch"]:
        found.append(f"torch: {run['environment']['torch']}; here it is {torch.__version__}")
    for role, path in run["paths"].items():
        manifest = read_manifest(root / path)
        if manifest.content != run["inputs"][role]:
            found.append(f"{role}: {path} was {run['inputs'][role]}; here it is {manifest.content}")
        found += [f"{role}: {manifest.folder / name} is not what was written" for name in changed_files(manifest)]
    return found


def changed_files(manifest: Manifest) -> list[str]:
    return [name for name, digest in manifest.files.items() if digest and file_digest(manifest.file(name)) != digest]


def taken_again(run: dict[str, Any], root: Path, folder: Path, last: int) -> dict[int, float]:
    """The losses up to the last step; then the training is told to stop. It may be one with a schedule that looks at its end."""
    processes = run["environment"]["processes"]
    start = torchrun("--standalone", "--nproc-per-node", processes) if processes > 1 else [sys.executable]
    paths = [word for role, path in run["paths"].items() for word in (f"--{role}", path)]
    settings = [string for string in run["settings"] if not string.startswith("data.")]
    options = [
        "--run-name",
        run["run"],
        "--output",
        folder / "training/manifest.json",
        "--log-every",
        run["log_every"],
        "--device",
        run["device"],
    ]
    environment = {"OMP_NUM_THREADS": str(run["threads"]), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    log = folder / "training.log"
    with open(log, "w", encoding="utf-8") as output:
        command = [*start, SCRIPT, *paths, *options, "--settings", *settings]
        process = subprocess.Popen(list(map(str, command)), cwd=root, env=os.environ | environment, stdout=output, stderr=output)
        while process.poll() is None and max(losses(folder), default=0) < last:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        process.wait()
    if not losses(folder):
        raise SystemExit(f"the training could not be started again:\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}")
    return losses(folder)


def losses(folder: Path) -> dict[int, float]:
    events = all_events(folder / "training/journal.jsonl")
    return {event["step"]: event["metrics"]["loss"] for event in events if event["event"] == "train"}


if __name__ == "__main__":
    sys.exit(main())
