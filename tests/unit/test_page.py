"""The comparison page in a real browser, wide and narrow, light and dark; and what it shows of the models' mistakes."""

import html
import io
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import limits
import numpy as np
import pandas as pd
import pytest
from workspace import make_workspace

import compare_runs
from snaketrain.evaluation import comparing
from snaketrain.evaluation.page import hardest, mistakes_of, page, spikes_of
from snaketrain.evaluation.predictions import Predictions
from snaketrain.evaluation.verdicts import Looks
from snaketrain.runtime.manifests import Manifest, digests, log_digests, read_manifest, write_manifest

pytestmark = pytest.mark.lengthy

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (1200, 390)
TRUNK = "20-steps-of-<b>-learning_rate=1e-05-batch_size=16-weight_decay=0.1"

# each frame reports axe's findings; a missing answer must not look like an empty list
REPORT = """
addEventListener("load", async () => {
  document.querySelectorAll("details").forEach(each => each.open = true);
  const found = await axe.run(document, {resultTypes: ["violations"]});
  const root = document.documentElement;
  parent.report({
    width: innerWidth, dark: matchMedia("(prefers-color-scheme: dark)").matches, ground: getComputedStyle(document.body).backgroundColor,
    beyond: root.scrollWidth - root.clientWidth,
    pictures: [...document.querySelectorAll("img, figure svg")].map(each => [getComputedStyle(each.querySelector(".lines") ?? each).filter, each.naturalWidth ?? each.querySelector("polyline") !== null, each.getBoundingClientRect().right <= innerWidth]),
    left: [...document.querySelectorAll("img, figure svg")].map(each => Math.round(each.getBoundingClientRect().left)),
    violations: found.violations.map(each => [each.impact, each.id, each.nodes[0].html]), passes: found.passes.length,
  });
});
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """The page of two configurations with three seeds, one run that is worse than a constant answer, and one that failed."""
    runs = {f"rate=1e-3-seed={seed}": {"skill": 0.9 + seed / 100, "train.seed": seed} for seed in range(3)}
    runs |= {f"rate=1e-4-seed={seed}": {"skill": 0.8, "train.seed": seed, "train.learning_rate": 1e-4} for seed in range(3)}
    results = make_workspace(tmp_path_factory.mktemp("page"), runs | {"poor<b>": {"skill": 0.3, "train.learning_rate": 1.0}})
    for run in (results / "runs").iterdir():
        copy_as_set(run, "imdb")
        if run.name.startswith("rate=1e-4"):
            continue_trunk(run / "training", results / "trunks" / TRUNK / "training", 20)
    return made_page(results, {"failed": "train_model failed: <b>"}, {"slow": "stopped at rung 1 of search rate, step 9: <b>"})


def copy_as_set(run: Path, name: str) -> None:
    """The results on the test set, used as those of an evaluation set too, with two checkpoints on it."""
    folder = run / f"sets/{name}"
    folder.mkdir(parents=True)
    shutil.copy(run / "evaluation/test_results.json", folder / f"{name}_results.json")
    checkpoints = [{"step": step, "metrics": {"accuracy": step / 100}} for step in (30, 60)]
    (folder / "checkpoints.json").write_text(json.dumps({"set": name, "checkpoints": checkpoints}))
    write_manifest(
        folder / "manifest.json", Manifest("evaluate_set", "1", {}, {}, digests(folder, [path.name for path in folder.iterdir()]))
    )


def continue_trunk(run: Path, trunk: Path, step: int) -> None:
    trunk.mkdir(parents=True, exist_ok=True)
    (trunk / "journal.jsonl").write_text(json.dumps({"event": "train", "step": step}) + "\n")
    reused = {"event": "reused", "step": step, "training": str(trunk), "time": 0.0, "attempt": 0}
    warning = {"event": "warning", "step": step, "message": "rank 2 on <b> is slow", "time": 0.0, "attempt": 0}
    skipped = {"event": "bad_step", "step": step + 1, "examples": [1], "time": 0.0, "attempt": 1}
    (run / "journal.jsonl").write_text(
        "".join(f"{json.dumps(each)}\n" for each in (reused, warning, skipped)) + (run / "journal.jsonl").read_text()
    )
    if (run / "manifest.json").is_file():
        write_manifest(run / "manifest.json", replace(read_manifest(run / "manifest.json"), logs=log_digests(run, ["journal.jsonl"])))


def made_page(results: Path, unfinished: dict[str, str], stopped: dict[str, str]) -> str:
    folders = sorted((results / "runs").iterdir())
    runs = [comparing.read_run(folder, [path.name for path in folder.glob("sets/*")]) for folder in folders]
    return page(compare_runs.compare(runs, results / "runs", unfinished, stopped, Looks()))


@pytest.fixture(scope="module")
def seen(text, tmp_path_factory) -> dict[tuple[int, str], dict]:
    """What the browser reports, by width and theme."""
    folder = tmp_path_factory.mktemp("browser")
    axe = Path(find_spec("axe_playwright_python").submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")
    inner = html.escape(text.replace("</body>", f"<script>{axe}</script><script>{REPORT}</script></body>"))
    frames = "".join(f'<iframe style="width: {width}px; height: 900px" srcdoc="{inner}"></iframe>' for width in WIDTHS)
    collect = "const all = []; function report(one) { all.push(one); found.textContent = JSON.stringify(all); }"
    (folder / "frames.html").write_text(f'<!doctype html><pre id="found"></pre><script>{collect}</script>{frames}', encoding="utf-8")
    return {
        (each["width"], name): each
        for name, number in (("dark", 0), ("light", 1))
        for each in reported(folder / "frames.html", f"--blink-settings=preferredColorScheme={number}")
    }


def reported(file: Path, *options: str) -> list[dict]:
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--window-size=1300,1000"]
    for _ in range(3):  # on a busy machine the browser may give up before
        done = subprocess.run(
            [*command, *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=limits.seconds(120)
        )
        answer = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
        if answer and len(found := json.loads(html.unescape(answer[1]) or "[]")) == len(WIDTHS):
            return found
    raise AssertionError(f"the browser reported nothing: {done.stderr[-2000:]}")


@pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_no_accessibility_problem(seen, width, theme):
    found = seen[width, theme]
    assert found["dark"] == (theme == "dark") and found["ground"] == ("rgb(21, 24, 28)" if theme == "dark" else "rgb(255, 255, 255)")
    assert found["violations"] == [] and found["passes"] > 20
    assert found["beyond"] == 0, "the page itself is not scrolled sideways"
    assert len(found["pictures"]) == 7 and all(loaded and whole for _, loaded, whole in found["pictures"])
    if width == 390:
        assert len(set(found["left"])) == 1, "panels are stacked"
    else:
        assert len(set(found["left"][1:4])) == 3, "panels are side by side"  # after the one of the setting
    assert {shown == "none" for shown, *_ in found["pictures"]} == {theme == "light"}, "their colours are inverted on a dark page"


SORT = """
addEventListener("load", () => {
  const [seeds, table] = document.querySelectorAll("table.sortable"), body = table.tBodies[0];
  const shown = () => [...body.rows].filter(row => !row.hidden);
  const column = [...table.tHead.rows].at(-1).querySelectorAll("th button")[COLUMN], values = () => shown().map(row => row.cells[COLUMN].innerText);
  const all = shown().length, more = table.parentElement.nextElementSibling;
  more.click(); const everything = shown().length;
  column.click(); const down = values();
  column.click(); const up = values();
  const filter = table.parentElement.previousElementSibling;
  filter.value = "1,0"; filter.dispatchEvent(new Event("input"));
  found.textContent = JSON.stringify({all, everything, down, up, filtered: shown().length});
});
"""


def told(file: Path) -> dict:
    """What a script in the page wrote into the element `found`."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limits.seconds(120))
    return json.loads(html.unescape(re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)[1]))


@pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium")
def test_tables_fold_sort_by_numbers_and_filter(text, tmp_path):
    """Its runs thirty times, with other figures of memory, beyond a thousand too."""
    head, body = text.split('aria-label="Table of runs">')
    rows, rest = body.split("</tbody>", 1)
    above, row = rows.split("<tbody>")[0] + "<tbody>", re.search(r"<tr.*?</tr>", rows.split("<tbody>")[1], re.DOTALL)[0]
    cells = re.findall(r"<td.*?</td>", row, re.DOTALL)
    place = len(cells) - 3  # memory
    many = "".join(row.replace(cells[place], f"<td>{number:,}</td>") for number in range(400, 1600, 40))
    page = f'{head}aria-label="Table of runs">{above}{many}</tbody>{rest}'
    script = f'<pre id="found"></pre><script>{SORT.replace("COLUMN", str(place + 1))}</script></body>'
    (tmp_path / "page.html").write_text(page.replace("</body>", script), encoding="utf-8")
    found = told(tmp_path / "page.html")
    in_order = [f"{number:,}" for number in range(400, 1600, 40)]
    assert (found["all"], found["everything"]) == (20, 30)
    assert found["up"] == in_order and found["down"] == in_order[::-1]
    assert found["filtered"] == len([cell for cell in in_order if "1,0" in cell])


POINT = """
addEventListener("load", () => {
  const figure = document.querySelector("#curves-1"), svg = figure.querySelector("svg"), {left, top, width, height} = svg.getBoundingClientRect();
  const labels = () => [...svg.querySelectorAll(".grid text")].map(each => each.textContent);
  svg.setPointerCapture = () => {};  // of a pointer that there is
  const send = (type, x, y) => svg.dispatchEvent(new PointerEvent(type, {clientX: left + x * width, clientY: top + y * height}));
  const whole = labels();
  send("pointermove", 0.99, 0.99); const last = figure.querySelector("output").textContent;
  send("pointerdown", 0.6, 0.5); send("pointermove", 0.9, 0.8); send("pointerup", 0.9, 0.8);
  const zoomed = labels();
  send("pointerdown", 0.5, 0.5); send("pointerup", 0.5, 0.5); const clicked = labels();
  svg.dispatchEvent(new MouseEvent("dblclick"));
  found.textContent = JSON.stringify({whole, last, zoomed, clicked, again: labels()});
});
"""


@pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium")
def test_curves_tell_their_values_and_zoom(text, tmp_path):
    (tmp_path / "page.html").write_text(text.replace("</body>", f'<pre id="found"></pre><script>{POINT}</script></body>'), encoding="utf-8")
    found = told(tmp_path / "page.html")
    name, step = re.fullmatch(r"(\S+): 0\.\d+ \(0\.\d+ to 0\.\d+\) at step (\d+)", found["last"]).groups()
    assert (name, step) == ("rate=1e-3", "60"), "the nearest to the lower right corner"
    assert found["whole"][:3] == ["20", "40", "60"] and found["again"] == found["whole"]
    assert found["zoomed"] == found["clicked"] != found["whole"], "a click alone does not zoom"
    steps = list(map(float, found["zoomed"][:-1]))
    assert 30 < steps[0] < 60 and "20" not in found["zoomed"]


def test_the_page_shows_no_secret_and_half_of_none(tmp_path, monkeypatch):
    """Also where a long setting is cut off in the middle of it."""
    monkeypatch.setenv("LAB_TOKEN", secret := "Xk29" * 12)
    hook = "https://hooks.slack.com/services/T0123/B4567/" + "q8Zr7LmN" * 3
    results = make_workspace(tmp_path, {"one": {"train.task.arguments.place": hook}, "two": {"train.task.arguments.place": f"of {secret}"}})
    shown = made_page(results, {"failed": f"train_model failed: {secret} refused"}, {})
    assert "train_model failed: *** refused" in shown and "hooks.slack.com/services/***" in shown
    assert "q8Zr" not in shown and "Xk29" not in shown


def test_spikes_and_skipped_steps_are_named_with_the_command_that_shows_them():
    losses = [(step, 1.0 + 0.01 * (step % 5)) for step in range(1, 61)]
    losses[9], losses[44], losses[50] = (10, 9.0), (45, 5.0), (51, math.nan)  # the first has too few before it
    skipped = [{"event": "bad_step", "step": step} for step in (51, 7, 51)]
    found = spikes_of({"run": "a b", "curves": {"train/loss": losses}, "events": skipped})
    assert [(each.step, each.loss) for each in found] == [(45, 5.0), (7, None), (51, None)]
    assert found[0].usual == 1.02 and found[0].command == "snaketrain inspect 'a b' --step 45"
    assert spikes_of({"run": "a", "curves": {}, "events": []}) == []


def test_the_page_begins_with_the_verdict_and_warnings(text):
    assert text.index("rate=1e-3 is better than rate=1e-4: test accuracy 0.910 against 0.800 (3 seeds each).") < text.index("<h2>")
    assert text.index("Warning: no better than their baseline, the best constant answer: poor&lt;b&gt; (test accuracy 0.300") < text.index(
        "<h2>"
    )
    assert "<b>" not in text
    assert "<code>snaketrain inspect rate=1e-4-seed=0 --step 21</code>" in text
    assert "rank 2 on &lt;b&gt; is slow; no update in 1 step, whose" in text
    legend = re.findall(r"var\(--c(\d)\); border-top-style: solid\"></span>([^<]*)</li>", text)
    assert legend == [("0", "rate=1e-3 (3 seeds)"), ("1", "rate=1e-4 (3 seeds)"), ("2", "poor&lt;b&gt;")]


def test_mistakes_of_the_best_run_are_open(text):
    checkpoints, spikes, best, *others = re.findall(r"<details( open)?>\s*<summary>([^<]*)</summary>", text)
    assert checkpoints == ("", "All kept checkpoints on the evaluation sets")
    assert spikes == ("", "Spikes of the training loss, and steps without an update")
    assert best == (" open", "rate=1e-3-seed=2, on the test set") and [name for _, name in others] == [
        "rate=1e-4-seed=0, on the test set",
        "poor&lt;b&gt;, on the test set",
    ]
    cells = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    assert re.search(
        r"By slice column value examples accuracy beside all examples source web 133 0\.\d+ \[0\.\d+, 0\.\d+\] source book 67 ", cells
    )
    assert "predicted true negative positive" in cells and "class precision recall F1 examples" in cells


def test_many_settings_are_listed_below_each_other(tmp_path):
    changes = {f"model.arguments.size_{n}": n for n in range(4)}
    wide = made_page(make_workspace(tmp_path, {"one": {}, "two": changes}), {}, {})
    table = wide[wide.index("Settings that differ") : wide.index("Where they come from")]
    first, *runs = re.findall(r'<th scope="col" class="text">([^<]*)</th>', table)
    assert first == "setting" and sorted(runs) == ["one", "two"]
    assert re.findall(r'<th scope="row" class="run">([^<]*)</th>', table) == list(changes)


def test_hardest_examples_are_the_most_confident_mistakes():
    columns = {
        "id": "0123",
        "text": ["a", "b" * 400, "c", "d"],
        "label": "xyxy",
        "predicted": "xxyx",
        "probability": ["0.99", "0.6", "0.8", "0.7"],
    }
    table = pd.DataFrame({name: list(values) for name, values in columns.items()})
    cells, _ = hardest(Predictions("class", ["x", "y"], {}, table))
    assert [cell["id"] for cell in cells] == ["2", "3", "1"] and cells[0] == {
        "id": "2", "text": "c", "true": "x", "predicted": "y", "probability": "0.800"
    }  # fmt: skip
    assert cells[2]["text"] == "b" * 299 + "…"


def test_hardest_examples_of_other_kinds():
    numbers = pd.DataFrame({"id": ["0", "1", "2"], "label": ["1", "2", "3"], "predicted": ["1", "4", "2.5"]})
    cells, _ = hardest(Predictions("number", [], {}, numbers))
    assert [(cell["id"], cell["error"]) for cell in cells] == [("1", "2.000"), ("2", "0.500")]
    several = pd.DataFrame({"id": ["0", "1"], "label": ["a|b", ""], "predicted": ["a", "b"], "p_a": ["0.9", "0.1"], "p_b": ["0.2", "0.95"]})
    cells, _ = hardest(Predictions("classes", ["a", "b"], {}, several))
    assert [(cell["id"], cell["error"]) for cell in cells] == [("1", "0.950"), ("0", "0.800")]
    losses = pd.DataFrame({"id": ["0", "1"], "loss": ["0.5", "2.5"]})
    assert [cell["loss"] for cell in hardest(Predictions(None, [], {}, losses))[0]] == ["2.500", "0.500"]
    assert hardest(Predictions(None, [], {}, losses[["id"]]))[0] == []


def test_with_many_classes_the_most_confused_pairs_are_listed():
    names, counts = [f"c{n}" for n in range(50)], np.diag(np.full(50, 5))
    counts[3, 7], counts[20, 1] = 4, 2
    classes = {name: {"precision": 1.0, "recall": 1.0, "f1": 1.0, "examples": n} for n, name in enumerate(names)}
    found = mistakes_of("r", {"kind": None, "split": "test", "classes": classes, "confusion": counts.tolist()}, None)
    assert found.confusion is None and found.confused == [("c3", "c7", 4), ("c20", "c1", 2)]
    assert len(found.classes) == 40 and next(iter(found.classes)) == "c49" and found.rarer == 10
    assert mistakes_of("r", {"kind": None, "split": "test"}, None) is None


def test_of_numbers_the_page_shows_predicted_against_true(tmp_path):
    results = make_workspace(tmp_path, {"one": {"kind": "number"}, "two": {"kind": "number", "train.learning_rate": 1.0}})
    text = made_page(results, {}, {})
    assert text.count("<figcaption>Predicted against true") == 2
    (hardest,) = (table for table in pd.read_html(io.StringIO(text[text.index("Hardest examples") :]))[:1])
    assert {len(cell.partition(".")[2]) for cell in hardest["predicted"].astype(str)} <= {1, 2, 3}, "as many digits as one reads"


def test_evaluation_sets_are_shown_with_their_checkpoints(text):
    tables = pd.read_html(io.StringIO(text))
    (of_sets,) = (table for table in tables if ("imdb", "accuracy") in table.columns)
    assert of_sets["imdb", "accuracy"].str.startswith("0.9").sum() == 3 and len(of_sets) == 7
    (means,) = (table for table in tables if "imdb accuracy" in table.columns)
    assert means["imdb accuracy"].tolist() == means["test accuracy"].tolist()
    (checkpoints,) = (table for table in tables if "set" in table.columns)
    assert checkpoints[["set", "step", "accuracy"]].head(2).values.tolist() == [["imdb", "30", 0.3], ["imdb", "60 ★", 0.6]]
