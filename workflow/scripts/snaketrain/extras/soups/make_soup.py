"""Average the selected weights of runs: the best one's, then of each next one those that improve the development metric."""

import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.evaluation.scoring import ScoredSet, Scoring
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import read_manifest, read_result, verify, write_json
from snaketrain.runtime.rank_logs import report_failure, start_rank
from snaketrain.runtime.ranks import Ranks, leave
from snaketrain.runtime.strict_json import JsonObject, is_number, rounded
from snaketrain.tasks.metric_names import rank_key
from snaketrain.training.checkpoints.model_folder import TASK

WEIGHTS, INDEX = "*.safetensors", "*.safetensors.index.json"


def arguments() -> Namespace:
    parser = stages.parser_of_models("make_soup", __doc__)
    parser.add_argument("--run-name", required=True, help="name of the soup, and of its run")
    parser.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared data")
    parser.add_argument("--loader-workers", default="0", metavar="N", help=stages.LOADER_WORKERS)
    parser.add_argument("--evaluations", required=True, nargs="+", metavar="MANIFEST", help="manifests of the evaluations of its runs")
    return parser.parse_args()


def greedy(alone: Mapping[str, float], mode: str, measured: Callable[[list[str]], float | None]) -> Iterator[JsonObject]:
    """Which runs are kept, given the metric of each, the best first: those with which the average, which is `measured`, is better than before."""
    kept, best = list[str](), None
    for run, own in alone.items():
        found = measured([*kept, run]) if kept else own
        improves = not kept or rank_key(found, None, mode) < rank_key(best, None, mode)
        yield {"run": run, "alone": own, "average with it": found, "kept": improves}
        kept, best = ([*kept, run], found) if improves else (kept, best)


def average(models: Mapping[str, Path], folder: Path) -> None:
    """The weights alone, in a new folder; `models`: by run. Whole numbers, such as counters of normalisation layers, are those of the first."""
    from snaketrain.models.weights import shapes_in
    from snaketrain.training.checkpoints.exporting import average_files

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shapes = {run: {path.name: shapes_in([path]) for path in model.glob(WEIGHTS)} for run, model in models.items()}
    first, *others = models
    if other := [run for run in others if shapes[run] != shapes[first]]:
        raise SystemExit(f"{other[0]}: its weights have other names or shapes than those of {first}. Leave one of the two out of the soup.")
    for name in shapes[first]:
        average_files([model / name for model in models.values()], folder / name)
    for path in models[first].glob(INDEX):
        shutil.copyfile(path, folder / path.name)


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    start_rank()
    evaluated = {each.facts["run"]: each for each in map(read_manifest, args.evaluations)}
    selected = {run: read_manifest(each.folder.parent / "selection/manifest.json") for run, each in evaluated.items()}
    data, model = read_manifest(args.data), read_manifest(args.model) if args.model else None
    if first := Ranks.of_environment().rank == 0:
        verify(*filter(None, (model, *evaluated.values(), *selected.values())))
        verify(data, wanted=lambda name: name.startswith("dev"))
    selection = read_result(next(iter(selected.values())), "selection.json")
    metric, mode = selection["metric"], selection["mode"]
    found = {run: read_result(each, "dev_results.json")["metrics"] for run, each in evaluated.items()}
    if without := [run for run, metrics in found.items() if not is_number(metrics.get(metric))]:
        raise SystemExit(f"{without[0]}: its dev {metric}, by which a soup is made, is no number: give it a development set with labels.")
    # of equal ones that of the lower loss, as in the comparison
    alone = {
        run: found[run][metric] for run in sorted(found, key=lambda run: (*rank_key(found[run][metric], found[run].get("loss"), mode), run))
    }
    best = next(iter(alone))
    training = read_manifest(evaluated[best].folder.parent / "training/manifest.json")
    scoring, dev = Scoring(args, job.given, training, data, model), ScoredSet("dev", data, "dev")
    candidate, scored = job.folder / ".candidate", list[dict[str, str]]()

    def of(runs: list[str]) -> dict[str, Path]:
        return {run: selected[run].folder / "model" for run in runs}

    def measured(runs: list[str]) -> float | None:
        """Rank 0 tells the others whether there are scores already, and what they are."""
        scored.append({run: selected[run].content for run in runs})
        if not scoring.strategy.all_gather_object(first and bool(scoring.stored(scored[-1], dev)))[0]:
            if first:
                average(of(runs), candidate)
                shutil.copyfile(of(runs)[best] / TASK, candidate / TASK)
            scoring.strategy.wait()
            scoring.score(candidate, scored[-1], [dev], args.run_name)
        value: float | None = scoring.strategy.all_gather_object(first and scoring.read(scored[-1], dev)[0]["metrics"].get(metric))[0]
        return value

    tried = list[JsonObject]()
    for each in greedy(alone, mode, measured):
        tried.append(each)
        if first:
            value, what = rounded(each["average with it"], 4), "kept" if each["kept"] else "left out"
            print(f"{args.run_name}: {len(tried)} of {len(alone)}: with {each['run']} the dev {metric} is {value}: {what}", flush=True)
    scoring.close()
    if not first:  # rank 0 alone writes the results
        return
    runs = [each["run"] for each in tried if each["kept"]]
    average(of(runs), job.folder / "files")
    shutil.rmtree(candidate, ignore_errors=True)
    write_json(job.folder / "soup.json", {"metric": metric, "mode": mode, "runs": runs, "tried": tried})
    files = ["soup.json", *(f"files/{path.name}" for path in sorted((job.folder / "files").iterdir()))]
    inputs = {"data": data.content} | {f"evaluate_model {run}": each.content for run, each in evaluated.items()}
    job.finish(inputs, files, {"soup": args.run_name, "runs": runs}, started)
    scoring.keep_only(*((weights, dev) for weights in scored))


if __name__ == "__main__":
    args = arguments()
    folder = args.output.parent
    stages.run(partial(main, args), folder, partial(report_failure, "evaluation", folder), leave)
