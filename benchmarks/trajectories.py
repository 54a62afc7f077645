"""What shared steps save: a sweep of 4 decays and 3 lengths under a warm-up-stable-decay schedule, against its 12 runs trained alone.

A workflow trains the sweep with trunks, one process each, deterministic, on a CPU; then each run is trained alone from its start. Goals:
at most 0.35 of the steps, and weights that are equal to the last bit. Ends with `met` or `missed` for each, and draws the tree.
"""

import json
import os
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

from pipeline.workspace import configuration, make_workspace, snakemake, write_configuration  # noqa: E402

from snaketrain.config.runs import read_runs  # noqa: E402
from snaketrain.config.schema import Settings  # noqa: E402
from snaketrain.evaluation.page import picture_of, tree_of  # noqa: E402
from snaketrain.runtime.journal import read_events  # noqa: E402
from snaketrain.runtime.manifests import file_digest  # noqa: E402
from snaketrain.runtime.stages import settings_words  # noqa: E402

DECAYS, LENGTHS = (10, 20, 30, 40), (100, 200, 300)
MOST_STEPS = 0.35  # of those of unshared runs


def configured() -> dict[str, Any]:
    config = configuration()
    config["train"] = {"batch_size": 16, "learning_rate": 1e-3, "warmup": 10, "evaluate_every": 50, "deterministic": True}
    config["shared_steps"] = {"at_least": 20}
    config["runs"] = {
        f"{length}-decay-{decay}": {"train.steps": length, "train.schedule": {"use": "warmup_stable_decay", "arguments": {"decay": decay}}}
        for length in LENGTHS
        for decay in DECAYS
    }
    return config


def train_alone(folder: Path, data: Path, run: str, settings: Settings) -> None:
    words = settings_words(folder, "train_model", {"train": settings.train.as_json, "model": settings.model.as_json})
    command = [sys.executable, str(SCRIPTS / "train_model.py"), "--run-name", run, "--data", str(data), "--device", "cpu"]
    done = subprocess.run([*command, "--output", str(folder / "manifest.json"), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])


def steps_taken(training: Path) -> int:
    """By the training itself."""
    events = [event for event in read_events(training / "journal.jsonl")[0] if event.get("attempt", 0) > 0]
    return events[-1]["step"] - next(event["resume_step"] for event in events if event["event"] == "attempt")


def weights(training: Path) -> str:
    return file_digest(max((training / "checkpoints").glob("step-*")) / "model.safetensors")


def main() -> None:
    parser = command_line("trajectories", __doc__)
    parser.add_argument(
        "--picture",
        type=Path,
        default=SCRIPTS / "snaketrain/extras/shared_steps/shared_steps.svg",
        help="where to draw the tree of the trainings (default: %(default)s)",
    )
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="trajectories-") as name:
        folder = make_workspace(Path(name) / "workspace")
        write_configuration(folder, configured())
        started = time.monotonic()
        snakemake(folder, "--until", "train_model")
        runs, minutes = read_runs(configured()), (time.monotonic() - started) / 60
        (data,) = (folder / "results/data").glob("*/manifest.json")
        equal = 0
        for run, settings in runs.items():
            alone = Path(name) / "alone" / run
            train_alone(alone, data, run, settings)
            equal += weights(alone) == weights(folder / "results/runs" / run / "training")
            print(f"{run}: {equal} equal so far", file=sys.stderr, flush=True)
        shared = sum(map(steps_taken, (folder / "results").glob("*/*/training")))
        os.chdir(folder)
        journals = {path.parent: read_events(path)[0] for path in sorted(Path("results/runs").glob("*/training/journal.jsonl"))}
        picture = picture_of(tree_of(journals))
    unshared = len(DECAYS) * sum(LENGTHS)
    found = {"date": time.strftime("%Y-%m-%d"), "runs": len(runs), "steps": shared, "steps alone": unshared, "share": shared / unshared}
    found |= {"runs with equal weights": equal, "minutes": round(minutes, 1)}
    print(json.dumps(found, indent=2))
    print(f"goal: at most {MOST_STEPS} of the steps: {'met' if shared <= MOST_STEPS * unshared else 'missed'}")
    print(f"goal: weights equal to the last bit: {'met' if equal == len(runs) else 'missed'}")
    write_figures(args.output, found)
    args.picture.write_text(picture)


if __name__ == "__main__":
    main()
