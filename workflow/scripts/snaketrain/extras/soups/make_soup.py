"""Average the selected weights of runs: the best one's, then of each next one those that improve the development metric."""

import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.evaluation.scoring import ScoredSet, Scoring
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import Manifest, read_manifest, read_result, verify, write_json
from snaketrain.runtime.rank_logs import report_failure, start_rank
from snaketrain.runtime.ranks import Ranks, leave
from snaketrain.runtime.strict_json import JsonObject, is_number, rounded
from snaketrain.tasks.metric_names import rank_key
from snaketrain.training.checkpoints.model_folder import TASK

WEIGHTS = "*.safetensors"


class Member(NamedTuple):
    """A run whose selected weights may become a part of the soup."""

    run: str
    metrics: dict[str, float]  # of the selected model on the development set
    metric: str  # which selects
    mode: str
    training: Manifest
    selection: Manifest

    @classmethod
    def of(cls, evaluation: Manifest) -> "Member":
        training, selection = (read_manifest(evaluation.folder.parent / part / "manifest.json") for part in ("training", "selection"))
        dev, selected = read_result(evaluation, "dev_results.json")["metrics"], read_result(selection, "selection.json")
        if not is_number(dev.get(selected["metric"])):
            raise SystemExit(
                f"{evaluation.facts['run']}: has no finite dev {selected['metric']}, by which a soup takes its runs. Give the data a development set "
                "with labels, or leave the run out of the soup."
            )
        return cls(evaluation.facts["run"], dev, selected["metric"], selected["mode"], training, selection)

    @property
    def model(self) -> Path:
        return self.selection.folder / "model"


class Tried(NamedTuple):
    """What a run would add."""

    run: str
    alone: float
    with_it: float | None  # the metric of the average with it; none: the best run, with which the soup begins
    kept: bool


def in_order(members: list[Member]) -> list[Member]:
    """The best first; of equal ones that of the lower loss, or the first by name, as in the comparison."""
    return sorted(members, key=lambda each: (*rank_key(each.metrics[each.metric], each.metrics.get("loss"), each.mode), each.run))


def greedy(members: list[Member], measured: Callable[[list[Member]], float | None], told: Callable[[str], object] = print) -> list[Tried]:
    """Each run in the order given is kept if the average with it, which is `measured`, is better than the soup without it."""
    best = members[0]
    kept, value = [best], best.metrics[best.metric]
    tried = [Tried(best.run, value, None, True)]
    for number, each in enumerate(members[1:], 2):
        found = measured([*kept, each])
        improves = found is not None and rank_key(found, None, best.mode) < rank_key(value, None, best.mode)
        told(
            f"{number} of {len(members)}: with {each.run} the dev {best.metric} is {rounded(found, 4)} after {rounded(value, 4)}: {'kept' if improves else 'left out'}"
        )
        tried.append(Tried(each.run, each.metrics[best.metric], found, improves))
        if improves and found is not None:
            kept, value = [*kept, each], found
    return tried


def average(members: list[Member], folder: Path) -> None:
    """The weights alone, in a new folder. Whole numbers, such as counters of normalisation layers, are those of the first."""
    from snaketrain.models.weights import shapes_in
    from snaketrain.training.checkpoints.exporting import average_files

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    first = members[0].model
    for path in sorted(first.glob(WEIGHTS)):
        files = [each.model / path.name for each in members]
        shapes = [shapes_in([file]) if file.is_file() else {} for file in files]
        if other := next((each.run for each, found in zip(members, shapes, strict=True) if found != shapes[0]), None):
            raise SystemExit(
                f"{other}: has other tensors in {path.name} than {members[0].run}: they cannot be averaged. Leave one out of the soup."
            )
        average_files(files, folder / path.name)
    for path in first.glob(f"{WEIGHTS}.index.json"):
        shutil.copyfile(path, folder / path.name)


def arguments() -> Namespace:
    parser = stages.parser("make_soup", __doc__)
    parser.add_argument("--run-name", required=True, help="name of the soup, and of its run")
    parser.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared data")
    parser.add_argument("--evaluations", required=True, nargs="+", metavar="MANIFEST", help="manifests of the evaluations of its runs")
    parser.add_argument(
        "--model", nargs="?", metavar="MANIFEST", help="manifest of the fetched model that the runs started from (default: none)"
    )
    parser.add_argument("--device", default="auto", help="device to run the model on: auto, cpu or cuda (default: %(default)s)")
    parser.add_argument("--stall-seconds", type=float, default=1800, help="end after so long without progress (default: %(default)s)")
    parser.add_argument("--loader-workers", default="0", metavar="N", help=stages.LOADER_WORKERS)
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    start_rank()
    evaluations, data = list(map(read_manifest, args.evaluations)), read_manifest(args.data)
    model = read_manifest(args.model) if args.model else None
    members = in_order(list(map(Member.of, evaluations)))
    first = Ranks.of_environment().rank == 0
    if first:
        verify(*filter(None, (model, *evaluations, *(each.selection for each in members))))
        verify(data, wanted=lambda name: name.startswith("dev"))
    scoring, dev, candidate = (
        Scoring(args, job.given, members[0].training, data, model),
        ScoredSet("dev", data, "dev"),
        job.folder / ".candidate",
    )
    asked: list[dict[str, str]] = []

    def measured(some: list[Member]) -> float | None:
        """All ranks evaluate, and take the first one's word for whether there are scores already, and what they are."""
        weights = {each.run: each.selection.content for each in some}
        asked.append(weights)
        if not scoring.strategy.all_gather_object(first and bool(scoring.stored(weights, dev)))[0]:
            if first:
                average(some, candidate)
                shutil.copyfile(members[0].model / TASK, candidate / TASK)
            scoring.strategy.wait()
            scoring.score(candidate, weights, [dev], f"{args.run_name}, {len(some)} runs")
        found = scoring.read(weights, dev)[0]["metrics"].get(members[0].metric) if first else None
        value = scoring.strategy.all_gather_object(found)[0]
        return value if is_number(value) else None

    tried = greedy(members, measured, print if first else lambda line: None)
    scoring.close()
    if not first:
        return
    kept = [each for each, one in zip(members, tried, strict=True) if one.kept]
    average(kept, job.folder / "files")
    shutil.rmtree(candidate, ignore_errors=True)
    facts: JsonObject = {"soup": args.run_name, "metric": members[0].metric, "mode": members[0].mode, "runs": [each.run for each in kept]}
    write_json(job.folder / "soup.json", facts | {"tried": [each._asdict() for each in tried]})
    inputs = {"data": data.content} | {f"evaluate_model {each.facts['run']}": each.content for each in evaluations}
    job.finish(inputs, ["soup.json", *(f"files/{path.name}" for path in sorted((job.folder / "files").iterdir()))], facts, started)
    scoring.keep_only(*((weights, dev) for weights in asked))
    print(
        f"{args.run_name}: the average of {', '.join(facts['runs'])}"
        if len(kept) > 1
        else f"{args.run_name}: no average is better than {kept[0].run}"
    )


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report_failure, "evaluation", folder), leave)
