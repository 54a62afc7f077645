"""Evaluate the selected checkpoint on the development and test set: every example exactly once, on any number of processes."""

import json
import os
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.runs import from_strings
from snaketrain.config.schema import Evaluate, Model, Train
from snaketrain.runtime import stages
from snaketrain.runtime.binding import bind
from snaketrain.runtime.exit_codes import leave
from snaketrain.runtime.integrity import verify
from snaketrain.runtime.job_settings import JobSettings
from snaketrain.runtime.json_types import Json, JsonObject
from snaketrain.runtime.manifests import Manifest, digest, read_manifest, write_json
from snaketrain.runtime.model_card import write_card
from snaketrain.runtime.rank_failures import report_failure
from snaketrain.runtime.rank_logs import log_to, quiet_libraries
from snaketrain.runtime.ranks import Ranks

if TYPE_CHECKING:
    from snaketrain.evaluation.results import Rows
    from snaketrain.tasks.base import Task

SPLITS = ("dev", "test")
REPORT_ONLY = ("evaluate.confidence=", "evaluate.bins=")  # settings of the report, on which the scores do not depend


def arguments() -> Namespace:
    parser = stages.parser_of_inference("evaluate_model", __doc__)
    parser.add_argument("--run-name", required=True, help="name of the run")
    parser.add_argument(
        "--training", required=True, metavar="MANIFEST", help="manifest of the training, which knows the model and the task"
    )
    parser.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared data")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    quiet_libraries()
    log_to(None)
    bind(Ranks.of_environment())
    folder = job.folder
    evaluate = Evaluate.model_validate(from_strings(job.given.settings)["evaluate"])
    training, selection, data = (read_manifest(path) for path in (args.training, args.selection, args.data))
    model = read_manifest(args.model) if args.model else None
    if Ranks.of_environment().rank == 0:
        verify(*filter(None, (selection, model)))
        verify(data, wanted=lambda name: name.startswith(SPLITS))

    # a changed plot or interval does not need the model again
    scores = folder / "scores" / scores_key(job.given, args.device, training, selection, data, model)
    if not all((scores / f"{split}.json").is_file() for split in SPLITS):
        score(args, training, selection, data, model, evaluate, scores)
    if Ranks.of_environment().rank > 0:  # rank 0 alone writes the results
        return

    import numpy as np

    from snaketrain.evaluation.results import write_results

    files = []
    for split in SPLITS:
        measured, rows = json.loads((scores / f"{split}.json").read_text()), dict(np.load(scores / f"{split}.npz"))
        table = read_table(data.file(f"{split}.arrow"), measured["examples"])
        write_results(folder, args.run_name, split, measured, rows, table, data.facts, evaluate.confidence, evaluate.bins)
        files += [f"{split}_{name}" for name in ("results.json", "plots.png")]
        files += [f"{split}_predictions.csv"] if len(rows) > 1 else []
    job.finish({"selection": selection.content, "data": data.content}, files, {"run": args.run_name}, started)
    write_card(training, data, selection)


def scores_key(given: JobSettings, device: str, training: Manifest, selection: Manifest, data: Manifest, model: Manifest | None) -> str:
    """A digest of all that the scores depend on; another metric of the same weights gives another key."""
    settings = [string for string in sorted(given.settings) if not string.startswith(REPORT_ONLY)]
    read = [sorted(training.settings), training.facts["precision"], selection.facts["weights"], data.content, model and model.content]
    return digest(settings, sorted(given.code), device, *read)


def read_table(path: Path, examples: int) -> dict[str, list[Json]]:
    """Texts and labels of the prepared data, if it has one row for each example."""
    import pyarrow as pa

    if not path.is_file():
        return {}
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    names = [name for name in ("text", "text_pair", "target", "label") if name in table.column_names]
    return {name: table[name].to_pylist() for name in names} if table.num_rows == examples else {}


def score(
    args: Namespace, training: Manifest, selection: Manifest, data: Manifest, fetched: Manifest | None, evaluate: Evaluate, folder: Path
) -> None:
    """Run the model on both splits; rank 0 writes the scores."""
    # transformers would warn of missing weights, which are loaded later
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    import numpy as np

    from snaketrain.data.loading.opening import facts_of, open_split
    from snaketrain.evaluation.predicting import load_trained, predict
    from snaketrain.training.building import add_metrics, make_task, start_strategy
    from snaketrain.training.callbacks.stall_watchdog import StallWatchdog

    sections = from_strings(training.settings)
    train, model = evaluate.applied_to(Train.model_validate(sections["train"])), Model.model_validate(sections["model"])
    strategy = start_strategy(train, args.device, training.facts["precision"])  # the training's, whatever `auto` would mean here
    watch = StallWatchdog(args.output.parent / "stalled", strategy.rank, strategy.world_size, args.stall_seconds)
    task = make_task(train, data.facts)
    add_metrics(task, evaluate.metrics, data.facts, train.task.use, "evaluate.metrics")
    weights = fetched.folder / "files" if fetched else None
    state = load_trained(task, train, model, weights, facts_of(data), selection.folder / "model", strategy)
    for split in SPLITS:
        examples = open_split(data, split, train)
        measured = len(examples) > 0 and not withheld(data.facts, split)
        name = f"{args.run_name}: {split}"
        metrics, rows = predict(state, examples, evaluate.batch_size, train.batch_tokens, name, measured, watch.beat)
        if strategy.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            save: Callable[..., None] = np.savez  # whose type takes the names of rows for its options
            save(folder / f"{split}.npz", **rows)
            found = {"examples": len(examples), "metrics": metrics, "baselines": baselines(task, rows) if measured else {}}
            write_json(folder / f"{split}.json", found)  # written last: it marks both files as complete
        watch.beat()
    strategy.finish()
    watch.close()


def baselines(task: "Task", rows: "Rows") -> dict[str, JsonObject]:
    import torch

    try:
        return task.baselines({name: torch.from_numpy(values) for name, values in rows.items() if values.dtype.kind != "U"})
    except Exception as error:  # such as a metric that is undefined for constant answers; the model's own results stand
        print(f"warning: no baseline, since constant answers give {type(error).__name__}: {error}", flush=True)
        return {}


def withheld(facts: JsonObject, split: str) -> bool:
    """Whether the training data has labels and this split has none."""
    splits = facts.get("splits", {})
    return splits.get("train", {}).get("labelled", False) and not splits.get(split, {}).get("labelled", True)


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report_failure, "evaluation", folder), leave)
