"""Compares all runs: a table, learning curves, and one page with both that needs neither network nor server.

Where some have no result, it compares the others and says why; it then leaves no manifest, so that all are compared again later.
"""

import base64
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import jinja2

from snaketrain.evaluation import comparing
from snaketrain.evaluation.comparing import FinishedRun, Row, SeedGroup
from snaketrain.evaluation.differences import differing_settings
from snaketrain.evaluation.drawing import plt
from snaketrain.evaluation.verdicts import verdict as verdict_on
from snaketrain.labels.base import drawable
from snaketrain.runtime import stages
from snaketrain.runtime.integrity import verify
from snaketrain.runtime.manifests import read_manifest, write_text

# distinct for the colour-blind (Okabe and Ito) and dark enough on white
COLOURS = ("#0072B2", "#D55E00", "#007A5A", "#A8508A", "#8A6D00", "#2F8FC4", "#444444")
LINES = ("-", "--", ":", "-.")


def arguments() -> Namespace:
    parser = stages.parser("compare_runs", __doc__)
    parser.add_argument("--runs-root", required=True, type=Path, metavar="FOLDER", help="the folder of all runs")
    parser.add_argument("--runs", required=True, nargs="+", metavar="NAME", help="the runs to compare")
    parser.add_argument("--unfinished", nargs="*", default=[], metavar="NAME: WHY", help="runs without a result, and why they have none")
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    folder = job.folder
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = dict(word.split(": ", 1) for word in args.unfinished)
    evaluated = {name: read_manifest(args.runs_root / name / "evaluation/manifest.json") for name in args.runs}
    verify(*evaluated.values())
    inputs = {name: manifest.content for name, manifest in evaluated.items()}
    runs = [comparing.read_run(args.runs_root / name) for name in args.runs]
    rows = comparing.ranked([comparing.row(run) for run in runs])
    groups = comparing.seed_groups(runs, rows)
    verdict = verdict_on(groups)
    if unfinished:
        args.output.unlink(missing_ok=True)  # of an earlier comparison, which was complete
    comparing.table([*rows, *map(comparing.row_without_result, unfinished.items())]).to_csv(folder / "runs.csv", index=False)
    draw_curves(folder / "learning_curves.png", runs, rows)
    write_text(folder / "index.html", page(folder / "learning_curves.png", runs, rows, groups, verdict, unfinished))
    print(f"{summary(rows, comparing.metrics_of(runs))}\n{verdict}")
    if unfinished:
        print("\nWithout a result, and not compared:", *(f"{run}: {why}" for run, why in unfinished.items()), sep="\n  ")
        return
    facts = {"runs": [line["run"] for line in rows], "verdict": verdict}
    job.finish(inputs, ["runs.csv", "index.html", "learning_curves.png"], facts, started)


def page(picture: Path, runs: list[FinishedRun], rows: list[Row], groups: list[SeedGroup], verdict: str, unfinished: dict[str, str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(comparing.__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"figure": figure, "setting": setting, "spoken": spoken}
    return environment.get_template("comparison.html.jinja").render(
        rows=rows,
        groups=[group for group in groups if len(group["runs"]) > 1],
        settings=differing_settings([run["settings"] for run in runs]),
        verdict=verdict,
        unfinished=unfinished,
        picture=base64.b64encode(picture.read_bytes()).decode(),
        comparable=len(comparing.comparable(rows)) == 1,
        chosen_by=chosen_by(rows),
        metrics=comparing.metrics_of(runs),
        confidence=next((run["test"]["confidence"] for run in runs if "confidence" in run["test"]), 0.95),
    )


def chosen_by(rows: list[Row]) -> list[str]:
    """The metrics that chose the checkpoints; usually one."""
    return list(dict.fromkeys(line["selected_by"] for line in rows))


def figure(value: object, digits: int = 3) -> str:
    if not comparing.is_number(value):
        return "–"
    return f"{value:.2g}" if digits and 0 < abs(value) < 0.5 * 10**-digits else f"{value:,.{digits}f}"


def spoken(metric: str) -> str:
    return metric.replace("_", " ").replace("f1", "F1")


def setting(value: object) -> str:
    text = "–" if value is None or value == {} else str(value)
    if all(part.isidentifier() for part in text.split(".")):
        text = text.rpartition(".")[2]  # of a class its name; the page shows the rest under the mouse
    return text if len(text) <= 60 else text[:57] + "..."


def draw_curves(path: Path, runs: list[FinishedRun], rows: list[Row]) -> None:
    """Training loss, and on the development set the loss and the metrics that chose the checkpoints."""
    panels = {"train/loss": "training loss", "eval/loss": "development loss"}
    panels |= {f"eval/{metric}": f"development {drawable(spoken(metric))}" for metric in chosen_by(rows)}
    picture, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.6), layout="constrained", squeeze=False)
    by_name = {run["run"]: run for run in runs}
    for i, line in enumerate(rows):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[i // len(COLOURS) % len(LINES)], "linewidth": 1.6}
        for plot, name in zip(axes[0], panels, strict=True):
            points = by_name[line["run"]]["curves"].get(name, [])
            plot.plot(*zip(*points, strict=True) if points else ([], []), marker="o" if len(points) < 30 else "", markersize=3,
                      label=drawable(line["run"]), **style)  # fmt: skip
    for plot, name in zip(axes[0], panels, strict=True):
        plot.set(title=panels[name], xlabel="step")
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
    picture.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(rows)), frameon=False)
    picture.savefig(path, dpi=120)
    plt.close(picture)


def summary(rows: list[Row], metrics: list[str]) -> str:
    """The table for a terminal: by the metric that chose the checkpoints, and where that is one, the other metrics."""
    chosen = chosen_by(rows)
    others = [name for name in metrics if name not in chosen] if len(chosen) == 1 else []
    name = spoken(chosen[0]) if len(chosen) == 1 else "metric"
    cells = [("run", f"dev {name}", f"test {name}", "interval", "baseline", *(f"test {spoken(other)}" for other in others), "minutes")]
    for line in rows:
        metric = line["selected_by"]
        scores = [figure(line.get(f"{split}_{metric}")) for split in ("dev", "test")]
        scores[0] += "" if len(chosen) == 1 else f" {spoken(metric)}"
        with_interval = metric == "accuracy" and line["test_low"] is not None
        interval = f"[{line['test_low']:.3f}, {line['test_high']:.3f}]" if with_interval else "–"
        rest = (figure(line.get(f"test_{other}")) for other in others)
        cells.append((line["run"], *scores, interval, figure(line["test_baseline"]), *rest, figure(line["minutes"], 1)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells)


if __name__ == "__main__":
    args = arguments()
    stages.run(partial(main, args), args.output.parent)
