"""Names of classes, runs and metrics are drawn literally, not as formulas, and no name prevents a plot."""

import numpy as np
import pytest

import compare_runs
from snaketrain.evaluation.drawing import plt
from snaketrain.evaluation.plots import draw
from snaketrain.labels.base import drawable

ODD = r"$_{bad$ \frac{"
NAMES = [ODD, "_hidden", "x" * 100_000, "of two\nlines\x00 \ud800", "50 % & <b>"]
CELLS = {"precision": 0.5, "recall": 0.5, "f1": 0.5, "examples": 2}
RESULTS = {
    "run": "r",
    "split": "test",
    "examples": 10,
    "classes": dict.fromkeys(NAMES, CELLS),
    "confusion": np.full((5, 5), 2).tolist(),
    "reliability": [{"probability": 0.5, "accuracy": 0.5, "examples": 10}],
    "calibration_error": 0.1,
    "metrics": dict.fromkeys(NAMES, 0.5),
    "baselines": {"constant": dict.fromkeys(NAMES, 0.25) | {"answer": ODD}},
}


@pytest.mark.parametrize("kind", ["class", "classes", None])
def test_plots_with_unusual_names(tmp_path, kind):
    draw(tmp_path / "plots.png", RESULTS | {"kind": kind, "run": ODD}, None, {})
    assert (tmp_path / "plots.png").stat().st_size > 5000


def test_curves_with_unusual_metrics_and_runs(tmp_path):
    runs = [{"run": name, "curves": {"train/loss": [(1, 0.5), (2, 0.25)], f"eval/{ODD}": [(2, 0.5)]}} for name in (ODD, "plain")]
    rows = [{"run": run["run"], "selected_by": ODD} for run in runs]
    compare_runs.draw_curves(tmp_path / "curves.png", runs, rows)
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_names_are_drawn_literally():
    text = plt.figure().text(0, 0, drawable(ODD))
    assert text.get_text() == ODD and not text.get_parse_math()
    plt.close("all")
    assert drawable("of two\nlines\x00 \ud800 –  ü 中") == "of two lines – ü 中"
    assert drawable("x" * 50, 10) == "x" * 9 + "…" and drawable("x" * 10, 10) == "x" * 10
