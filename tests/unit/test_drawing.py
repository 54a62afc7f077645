"""Names of classes, runs and metrics are drawn literally, not as formulas, and no name prevents a plot."""

import numpy as np
import pytest

from snaketrain.evaluation import pictures
from snaketrain.evaluation.results import draw, plt
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
    curves = {name: {"train/loss": [(1, 0.5), (2, 0.25)], f"eval/{ODD}": [(2, 0.5)]} for name in (ODD, "plain")}
    groups = [{"run": name, "members": [{"run": name, "selected_step": 2}]} for name in curves]
    pictures.draw_curves(tmp_path / "curves.png", groups, curves, [ODD])
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_a_configuration_has_one_colour_a_band_and_a_star_for_each_seed():
    curves = {"a-0": {"eval/f1": [(1, 0.2), (2, 0.4), (3, 0.9)]}, "a-1": {"eval/f1": [(1, 0.4), (2, 0.6)]}, "b": {}}
    members = [{"run": "a-0", "selected_step": 3}, {"run": "a-1", "selected_step": 2}]
    groups = [{"run": "a", "members": members}, {"run": "b", "members": [{"run": "b", "selected_step": 7}]}]
    figure, axes = plt.subplots()
    pictures.draw_panel(axes, "eval/f1", groups, curves)
    mean, empty = axes.get_lines()
    assert [list(mean.get_xdata()), list(mean.get_ydata())] == [[1, 2], pytest.approx([0.3, 0.5])] and not len(empty.get_xdata())
    band, stars, _ = axes.collections
    assert band.get_paths()[0].get_extents().extents.tolist() == pytest.approx([1, 0.2, 2, 0.6])
    assert stars.get_offsets().tolist() == [[3, 0.9], [2, 0.6]]
    plt.close(figure)


def test_of_many_configurations_the_best_have_colours_and_the_others_are_grey(tmp_path, recwarn):
    names = [f"{number:03d}" for number in range(100)]
    curves = {name: {"train/loss": [(1, 0.5), (2, int(name) / 100)], "eval/loss": []} for name in names}
    groups = [{"run": name, "members": [{"run": name, "selected_step": 2}]} for name in names]
    figure, axes = plt.subplots()
    pictures.draw_panel(axes, "train/loss", groups, curves)
    lines, legend = axes.get_lines(), axes.get_legend_handles_labels()[1]
    assert legend == [*names[: pictures.NAMED], f"{100 - pictures.NAMED} others"] and len(lines) == pictures.NAMED
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == pictures.NAMED
    (others,) = axes.collections
    ends = [segment[-1].tolist() for segment in others.get_segments()]
    assert ends == [[2, int(name) / 100] for name in names[pictures.NAMED :]] and axes.get_ylim()[1] > 0.99
    plt.close(figure)
    pictures.draw_curves(tmp_path / "curves.png", groups, curves, [])
    assert not [str(warning.message) for warning in recwarn if "constrained_layout" in str(warning.message)]


def test_many_points_do_not_make_the_page_large_and_no_spike_is_lost():
    curves = {"a": {"train/loss": [(step, 1000.0 if step == 12_345 else step % 7) for step in range(21_000)]}}
    groups = [{"run": "a", "members": [{"run": "a", "selected_step": 1}]}]
    (drawn,) = pictures.curves_of_page(groups, curves, [])["training loss"]
    steps = [step for step, _ in drawn["points"]]
    assert 400 < len(steps) <= pictures.MOST_POINTS + 2 and steps == sorted(steps) and (steps[0], steps[-1]) == (0, 20_999)
    assert [12_345, 1000.0] in drawn["points"]


def test_lines_of_the_page():
    """A band over seeds, a star at each chosen step, and the colours and dashes of the legend."""
    names = [f"{number:02d}" for number in range(pictures.NAMED + 1)]
    curves = {name: {"eval/loss": [(1, 0.5), (2, 0.25)]} for name in names} | {"00-1": {"eval/loss": [(1, 0.7), (2, 0.35), (3, 0.1)]}}
    groups = [{"run": name, "members": [{"run": name, "selected_step": 2}]} for name in names]
    groups[0]["members"].append({"run": "00-1", "selected_step": 1})
    first, *others, last = pictures.curves_of_page(groups, curves, [])["development loss"]
    assert first["points"] == [[1, 0.6, 0.5, 0.7], [2, 0.3, 0.25, 0.35]] and first["chosen"] == [(2, 0.25), (1, 0.7)]
    assert others[0]["points"] == [[1, 0.5], [2, 0.25]] and [each["dashed"] for each in others] == [False] * 6 + [True] * 7
    assert (last["colour"], last["chosen"], last["dashed"]) == (pictures.GREY, [], False)


def test_names_are_drawn_literally():
    text = plt.figure().text(0, 0, drawable(ODD))
    assert text.get_text() == ODD and not text.get_parse_math()
    plt.close("all")
    assert drawable("of two\nlines\x00 \ud800 –  ü 中") == "of two lines – ü 中"
    assert drawable("x" * 50, 10) == "x" * 9 + "…" and drawable("x" * 10, 10) == "x" * 10


def test_the_metric_by_each_setting_that_was_varied():
    """Rates on a logarithmic axis, names side by side, and a line through each dot from the lowest to the highest seed."""
    groups = [
        {
            "run": f"{rate}-{schedule}",
            "selected_by": "accuracy",
            "selected_value": value,
            "settings": {"train.learning_rate": rate, "train.schedule.use": schedule, "train.batch_size": 8},
            "members": [{"selected_value": value - 0.01}, {"selected_value": value + 0.02}],
        }
        for rate, schedule, value in [(1e-3, "linear", 0.9), (1e-4, None, 0.8), (1e-5, "linear", 0.7)]
    ]
    found = pictures.pictures_of_settings(groups)
    assert list(found) == [
        f"development accuracy by {what}"
        for what in ("train.learning_rate, train.schedule.use", "train.learning_rate", "train.schedule.use")
    ]
    assert pictures.pictures_of_settings(groups[:2]) == {}, "two are read in the table"
    colours = dict.fromkeys((group["run"] for group in groups), "red")
    figure, (rates, names, all_of_them) = pictures.plt.subplots(1, 3)
    pictures.draw_by_setting(rates, groups, "train.learning_rate", colours)
    assert rates.get_xscale() == "log" and rates.get_lines()[0].get_xydata()[0].tolist() == [1e-3, 0.9]
    lowest, highest = rates.collections[0].get_segments()[0]
    assert (lowest[1], highest[1]) == (0.89, 0.92)
    pictures.draw_by_setting(names, groups, "train.schedule.use", colours)
    assert [label.get_text() for label in names.get_xticklabels()] == ["linear", "–"]
    pictures.draw_configurations(all_of_them, groups, ["train.learning_rate", "train.schedule.use"], colours)
    assert [label.get_text() for label in all_of_them.get_yticklabels()] == ["0.001, linear", "0.0001, –", "1e-05, linear"]
    pictures.plt.close(figure)


def test_a_setting_is_shown_as_on_the_page_without_secrets(monkeypatch):
    callbacks = [{"use": "b.C", "arguments": {"on": True}}]
    assert [pictures.shown(value) for value in (1e-5, None, "raw/train.csv", [0.1, 0.2], "torch.optim.AdamW", callbacks)] == [
        "1e-05", "–", "raw/train.csv", "[0.1, 0.2]", "AdamW", '[{"use": "b.C", "arguments": {"on": true}}]',
    ]  # fmt: skip
    assert "hunter2" not in pictures.shown("postgresql://anna:hunter2@host/data")
