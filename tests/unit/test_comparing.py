"""The comparison of runs, against figures computed by hand."""

import math
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from pipeline.warm_python import warm_python
from workspace import make_workspace

from snaketrain.evaluation import comparing
from snaketrain.evaluation.comparing import differing_settings
from snaketrain.evaluation.journals import curves, seconds_training
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.stages import settings_words

pytestmark = pytest.mark.lengthy

SCRIPT = Path(__file__).parents[2] / "workflow/scripts/compare_runs.py"


def read(results: Path) -> tuple[list, list]:
    runs = [comparing.read_run(folder) for folder in sorted((results / "runs").iterdir())]
    return runs, comparing.ranked([comparing.row(run) for run in runs])


def script(results: Path, *runs: str) -> list:
    settings = settings_words(results / "comparison", "compare_runs", [])
    output = ["--output", results / "comparison/manifest.json", *settings]
    return [warm_python(), SCRIPT, *output, "--runs-root", results / "runs", "--runs", *runs]


def test_row_of_a_run(tmp_path):
    results = make_workspace(tmp_path, {"one": {"skill": 0.9}})
    line = comparing.row(comparing.read_run(results / "runs/one"))
    assert (line["selected_by"], line["selected_step"], line["selected_value"]) == ("accuracy", 60, 0.9)
    assert line["test_accuracy"] == pytest.approx(0.9)
    assert line["test_low"] < 0.9 < line["test_high"]
    assert line["examples_per_second"] == 100.0 and line["peak_memory_mb"] == 512.5
    assert line["minutes"] == pytest.approx(61 / 60)


def test_what_the_runs_cost_together():
    def system(time: float, attempt: int = 1, **watts: float) -> dict:
        return {"event": "system", "time": time, "attempt": attempt, "metrics": {"cpu_percent": 9.0, **watts}}

    both = {"gpu_0_watts": 300.0, "gpu_1_watts": 60.0}
    events = [system(0, -1, **both), system(5, -1, **both), system(100, **both), system(110, **both), system(9000, 2, **both)]
    assert comparing.watt_hours(events) == pytest.approx(1), "10 seconds of 360 W: no pause, and no step of another run"
    assert comparing.watt_hours([system(0), system(5)]) is None
    rows = [{"minutes": 90.0, "processes": 4, "watt_hours": None, "steps_taken_over": 0, "steps": 1000}]
    assert comparing.cost(rows) == "6.00 process hours"
    rows.append({"minutes": 30.0, "processes": None, "watt_hours": 310.4, "steps_taken_over": 400, "steps": 1000})
    assert comparing.cost(rows) == "6.50 process hours, 310 Wh of GPUs; 400 of 2,000 steps were taken over from other runs"


def test_integers_stay_integers_beside_missing_values(tmp_path):
    results = make_workspace(tmp_path, {"one": {"train.workers": 3}, "two": {"train.batch_size": "missing"}})
    runs, rows = read(results)
    comparing.table(rows).to_csv(tmp_path / "runs.csv", index=False)
    table = pd.read_csv(tmp_path / "runs.csv", dtype=str, keep_default_na=False).set_index("run")
    assert table.loc["one", "train.workers"] == "3" and table.loc["two", "train.workers"] == ""
    assert table.loc["one", "train.batch_size"] == "32"


def test_a_run_without_a_result_is_listed_and_leaves_the_comparison_incomplete(tmp_path):
    results = make_workspace(tmp_path, {"one": {}, "two": {}})
    subprocess.run(script(results, "one", "two"), check=True, capture_output=True)
    assert (results / "comparison/manifest.json").exists()
    why = "train_model failed: RuntimeError: <b>1: 2"
    done = subprocess.run([*script(results, "two"), "--unfinished", f"one: {why}"], check=True, capture_output=True, text=True)
    assert f"one: {why}" in done.stdout
    assert not (results / "comparison/manifest.json").exists()
    table = pd.read_csv(results / "comparison/runs.csv", dtype=str, keep_default_na=False).set_index("run")
    assert table.loc["one", ["status", "error"]].tolist() == ["train_model failed", "RuntimeError: <b>1: 2"]
    assert table.loc["two", ["status", "error"]].tolist() == ["finished", ""]
    page = (results / "comparison/index.html").read_text(encoding="utf-8")
    assert "RuntimeError: &lt;b&gt;1: 2" in page and "<b>" not in page


def test_only_settings_that_differ(tmp_path):
    changes = {"train.learning_rate": 1e-3, "model.source.path": "missing", "model.source": None, "model.arguments": {}, "train.warmup": 0}
    runs, _ = read(make_workspace(tmp_path, {"one": {}, "two": changes}))
    assert differing_settings([run["settings"] for run in runs]) == ["model.source.path", "train.learning_rate", "train.warmup"]


def test_best_first_and_runs_without_result_last(tmp_path):
    runs, rows = read(make_workspace(tmp_path, {"a": {"skill": 0.7}, "b": {"skill": 0.9}, "c": {"skill": 0.8}}))
    assert [line["run"] for line in rows] == ["b", "c", "a"]
    rows[0]["selected_value"] = math.nan
    assert [line["run"] for line in comparing.ranked(rows)] == ["c", "a", "b"]
    for line in rows:
        line["mode"] = "min"
    assert [line["run"] for line in comparing.ranked(rows)] == ["a", "c", "b"]


def test_seeds_are_grouped(tmp_path):
    seeds = {f"s-rate=1-seed={s}": {"skill": skill, "train.seed": s} for s, skill in enumerate((0.8, 0.85, 0.9))}
    groups = comparing.seed_groups(*read(make_workspace(tmp_path, seeds | {"other": {"train.learning_rate": 1.0}})))
    together = next(g for g in groups if len(g["runs"]) == 3)
    assert together["run"] == "s-rate=1"
    assert together["test_accuracy"] == pytest.approx(0.85)
    assert together["test_accuracy_deviation"] == pytest.approx(0.05)  # sqrt((0.05² + 0 + 0.05²) / 2)
    assert [g["test_accuracy_deviation"] for g in groups if g["runs"] == ["other"]] == [None]


def test_a_training_executed_otherwise_is_no_further_seed(tmp_path):
    """Run `two` has the settings and the seed of `base`, on other processes, which are no setting of a training."""
    groups = comparing.seed_groups(*read(make_workspace(tmp_path, {"base": {}, "two": {"skill": 0.9}, "seed": {"train.seed": 1}})))
    assert sorted(sorted(group["runs"]) for group in groups) == [["base", "seed"], ["two"]]


def test_runs_of_different_tasks_are_compared(tmp_path):
    changes = {"a": {"skill": 0.7}, "b": {"skill": 0.9}, "m": {"kind": "number", "skill": 0.6}, "n": {"kind": "number", "skill": 0.8}}
    changes = {name: change | {"train.batch_size": number} for number, (name, change) in enumerate(changes.items(), 1)}
    results = make_workspace(tmp_path, changes)
    runs, rows = read(results)
    assert [line["run"] for line in rows] == ["b", "a", "n", "m"]
    assert comparing.metrics_of(runs) == ["accuracy", "mae", "macro_f1", "loss"]
    assert [line["test_baseline"] is not None and line["test_baseline"] > 0 for line in rows] == [True] * 4
    done = subprocess.run(script(results, *changes), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "On phrases, by accuracy: b is ahead of a: test accuracy 0.900 against 0.700. The gap is 0.200" in done.stdout
    assert "On scores, by mae: n is ahead of m" in done.stdout and "paired bootstrap over the same examples" in done.stdout
    page = (results / "comparison/index.html").read_text()
    assert 'class="best"' not in page, "of two tasks none is the best"
    assert '<th scope="col">mae</th>' in page and '<th scope="col">macro F1</th>' in page
    table = pd.read_csv(results / "comparison/runs.csv", dtype=str, keep_default_na=False).set_index("run")
    assert table.loc["a", "test_mae"] == "" and float(table.loc["n", "test_mae"]) < float(table.loc["m", "test_mae"])


def test_curves_of_a_journal_with_a_second_attempt_and_a_torn_line(tmp_path):
    journal = tmp_path / "journal.jsonl"
    journal.write_text(
        '{"event": "attempt", "attempt": 1, "time": 100.0}\n'
        '{"event": "train", "step": 10, "time": 110.0, "attempt": 1, "metrics": {"loss": 1.0}}\n'
        '{"event": "train", "step": 20, "time": 120.0, "attempt": 1, "metrics": {"loss": 0.5}}\n'
        '{"event": "attempt", "attempt": 2, "time": 500.0}\n'
        '{"event": "train", "step": 20, "time": 505.0, "attempt": 2, "metrics": {"loss": 0.6}}\n'
        '{"event": "train", "step": 30, "time": 515.0, "attempt": 2, "metrics": {"loss": NaN}}\n'
        '{"event": "train", "step": 40, "ti'
    )
    events, offset = read_events(journal)
    points = curves(events)["train/loss"]
    assert points[:2] == [(10, 1.0), (20, 0.5)] and len(points) == 3 and math.isnan(points[2][1])
    assert seconds_training(events) == 20 + 15
    assert read_events(journal, offset) == ([], offset)


def test_the_script(tmp_path):
    results = make_workspace(tmp_path, {"good": {"skill": 0.95}, "bad<b>": {"skill": 0.6, "labelled": False, "train.learning_rate": 1.0}})
    done = subprocess.run(script(results, "good", "bad<b>"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[:3] == ["good", "0.950", "0.950"] and lines[2].split()[:4] == ["bad<b>", "0.600", "–", "–"]
    assert "good is ahead of bad<b>: dev accuracy 0.950 against 0.600" in done.stdout
    page = (results / "comparison/index.html").read_text()
    assert page.count('class="best"') == 1
    assert "bad&lt;b&gt;" in page and "bad<b>" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "") and "<script src" not in page, "the page must work offline"
    assert "Hardest examples" in page and "text, &#34;" in page
    assert (results / "comparison/manifest.json").is_file()


def test_looks_at_a_comparison_are_remembered(tmp_path):
    changes = {f"{name}-seed={seed}": {"train.seed": seed, "train.batch_size": size, "skill": skill + seed / 50}
               for name, size, skill in (("large", 64, 0.8), ("small", 8, 0.7)) for seed in range(3)}  # fmt: skip
    results = make_workspace(tmp_path, changes)

    def compared(seeds: int) -> subprocess.CompletedProcess:
        names = [name for name in changes if int(name[-1]) < seeds]
        return subprocess.run(script(results, *names), capture_output=True, text=True, check=True)

    first, again, more = compared(2), compared(2), compared(3)
    assert "95 % interval" in first.stdout and "before" not in first.stdout
    assert "95 % interval" in again.stdout and "before" not in again.stdout, "the same seeds are no new look"
    assert "98.75 % interval" in more.stdout and "They were compared once before with fewer or other seeds" in more.stdout
    assert "compared once before" in (results / "comparison/index.html").read_text(encoding="utf-8")
    looks = results / "comparison/looks.json"
    looks.write_text(looks.read_text(encoding="utf-8").replace("[", "[9, ", 1), encoding="utf-8")
    damaged = compared(3)
    assert "looks.json: cannot be used" in damaged.stderr and "95 % interval" in damaged.stdout
    assert "looks.json was damaged" in (results / "comparison/index.html").read_text(encoding="utf-8")


def test_a_missing_result_is_reported_with_its_path(tmp_path):
    results = make_workspace(tmp_path, {"one": {}})
    (results / "runs/one/selection/selection.json").unlink()
    with pytest.raises(SystemExit, match="selection.json: .*No such file"):
        comparing.read_run(results / "runs/one")
