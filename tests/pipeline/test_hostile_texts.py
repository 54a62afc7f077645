"""Paths and settings with all special characters of shells, Snakemake and argparse: the pipeline runs, and nothing in them is executed.

One of its two runs fails at first, and the comparison shows the other one.
"""

import csv
import json
import re
import shlex
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from pipeline.workspace import configuration, sentences, snakemake, write_tokenizer
from snaketrain.tracking.database import SQLITE, readable
from snaketrain.tracking.mlflow_store import Store

TEXT = """-it's "$(touch PWNED)" `touch PWNED` {run} {0} \\n ü 日本 & ; | > < * ? [a] ! # %s ~ $HOME\n--output x"""
FOLDER = TEXT.replace("{run} {0}", "")  # Snakemake works in no folder with braces in its name
PLAIN = "$(touch PWNED) `touch PWNED` it's"  # of what is drawn
ON_END = 'printf "%s|%s|%s|%s" "$SNAKETRAIN_STATE" "$SNAKETRAIN_REASON" "$SNAKETRAIN_FIGURES" "$SNAKETRAIN_TEST_ACCURACY" > "told-$SNAKETRAIN_RUN"'
RIGHT = "from snaketrain.tasks.text_classification import TextClassification as Mine\n"


def hostile(folder: Path) -> Path:
    """A workspace in which every file name and free text has such characters; the run `wrong` fails."""
    folder.mkdir(parents=True)
    (folder / TEXT).mkdir()
    with open(folder / TEXT / f"{TEXT}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([(TEXT, f"{TEXT} 2", "kept"), *((*row, TEXT) for row in sentences(160))])
    write_tokenizer(folder / f"{TEXT} tokenizer")
    (folder / f"{TEXT}.py").write_text(f"{RIGHT}raise RuntimeError({TEXT!r})\n", encoding="utf-8")
    usual = configuration()
    data = {
        "train": {"path": f"{TEXT}/{TEXT}.csv"},
        "text": TEXT,
        "label": f"{TEXT} 2",
        "labels": {0: PLAIN, 1: f"-{PLAIN}"},
        "where": {"kept": TEXT},
        "tokenizer": {"path": f"{TEXT} tokenizer"},
    }
    config = usual | {
        "data": usual["data"] | data,
        "train": usual["train"] | {"epochs": 1, "evaluations_per_epoch": 1},
        "tracking": {"experiment": TEXT, "notes": TEXT, "register_models": False, "on_end": ON_END},
        "runs": {
            "right": {},
            "wrong": {"train.task": {"use": f"{TEXT}.py:Mine"}},
        },
    }
    (folder / f"{TEXT}.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder


def executed(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name in ("PWNED", "x")]


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "results/comparison/runs.csv").set_index("run")


def first_command(log: Path) -> str:
    """The command with which a log begins: the first line, or several if a text in it has several."""
    command = ""
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        command += line
        try:
            shlex.split(command)
        except ValueError:  # within quotes
            continue
        return command
    raise AssertionError(f"{log}: no whole command")


@pytest.fixture(scope="module")
def workspace_of_two(tmp_path_factory):
    return hostile(tmp_path_factory.mktemp("hostile") / FOLDER)


def test_one_failed_run_does_not_prevent_the_comparison(workspace_of_two):
    folder = workspace_of_two
    failed = snakemake(folder, "--keep-going", "--configfile", f"{TEXT}.yaml", check=False)
    assert failed.returncode == 1
    assert executed(folder.parent) == []
    said = f"RuntimeError: {TEXT.splitlines()[0]}"
    found = table(folder)
    assert list(found["status"]) == ["finished", "train_model failed"]
    assert found.loc["wrong", "error"] == said and found.loc["right", "test_accuracy"] > 0
    page = (folder / "results/comparison/index.html").read_text(encoding="utf-8")
    assert "Without a result" in page and "train_model failed: RuntimeError" in page
    printed = failed.stdout + failed.stderr
    assert f"wrong: train_model failed: {said}" in printed and f"train_model        wrong  failed: {said}" in printed
    assert printed.count("Traceback (most recent call last)") == 1 and "  log: logs/train_model/wrong.log\n" in printed
    assert (
        "4 of 10 jobs did not finish: 1 failed, 3 not started." in printed.splitlines()[-1]
        and "code." not in printed
        and "shell:" not in printed
    )
    assert f"wrong: train_model failed: {said}" in (folder / "logs/compare_runs.log").read_text(encoding="utf-8")
    # which run ended with which metrics, though nothing in the text was executed
    assert (folder / "told-wrong").read_text(encoding="utf-8").startswith(f"failed|failed: RuntimeError: {TEXT}|{{}}|")
    assert (folder / "told-right").read_text().endswith(f"|{found.loc['right', 'test_accuracy']:.5g}")
    with readable(f"{SQLITE}{folder / 'mlflow.db'}") as uri:  # which MLflow cannot open at its place
        client = Store(uri).client
        runs = client.search_runs([each.experiment_id for each in client.search_experiments()], "tags.`pipeline.stage` = 'train'")
        statuses = {run.data.tags["pipeline.run"]: run.info.status for run in runs}
        (right,) = (run for run in runs if run.info.status == "FINISHED")
        files = {file.path for file in client.list_artifacts(right.info.run_id, "evaluation")}
    assert statuses == {"right": "FINISHED", "wrong": "FAILED"} and "evaluation/test_results.json" in files
    again = snakemake(folder, "--dry-run", "--quiet", "rules", "--configfile", f"{TEXT}.yaml", "--config", "tracking={notes: other}")
    jobs = dict(line.split() for line in again.stdout.splitlines() if re.fullmatch(r"\w+ +\d+", line))
    assert jobs == {"train_model": "1", "select_checkpoint": "1", "evaluate_model": "1", "compare_runs": "1", "all": "1", "total": "5"}


def test_the_command_in_its_log_repeats_the_job_that_failed(workspace_of_two):
    folder = workspace_of_two
    (folder / f"{TEXT}.py").write_text(RIGHT, encoding="utf-8")
    command = first_command(folder / "logs/train_model/wrong.log")
    subprocess.run(["bash", "-c", command], cwd=folder, check=True, capture_output=True)
    training = folder / "results/runs/wrong/training"
    assert json.loads((training / "manifest.json").read_text(encoding="utf-8"))["facts"]["run"] == "wrong"
    recorded = json.loads((training / "run.json").read_text(encoding="utf-8"))
    assert (recorded["notes"], recorded["experiment"]) == (TEXT, TEXT)
    assert executed(folder.parent) == []
