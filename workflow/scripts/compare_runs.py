"""Compares all runs: a table, learning curves, and one page with both that needs neither network nor server."""

import base64
import time
from pathlib import Path

import jinja2
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from snaketrain import comparing, stages
from snaketrain.manifests import read_manifest, write_text

# distinct for the colour-blind (Okabe and Ito) and dark enough on white
COLOURS = ("#0072B2", "#D55E00", "#007A5A", "#A8508A", "#8A6D00", "#2F8FC4", "#444444")
LINES = ("-", "--", ":", "-.")


def main() -> None:
    parser = stages.parser(__doc__)
    parser.add_argument("--runs-root", required=True, type=Path, metavar="FOLDER", help="the folder of all runs")
    parser.add_argument("--runs", required=True, nargs="+", metavar="NAME", help="the runs to compare")
    args, started = parser.parse_args(), time.time()
    folder = Path(args.output).parent
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {name: read_manifest(args.runs_root / name / "evaluation/manifest.json").content for name in args.runs}
    runs = [comparing.read_run(args.runs_root / name) for name in args.runs]
    rows = comparing.ranked([comparing.row(run) for run in runs])
    groups = comparing.seed_groups(runs, rows)
    verdict = comparing.verdict(groups)
    comparing.table(rows).to_csv(folder / "runs.csv", index=False)
    draw_curves(folder / "learning_curves.png", runs, rows)
    write_text(folder / "index.html", page(folder / "learning_curves.png", runs, rows, groups, verdict))
    print(f"{summary(rows)}\n{verdict}")
    facts = {"runs": [line["run"] for line in rows], "verdict": verdict}
    stages.finish("compare_runs", args, inputs, ["runs.csv", "index.html", "learning_curves.png"], facts, started)


def page(picture: Path, runs: list[dict], rows: list[dict], groups: list[dict], verdict: str) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(comparing.__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"figure": figure, "setting": setting}
    return environment.get_template("comparison.html.jinja").render(
        rows=rows,
        groups=[group for group in groups if len(group["runs"]) > 1],
        settings=comparing.differing_settings(runs),
        verdict=verdict,
        picture=base64.b64encode(picture.read_bytes()).decode(),
        metric=rows[0]["selected_by"],
        confidence=next((run["test"]["confidence"] for run in runs if "confidence" in run["test"]), 0.95),
    )


def figure(value: object, digits: int = 3) -> str:
    return f"{value:,.{digits}f}" if comparing.is_number(value) else "–"


def setting(value: object) -> str:
    text = "–" if value is None or value == {} else str(value)
    if all(part.isidentifier() for part in text.split(".")):
        text = text.rpartition(".")[2]  # of a class its name; the page shows the rest under the mouse
    return text if len(text) <= 60 else text[:57] + "..."


def draw_curves(path: Path, runs: list[dict], rows: list[dict]) -> None:
    """Training loss, and on the development set the loss and the metric that chose the checkpoints."""
    panels = dict.fromkeys(["train/loss", "eval/loss", f"eval/{rows[0]['selected_by']}"])
    titles = {"train/loss": "training loss", "eval/loss": "development loss"}
    picture, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.6), layout="constrained", squeeze=False)
    by_name = {run["run"]: run for run in runs}
    for i, line in enumerate(rows):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[i // len(COLOURS) % len(LINES)], "linewidth": 1.6}
        for plot, name in zip(axes[0], panels, strict=True):
            points = by_name[line["run"]]["curves"].get(name, [])
            plot.plot(*zip(*points, strict=True) if points else ([], []), marker="o" if len(points) < 30 else "", markersize=3,
                      label=line["run"], **style)  # fmt: skip
    for plot, name in zip(axes[0], panels, strict=True):
        plot.set(title=titles.get(name, name.replace("eval/", "development ").replace("_", " ")), xlabel="step")
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
    picture.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(rows)), frameon=False)
    picture.savefig(path, dpi=120)
    plt.close(picture)


def summary(rows: list[dict]) -> str:
    """The table for a terminal."""
    cells = [("run", "dev acc", "test acc", "interval", "majority", "macro F1", "minutes")]
    for line in rows:
        interval = f"[{line['test_low']:.3f}, {line['test_high']:.3f}]" if line["test_low"] is not None else "–"
        scores = (figure(line[key]) for key in ("dev_accuracy", "test_accuracy", "test_majority", "test_macro_f1"))
        dev, test, majority, macro_f1 = scores
        cells.append((line["run"], dev, test, interval, majority, macro_f1, figure(line["minutes"], 1)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells)


if __name__ == "__main__":
    main()
