"""The command `snaketrain`, on the results of a finished workflow."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import limits
import pytest
import yaml

from pipeline import workspace as tiny

COMMAND = [sys.executable, "-m", "snaketrain.cli"]
CONFIGURATION = "config/config.yaml"


@pytest.fixture(scope="module")
def folder(workspace, tmp_path_factory):
    copy = tmp_path_factory.mktemp("commands") / "copy"
    shutil.copytree(workspace, copy, symlinks=True)
    return copy


def snaketrain(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(tiny.REPOSITORY / "workflow/scripts")},
        capture_output=True,
        text=True,
        timeout=limits.seconds(300),
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_help_lists_each_command_of_the_core_and_of_the_extras(folder):
    text = snaketrain(folder, "--help")
    for name in (
        "run",
        "check",
        "plan",
        "why",
        "diff",
        "status",
        "script",
        "ui",
        "predict",
        "publish",
        "reproduce",
        "verify",
        "inspect",
        "clean",
        "export",
    ):
        assert f"\n  {name} " in text
        usage, *others = snaketrain(folder, name, "--help").splitlines()
        assert usage.startswith(f"usage: snaketrain {name} [") and len(others) > 3
    assert snaketrain(folder, "runs", code=1).startswith("snaketrain: there is no command 'runs'.")


def test_why_says_which_settings_changed(folder):
    assert "Nothing would run" in snaketrain(folder, "why", CONFIGURATION)
    found = snaketrain(folder, "why", CONFIGURATION, "small", "--config", "train={epochs: 3}", "train.batch_size=8", "evaluate.bins=3")
    trained, *others = [line.split(maxsplit=2) for line in found.splitlines()]
    assert [trained, others[0]] == [["train_model", "small", "train.batch_size: 16 -> 8"], ["train.epochs:", "2.0", "-> 3.0"]]
    assert {line[0] for line in others} >= {"select_checkpoint", "evaluate_model"} and "other" not in found


def test_diff_says_where_runs_part(folder):
    found = snaketrain(folder, "diff", "small", "other").splitlines()
    assert found[0] == "small and other part at step 1:"
    assert found[1] == "  train.seed: 42 and 1"
    assert found[2].startswith("Logged losses are equal up to step 0. The first that differs is eval/loss at step 0: ") and len(found) == 3
    assert snaketrain(folder, "diff", "small", "small").splitlines()[-1].endswith("that both have logged are equal, to the bit.")
    assert "Did you mean 'small'? There are: other, small." in snaketrain(folder, "diff", "smal", "other", code=1)


def test_why_knows_the_runs(folder):
    told = snaketrain(folder, "why", CONFIGURATION, "smal", code=1)
    assert told == f"{CONFIGURATION}: has no run 'smal'. Did you mean 'small'? It has: other, small.\n"
    assert snaketrain(folder, "why", "smal", code=1) == told, "without a file, of the default"
    assert "nowhere.yaml: cannot be read" in snaketrain(folder, "why", "nowhere.yaml", code=1)


def test_without_a_file_it_is_the_default_that_is_checked(folder):
    assert "No errors in the configuration of 2 runs." in snaketrain(folder, "check")


def test_check_machine_tries_each_thing_and_names_what_fails(folder, tmp_path, monkeypatch):
    squeue = tmp_path / "bin/squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho no controller >&2; exit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    assert "--machine takes no configuration" in snaketrain(folder, "check", "--machine", CONFIGURATION, code=2)
    found = dict(line.split(maxsplit=1) for line in snaketrain(folder, "check", "--machine", code=1).splitlines() if line[0] != " ")
    assert found["gloo"].startswith("2 processes of torchrun exchanged a sum") and "torch 2." in found["packages"]
    assert found["MLflow"].startswith(f"a database was written in {folder}") and not list(folder.glob(".mlflow-*"))
    assert found["SLURM"].startswith("does not work: ") and "no controller" in found["SLURM"]


def test_run_refuses_a_configuration_with_errors_and_finds_profiles(folder):
    assert "Nothing to be done" in snaketrain(folder, "run", CONFIGURATION, "--quiet", "rules")
    assert "no folder, and none of local, pbs, slurm" in snaketrain(folder, "run", CONFIGURATION, "--profile", "slrum", code=1)
    (folder / "wrong.yaml").write_text(yaml.safe_dump(tiny.configuration() | {"trian": {}}))
    assert "wrong.yaml" in (text := snaketrain(folder, "run", "wrong.yaml", code=1)) and "Did you mean 'train'?" in text


def test_export_copies_a_model_that_is_as_it_was_written(folder, tmp_path):
    own = folder / "results/runs/small/training/code/parts/mine.py"
    own.parent.mkdir(parents=True)
    own.write_text("FACTOR = 2\n")
    snaketrain(folder, "export", "small", str(tmp_path / "mine"))
    model = folder / "results/runs/small/selection/model"
    mine = tmp_path / "mine"
    card = (model / "README.md").read_bytes()
    assert {path.name: path.read_bytes() for path in model.iterdir()} == {
        path.name: path.read_bytes() for path in mine.iterdir() if path.is_file()
    } | {"README.md": card}
    here = rb'"[^"]*results/runs/small/selection/model'  # from where it was evaluated
    assert (mine / "README.md").read_bytes() == re.sub(here, b'"mine', card) != card
    assert {path.name for path in (mine / "run").iterdir()} >= {"run.yaml", "run.json", "journal.jsonl", "evaluation", "comparison.html"}
    assert (mine / "run/code/parts/mine.py").read_text() == own.read_text(), "without which nobody can load a model of one's own"
    assert "No errors in the configuration of 1 run." in snaketrain(folder, "check", str(mine / "run/run.yaml"))
    assert "Nothing would run" in snaketrain(folder, "why", str(mine / "run/run.yaml"), "small"), "it has the settings of the run"
    snaketrain(folder, "export", "small", str(tmp_path / "mine.tar.gz"))
    shutil.unpack_archive(tmp_path / "mine.tar.gz", tmp_path / "unpacked")
    assert [path.relative_to(mine) for path in sorted(mine.rglob("*"))] == [
        path.relative_to(tmp_path / "unpacked/mine") for path in sorted((tmp_path / "unpacked/mine").rglob("*"))
    ]
    assert "is there already and not empty" in snaketrain(folder, "export", "small", str(tmp_path / "mine"), code=1)
    assert "Runs that have: other, small." in snaketrain(folder, "export", "smal", str(tmp_path / "x"), code=1)
    settings = (model / "config.json").read_text()
    (model / "config.json").write_text(settings + " ")
    assert "config.json: is not what was written" in snaketrain(folder, "export", "small", str(tmp_path / "x"), code=1)
    (model / "config.json").write_text(settings)
    assert not (tmp_path / "x").exists()
    assert "Commit: small: test accuracy 0." in snaketrain(folder, "publish", "small", "--to", "me/small", "--dry-run")


def test_clean_deletes_what_no_run_needs_once_it_is_told_so(folder):
    """A dot file, other runs, and what is not a result of a stage stay."""
    runs = folder / "results/runs"
    (folder / "fewer.yaml").write_text(yaml.safe_dump(tiny.configuration() | {"runs": {"small": {"train.learning_rate": 1e-3}}}))
    kept = {path for path in (folder / "results").rglob("*") if runs / "other" not in (path, *path.parents)}
    assert "Nothing to delete" in snaketrain(folder, "clean", "fewer.yaml", CONFIGURATION)
    superseded = runs / "small/superseded/training-1"
    superseded.mkdir(parents=True)
    text = snaketrain(folder, "clean", "fewer.yaml")
    assert (
        "results/runs/other\n" in text and "results/runs/small/superseded\n" in text and "nothing was deleted; --yes deletes them." in text
    )
    assert (runs / "other/training/manifest.json").exists() and "results/runs/small\n" not in text
    assert "Deleted " in snaketrain(folder, "clean", "fewer.yaml", "--yes")
    assert not (runs / "other").exists() and not superseded.exists() and all(path.exists() or path.is_symlink() for path in kept)
    assert [run["run"] for run in json.loads(snaketrain(folder, "status", "--json"))] == ["small"]
