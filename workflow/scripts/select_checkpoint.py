"""Select the best checkpoint by the development metrics stored in each, and export it as a folder that other tools load directly."""

import shutil
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TypedDict

from snaketrain.config.schema import Select
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.runtime import stages
from snaketrain.runtime.journal import all_events
from snaketrain.runtime.manifests import Manifest, adopt, digests, read_manifest, verify, write_json
from snaketrain.runtime.model_card import write_card
from snaketrain.runtime.strict_json import rounded, shortened
from snaketrain.tasks.metric_names import mode_of
from snaketrain.training.checkpoints.model_folder import TASK, export, merge, weights_in
from snaketrain.training.checkpoints.ranking import Evaluated, best_first, evaluated


class Ranked(TypedDict):
    step: int
    value: float | None  # of the metric that decides; none: nothing was trained, and there is no development set
    metrics: dict[str, float]
    path: str  # of the checkpoint, relative to the training's folder
    kept: bool  # a checkpoint that was removed cannot win


def arguments() -> Namespace:
    parser = stages.parser("select_checkpoint", __doc__)
    parser.add_argument("--training", required=True, metavar="MANIFEST", help="manifest of the training")
    parser.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared data, for its tokenizer")
    parser.add_argument(
        "--model",
        nargs="?",
        metavar="MANIFEST",
        help="manifest of the fetched model, whose weights adapters are merged into (default: none)",
    )
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    select = Select.model_validate(job.given.settings["select"])
    training, data = read_manifest(args.training), read_manifest(args.data)
    fetched = read_manifest(args.model) if args.model else None
    verify(*filter(None, (training, fetched)))
    verify(data, wanted=lambda name: name.startswith("tokenizer/"))
    folder = job.folder

    mode = mode_of(select.metric, training.facts["metrics"], select.mode)
    ranking = rank_checkpoints(training.folder, select.metric, mode) or untrained(training)
    verified = {str(Path(name).parent) for name in training.files}
    left = [entry for entry in ranking if entry["kept"] and entry["path"] in verified]
    if select.step is not None and select.step not in (steps := sorted(entry["step"] for entry in left)):
        raise SystemExit(
            f"select.step: {training.facts['run']} has no checkpoint of step {select.step} with an evaluation. It has those of {shortened([*map(str, steps)], most=20)}. "
            "Name one of them, or raise compute.keep_checkpoints and train again."
        )
    chosen = [entry for entry in left if select.step in (None, entry["step"])][: select.average]
    if not chosen:
        raise SystemExit(f"{training.folder}: no checkpoint with a finite dev `{select.metric}` is left. Train the run again.")
    winner, why = chosen[0], explain(chosen, ranking, select, mode)
    export([training.folder / entry["path"] for entry in chosen], training, data.folder / "tokenizer", folder / "model")
    shutil.rmtree(folder / "adapter", ignore_errors=True)
    if fetched:
        merge(training, data, fetched, folder)
    TrainedModel.of(training, data).write(folder / "model")
    files = [f"{part}/{path.name}" for part in ("model", "adapter") for path in sorted((folder / part).glob("*"))]
    weights = weights_of(folder, files, chosen, training, copied=fetched is None)
    selection = {"run": training.facts["run"], "metric": select.metric, "mode": mode, "winner": winner, "ranking": ranking, "why": why}
    if len(chosen) > 1:  # the metrics of the winner are not those of the average
        selection["averaged"] = [entry["step"] for entry in chosen]
    write_json(folder / "selection.json", selection)
    facts = {"run": training.facts["run"], "step": winner["step"], "weights": weights}
    inputs = {"training": training.content} | ({"model": fetched.content} if fetched else {})
    job.finish(inputs, ["selection.json", *files], facts, started)
    write_card(training, data, read_manifest(args.output))
    is_best = select.step is not None or winner["value"] == ranking[0]["value"]
    print(f"{'' if is_best else 'warning: '}{training.facts['run']}: {why}")


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


def untrained(training: Manifest) -> list[Ranked]:
    """The only checkpoint of a model that is evaluated as it is, and that no development set says anything about."""
    if training.facts["steps"] or training.facts["checkpoints"].get("0"):
        return []
    found = [str(path.relative_to(training.folder)) for path in training.folder.glob("checkpoints/step-*")]
    return [{"step": 0, "value": None, "metrics": {}, "path": path, "kept": True} for path in found]


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


def explain(chosen: list[Ranked], ranking: list[Ranked], select: Select, mode: str) -> str:
    winner, metric = chosen[0], select.metric
    if select.step is not None:
        value = f", whose dev {metric} is {rounded(winner['value'], 4)}" if winner["value"] is not None else ""
        return f"select.step names step {winner['step']}{value}; the best of {len(ranking)} evaluated checkpoints is that of step {ranking[0]['step']}"
    if winner["value"] is None:
        return "nothing was trained and there is no development set: the model as it is"
    best = "highest" if mode == "max" else "lowest"
    top = ranking[0]
    left = ranking if winner is top else [entry for entry in ranking if entry["kept"]]
    why = f"step {winner['step']} has the {best} dev {metric} ({rounded(winner['value'], 4)}) of {len(left)} evaluated checkpoints"
    if winner is not top:
        why += " that are still there"
    if sum(entry["value"] == winner["value"] for entry in left) > 1:
        why += "; of equal ones that of the lower loss, or the earlier"
    if winner["value"] != top["value"]:
        why += (
            f"; step {top['step']} ({rounded(top['value'], 4)}) was better but is not kept: raise compute.keep_checkpoints before training"
        )
    if select.average > 1:
        fewer = f", since no more of the {select.average} are left" if len(chosen) < select.average else ""
        why += f"; selected is the average of the weights of steps {', '.join(str(entry['step']) for entry in chosen)}{fewer}"
        why += ", whose own metrics are those of its evaluation" if len(chosen) > 1 else ""
    return why


def weights_of(folder: Path, files: list[str], chosen: list[Ranked], training: Manifest, copied: bool) -> dict[str, str]:
    """What identifies the exported weights, by file: digests of the checkpoint's files, or of those that were computed from several files."""
    known = weights_in(training, chosen[0]["path"])
    if not copied or len(chosen) > 1:
        known = {name: digest for name, digest in known.items() if name == TASK}
        computed = digests(folder, [name for name in files if name.startswith("model/") and name.endswith(".safetensors")])
        known |= {Path(name).name: digest for name, digest in computed.items()}
    adopt(folder, {f"model/{name}": digest for name, digest in known.items() if f"model/{name}" in files})
    return known


if __name__ == "__main__":
    args = arguments()
    stages.run(partial(main, args), args.output.parent)
