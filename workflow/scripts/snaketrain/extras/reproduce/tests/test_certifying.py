"""Which statements are said to have changed, whether replays executed them, and what a certificate holds for."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import limits
import pytest
from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY, configuration, make_workspace, snakemake

from snaketrain.extras.reproduce import certify
from snaketrain.extras.reproduce.certificates import FILE, as_certified
from snaketrain.extras.reproduce.certify import Change, NotCertified, segments
from snaketrain.extras.reproduce.changed_lines import difference, statements
from snaketrain.runtime.loaded_code import digest_of_source
from snaketrain.runtime.manifests import read_checked, write_checked
from snaketrain.runtime.run_folder import take_over
from snaketrain.runtime.stages import Job, JobSettings, previous_manifest

FOLDER = REPOSITORY / "workflow/scripts/snaketrain/extras/reproduce"
THEN = '''
"""A module."""
import math

LIMIT = 3

class Counter(dict):
    STEP = 1

    def add(self, number):
        """Adds."""
        if number > LIMIT:
            number = LIMIT
        else:
            number += 1
        self.total = number
        try:
            return self.total
        except KeyError:
            raise


def unused():
    return math.pi
'''
EDITS = {  # what becomes of a part, the lines that must be executed, and the names that something executed must mention
    "docstring": ('"""Adds."""', '"""Adds up."""  # and more', [], set()),
    "statement": ("number += 1", "number += 2", [15], set()),
    "condition": ("number > LIMIT", "number >= LIMIT", [12], set()),
    "header": ("def add(self, number)", "def add(self, number=0)", [10, 12], set()),
    "removed": ("        self.total = number\n", "", [12, 16], set()),
    "moved into a block": ("        self.total = number\n", "            self.total = number\n", [16], set()),
    "handler": ("KeyError", "ValueError", [19], set()),
    "constant": ("LIMIT = 3", "LIMIT = 4", [5], {"LIMIT"}),
    "constant of a class": ("STEP = 1", "STEP = 2", [8], {"STEP"}),
    "import": ("import math", "import cmath as math", [3], {"math"}),
    "base": ("Counter(dict)", "Counter(list)", [7], {"Counter"}),
    "removed function": ("def unused():\n    return math.pi\n", "", [], set()),
    "added function": ("def unused", "def new():\n    return 1\n\ndef unused", [23, 24], set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_must_be_executed(edit):
    old, new, lines, names = EDITS[edit]
    assert THEN.count(old) == 1
    now = THEN.replace(old, new)
    found = difference(statements(THEN), statements(now))
    assert sorted({each.lines.start for each in found.required}) == lines
    assert found.names == names
    assert bool(found.changed or found.removed) == (edit != "docstring")


def test_lines_of_all_processes_and_threads_are_observed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, threading\n"
        "def called(number):\n    return number\n"
        "def never():\n    return 1\n"
        "def forked():\n    return 2\n"
        "threading.Thread(target=called, args=(1,)).start()\n"
        "if os.fork() == 0:\n    forked()\n    os._exit(0)\n"
        "os.wait()\n"
        "print(sys.argv[1:], __name__)\n"
    )
    lines = tmp_path / "lines.json"
    lines.write_text(json.dumps({str(script): [3, 5, 7, 13]}))
    done = subprocess.run(
        [sys.executable, FOLDER / "observed_training.py", lines, script, "--option"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['--option'] __main__\n"
    assert sorted((tmp_path / "lines.executed").read_text().splitlines()) == sorted(f"{script}:{line}" for line in (3, 7, 13))


# --- the former code


def recorded(tmp_path: Path, former: str, digest: str) -> SimpleNamespace:
    name = "snaketrain.training.step"
    (tmp_path / "code/workflow/scripts/snaketrain/training").mkdir(parents=True)
    (tmp_path / "code/workflow/scripts/snaketrain/training/step.py").write_text(former)
    return SimpleNamespace(run={"code": {name: digest}, "git": {"commit": "0123", "dirty": False}}, folder=tmp_path)


def test_the_former_code_is_that_of_the_recorded_commit_or_there_is_no_certificate(tmp_path, monkeypatch):
    now = (REPOSITORY / "workflow/scripts/snaketrain/training/step.py").read_text()
    former = now.replace("import torch\n", "import torch\nBEFORE = 1\n", 1)
    assert former != now
    monkeypatch.setattr(certify, "code_at", lambda commit, changes, folder: tmp_path / "code")
    change = Change(recorded(tmp_path, former, digest_of_source(former)))
    monkeypatch.setattr(change, "now", {"snaketrain.training.step": digest_of_source(now)})
    assert change.names == ["snaketrain.training.step"]
    (found,) = change.differences.values()
    assert [each.text for each in found.removed] == ["BEFORE = 1"] and not found.required
    change.then["snaketrain.training.step"] = "another"
    with pytest.raises(NotCertified, match=r"snaketrain\.training\.step as it was .* commit 0123"):
        change._former()


@pytest.mark.parametrize(
    ("checkpoints", "logged", "spans"),
    [
        ([0, 100], 1, [(0, 100)]),
        ([0, 30, 60, 100], 1, [(0, 35), (60, 100)]),
        ([0, 26, 60, 100], 1, [(0, 20), (26, 35), (60, 100)]),
        ([0, 26, 60, 100], 25, [(0, 25), (26, 50), (60, 100)]),
        ([0, 10, 100], 10, [(0, 100)]),
    ],
)
def test_the_first_steps_the_end_of_the_warmup_and_the_last_interval_are_replayed(checkpoints, logged, spans):
    events = [{"event": "attempt", "steps": 100}, *({"event": "train", "step": step} for step in range(logged, 101, logged))]
    training = {"batch_size": 1, "warmup": 0.3, "task": {"use": "text_classification"}}
    found = segments(SimpleNamespace(checkpoints=checkpoints, events=events, run={"settings": {"train": training}}))
    assert [(each.first, each.last) for each in found] == spans


# --- what a certificate holds for


@pytest.fixture
def certified(tmp_path) -> Path:
    """A finished training whose changed code is certified."""
    Job(tmp_path / "manifest.json", JobSettings("train_model", {"train": {"seed": 1}}, {"mine.py": "old"})).finish({"data": "x"}, [], {}, 0)
    made = previous_manifest(tmp_path)
    assert made
    write_checked(tmp_path / FILE, {"identity": made.identity, "then": {"mine.py": "old"}, "now": {"mine.py": "new", "other": "same"}})
    return tmp_path


def test_a_certificate_holds_for_its_training_its_settings_and_its_code(certified):
    planned = JobSettings("train_model", {"train": {"seed": 1}}, {"mine.py": "new"})
    assert as_certified(certified, planned) == JobSettings("train_model", {"train": {"seed": 1}}, {"mine.py": "old"}, {"mine.py": "new"})
    for other in ({"mine.py": "newer"}, {"mine.py": "new", "further.py": "new"}):
        assert as_certified(certified, JobSettings("train_model", {"train": {"seed": 1}}, other)) is None
    assert as_certified(certified, JobSettings("train_model", {"train": {"seed": 2}}, {"mine.py": "new"})) is None
    Job(certified / "manifest.json", JobSettings("train_model", {"train": {"seed": 1}}, {"mine.py": "old"})).finish(
        {"data": "y"}, [], {}, 0
    )
    assert as_certified(certified, planned) is None


def test_another_training_says_the_code_that_it_is_made_with(certified):
    planned = as_certified(certified, JobSettings("train_model", {"train": {"seed": 1}}, {"mine.py": "new"}))
    assert planned
    job = Job(certified / "manifest.json", planned)
    assert take_over(job, {"data": "x"}).given == planned
    assert take_over(job, {"data": "other"}).given == JobSettings("train_model", {"train": {"seed": 1}}, {"mine.py": "new"})


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({"identity": "another"}, "it is not finished"),
        ({"mixed": [{"step": 3}]}, "its code or settings were changed in its middle"),
        ({"code": {"snaketrain.training.checkpoints.ranking": "other"}}, r"\.ranking.*: which checkpoints are kept"),
    ],
)
def test_what_replays_do_not_show_is_not_certified(certified, run, why):
    made = previous_manifest(certified)
    assert made
    training = SimpleNamespace(folder=certified, run={"identity": made.identity, "mixed": []} | run)
    with pytest.raises(NotCertified, match=why):
        certify.certify(training, 1)


# --- a workflow

MINE = """from snaketrain.tasks.text_classification import TextClassification


class Mine(TextClassification):
    def training_step(self, modules, batch):
        loss = super().training_step(modules, batch)
        if loss > 1000:
            loss = 2 * loss
        return loss
"""


def certifying(folder: Path, code: int) -> str:
    command = [warm_python(), FOLDER / "certify.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limits.seconds(300))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_harmless_edit_makes_no_training_stale_and_others_do(tmp_path):
    config = configuration()
    config["train"] |= {"task": {"use": "mine.py:Mine"}}
    config["runs"] = {"small": {}}
    folder = make_workspace(tmp_path / "workspace", **config)
    (folder / "mine.py").write_text(MINE)
    snakemake(folder)
    assert "small: its code is what it was" in certifying(folder, 0)

    (folder / "mine.py").write_text(MINE.replace("return loss", "return 1.001 * loss"))
    told = certifying(folder, 1)
    assert "small: changed statements: 1 in mine.py" in told and "small: NOT certified: step " in told and "train/loss is " in told
    (folder / "mine.py").write_text(MINE.replace("2 * loss", "3 * loss"))
    assert "small: NOT certified: the replays are equal, but none of them executed mine.py, line 8" in certifying(folder, 1)
    assert "train_model" in snakemake(folder, "-n").stdout

    (folder / "mine.py").write_text(MINE.replace("return loss", "returned = loss\n        return returned"))
    told = certifying(folder, 0)
    assert "small: certified: the results of the changed code are equal in 22 of 22 steps" in told
    planned = snakemake(folder, "-n").stdout
    assert "evaluate_model" in planned and "train_model" not in planned  # nothing certifies the code of an evaluation
    snakemake(folder)
    assert "Nothing to be done" in snakemake(folder, "-n").stdout
    assert read_checked(folder / "results/runs/small/training/run.json")["code"]["mine.py"] == digest_of_source(MINE)
