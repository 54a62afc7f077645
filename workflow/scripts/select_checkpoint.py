"""Select the best checkpoint by the development metrics stored in each, and export it as a folder that other tools load directly."""

import shutil
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TypedDict

from snaketrain.config.runs import from_strings
from snaketrain.config.schema import Select
from snaketrain.runtime import stages
from snaketrain.runtime.integrity import adopt, verify
from snaketrain.runtime.journal import all_events
from snaketrain.runtime.manifests import read_manifest, write_json
from snaketrain.tasks.metric_modes import mode_of
from snaketrain.training.checkpoints.ranking import Evaluated, best_first, evaluated

WEIGHTS = (".safetensors", ".distcp", "task.memory.pt")


class Ranked(TypedDict):
    step: int
    value: float  # of the metric that decides
    metrics: dict[str, float]
    path: str  # of the checkpoint, relative to the training's folder
    kept: bool  # a checkpoint that was removed cannot win


def arguments() -> Namespace:
    parser = stages.parser("select_checkpoint", __doc__)
    parser.add_argument("--training", required=True, help="manifest of the training")
    parser.add_argument("--data", required=True, help="manifest of the prepared data, for its tokenizer")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    select = Select.model_validate(from_strings(job.given.settings)["select"])
    training, data = read_manifest(args.training), read_manifest(args.data)
    verify(training)
    verify(data, wanted=lambda name: name.startswith("tokenizer/"))
    folder = job.folder

    mode = mode_of(select.metric, training.facts["metrics"], select.mode)
    ranking = rank_checkpoints(training.folder, select.metric, mode)
    verified = {str(Path(name).parent) for name in training.files}
    winner = next((entry for entry in ranking if entry["kept"] and entry["path"] in verified), None)
    if winner is None:
        raise SystemExit(f"{training.folder}: no checkpoint with a finite dev `{select.metric}` is left. Train the run again.")
    checkpoint = training.folder / winner["path"]
    files = export(checkpoint, training.folder / "description", data.folder / "tokenizer", folder / "model")
    weights = {
        Path(name).name: digest
        for name, digest in training.files.items()
        if name.startswith(f"{winner['path']}/") and name.endswith(WEIGHTS)
    }
    adopt(folder, {f"model/{name}": digest for name, digest in weights.items() if f"model/{name}" in files})
    why = explain(winner, ranking, select.metric, mode)
    write_json(
        folder / "selection.json",
        {"run": training.facts["run"], "metric": select.metric, "mode": mode, "winner": winner, "ranking": ranking, "why": why},
    )
    facts = {"run": training.facts["run"], "step": winner["step"], "weights": weights}
    job.finish({"training": training.content}, ["selection.json", *files], facts, started)
    print(f"{training.facts['run']}: {why}")


def rank_checkpoints(training: Path, metric: str, mode: str) -> list[Ranked]:
    """Evaluated checkpoints, best first; also those that were removed, which cannot win."""
    kept = evaluated(training / "checkpoints")
    if unknown := next((each.metrics for each in kept if metric not in each.metrics), None):
        raise SystemExit(f"select.metric: the training logged no `{metric}`. It logged: {', '.join(unknown)}.")
    removed = [each for each in evaluations_of_saved(training) if not each.path.is_dir()]
    return [
        {
            "step": each.step,
            "value": each.metrics[metric],
            "metrics": each.metrics,
            "path": str(each.path.relative_to(training)),
            "kept": each.path.is_dir(),
        }
        for each in best_first([*kept, *removed], metric, mode)
    ]


def evaluations_of_saved(training: Path) -> list[Evaluated]:
    """The evaluations of all checkpoints that were ever saved, from the journal.

    An evaluation counts only together with a checkpoint of the same attempt: an earlier attempt may have been killed before it saved.
    """
    measured: dict[tuple[int, int], dict[str, float]] = {}
    found: dict[int, Evaluated] = {}
    for event in all_events(training / "journal.jsonl"):
        step, attempt = event.get("step", 0), event.get("attempt", 0)
        if event.get("event") == "eval":
            measured[step, attempt] = event.get("metrics") or {}
        elif event.get("event") == "checkpoint" and (metrics := measured.get((step, attempt))):
            found[step] = Evaluated(step, metrics, training / event["path"])
    return list(found.values())


def explain(winner: Ranked, ranking: list[Ranked], metric: str, mode: str) -> str:
    best = "highest" if mode == "max" else "lowest"
    why = f"step {winner['step']} has the {best} dev {metric} ({winner['value']:.4f}) of {len(ranking)} evaluated checkpoints"
    if sum(entry["value"] == winner["value"] for entry in ranking) > 1:
        why += "; of equal ones the earlier"
    if winner is not ranking[0]:
        top = ranking[0]
        why += f" that are still there; step {top['step']} ({top['value']:.4f}) was better but is not kept: raise compute.keep_checkpoints before training"
    return why


def export(checkpoint: Path, description: Path, tokenizer: Path, folder: Path) -> list[str]:
    """Copy weights, the task's state, configuration and tokenizer into a new folder; returns their names."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if (checkpoint / "weights").is_dir():
        from snaketrain.training.checkpoints.exporting import export_weights  # with torch

        export_weights(checkpoint, folder)
    for path in [*checkpoint.glob("*.safetensors"), checkpoint / "task.memory.pt", *description.glob("*"), *tokenizer.glob("*")]:
        shutil.copyfile(path, folder / path.name)
    return [f"model/{path.name}" for path in sorted(folder.iterdir())]


if __name__ == "__main__":
    args = arguments()
    stages.run(partial(main, args), args.output.parent)
