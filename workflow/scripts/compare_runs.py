"""Compares all runs: a table, learning curves, and one page, without network or server, with a verdict and what the models get wrong.

If some runs have no result, it compares the others and says why; it then writes no manifest, so that the comparison runs again later.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from snaketrain.evaluation import comparing, verdicts
from snaketrain.evaluation.comparing import FinishedRun, Row
from snaketrain.evaluation.page import Comparison, Mistakes, mistakes_of, page
from snaketrain.evaluation.pictures import draw_curves
from snaketrain.evaluation.predictions import Predictions, read_predictions
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import read_manifest, verify, write_text
from snaketrain.runtime.strict_json import rounded, spoken

CHECKPOINTS = "checkpoints.csv"
LOOKS = "looks.json"  # not declared to Snakemake, which deletes the outputs of a job before it starts
MOST_SHOWN = 8  # configurations whose mistakes the page shows


def arguments() -> Namespace:
    parser = stages.parser("compare_runs", __doc__)
    parser.add_argument("--runs-root", required=True, type=Path, metavar="FOLDER", help="the folder of all runs")
    parser.add_argument("--runs", required=True, nargs="+", metavar="NAME", help="the runs to compare")
    parser.add_argument("--sets", nargs="*", default=[], metavar="RUN/SET", help="the evaluation sets of each run")
    parser.add_argument("--decisions", nargs="*", default=[], metavar="MANIFEST", help="manifests of decisions which runs continue")
    parser.add_argument("--unfinished", nargs="*", default=[], metavar="NAME: WHY", help="runs without a result, and why they have none")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    folder = job.folder
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = dict(word.split(": ", 1) for word in args.unfinished)
    sets = {name: [each for run, _, each in (given.partition("/") for given in args.sets) if run == name] for name in args.runs}
    evaluated = {name: read_manifest(args.runs_root / name / "evaluation/manifest.json") for name in args.runs}
    evaluated |= {
        f"{name}/{each}": read_manifest(args.runs_root / name / f"sets/{each}/manifest.json") for name in args.runs for each in sets[name]
    }
    decisions = {f"{each.stage} {each.facts['decision']}": each for each in map(read_manifest, args.decisions)}
    verify(*evaluated.values(), *decisions.values())
    inputs = {name: manifest.content for name, manifest in (evaluated | decisions).items()}
    stopped = {
        run: why for decision in decisions.values() for run, why in decision.facts.get("stopped", {}).items() if run not in args.runs
    }
    runs = [comparing.read_run(args.runs_root / name, sets[name]) for name in args.runs]
    looks = verdicts.Looks.read(folder / LOOKS)
    verdicts.count_looks(looks, runs, [names for decision in decisions.values() for names in decision.facts.get("looks", [])])
    made = compare(runs, args.runs_root, unfinished, stopped, looks)
    looks.write(folder / LOOKS)  # before anybody sees the verdict
    if unfinished:
        args.output.unlink(missing_ok=True)  # of an earlier comparison, which was complete
    comparing.table([*made.rows, *map(comparing.row_without_result, (stopped | unfinished).items())]).to_csv(
        folder / "runs.csv", index=False
    )
    (folder / CHECKPOINTS).unlink(missing_ok=True)  # of an earlier comparison
    if checkpoints := comparing.checkpoint_rows(runs):
        comparing.table(checkpoints).to_csv(folder / CHECKPOINTS, index=False)
    curves = {run["run"]: run["curves"] for run in runs}
    draw_curves(folder / "learning_curves.png", made.groups, curves, comparing.chosen_by(made.rows))
    write_text(folder / "index.html", page(made))
    verdict = "\n".join([made.verdict, *made.warnings])
    print(f"{summary(made.rows, comparing.metrics_of(runs), comparing.sets_of(runs))}\n{verdict}")
    if stopped:
        print(f"\nStopped early: {len(stopped)} of {len(stopped) + len(runs)} runs.")
    if unfinished:
        print("\nWithout a result, and not compared:", *(f"{run}: {why}" for run, why in unfinished.items()), sep="\n  ")
        return
    facts = {"runs": [line["run"] for line in made.rows], "verdict": verdict}
    files = ["runs.csv", "index.html", "learning_curves.png", *([CHECKPOINTS] if checkpoints else [])]
    job.finish(inputs, files, facts, started)


def compare(
    runs: list[FinishedRun], runs_root: Path, unfinished: dict[str, str], stopped: dict[str, str], looks: verdicts.Looks
) -> Comparison:
    by_name = {run["run"]: run for run in runs}

    @cache
    def predicted(run: str, split: str) -> Predictions | None:
        return read_predictions(runs_root / run / "evaluation", split, by_name[run]["test" if split == "test" else "dev"])

    rows = comparing.ranked([comparing.row(run) for run in runs])
    groups = comparing.seed_groups(runs, rows)
    found = [mistakes(by_name[group["runs"][0]], predicted) for group in groups[:MOST_SHOWN]]
    return Comparison(
        runs,
        rows,
        groups,
        verdicts.verdict(groups, predicted, looks),
        verdicts.warnings(rows, looks),
        list(verdicts.below_baseline(rows)),
        [each for each in found if each],
        unfinished,
        stopped,
    )


def mistakes(run: FinishedRun, predicted: Callable[[str, str], Predictions | None]) -> Mistakes | None:
    """On the test set, if it has labels."""
    results = run["test"] if run["test"]["metrics"] else run["dev"]
    return mistakes_of(run["run"], results, predicted(run["run"], results["split"]), run["selection"]["metric"])


def summary(rows: list[Row], metrics: list[str], sets: dict[str, list[str]]) -> str:
    """The table for a terminal: by the metric that chose the checkpoints, and where that is one, the other metrics."""
    chosen = comparing.chosen_by(rows)
    others = [name for name in metrics if name not in chosen] if len(chosen) == 1 else []
    name = spoken(chosen[0]) if len(chosen) == 1 else "metric"
    on_sets = comparing.on_sets(sets, chosen)
    further = [*(f"test {spoken(other)}" for other in others), *(f"{each} {spoken(metric)}" for each, metric in on_sets)]
    cells = [("run", f"dev {name}", f"test {name}", "interval", "baseline", *further, "minutes")]
    for line in rows:
        metric = line["selected_by"]
        scores = [rounded(line.get(f"{split}_{metric}")) for split in ("dev", "test")]
        scores[0] += "" if len(chosen) == 1 else f" {spoken(metric)}"
        with_interval = metric == "accuracy" and line["test_low"] is not None
        interval = f"[{rounded(line['test_low'])}, {rounded(line['test_high'])}]" if with_interval else "–"
        rest = [
            rounded(line.get(key))
            for key in (*(f"test_{other}" for other in others), *(f"test.{each}_{metric}" for each, metric in on_sets))
        ]
        cells.append((line["run"], *scores, interval, rounded(line["test_baseline"]), *rest, rounded(line["minutes"], 1)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells)


if __name__ == "__main__":
    args = arguments()
    stages.run(partial(main, args), args.output.parent)
