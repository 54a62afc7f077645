"""Stages that meet a full disk end with an error of one line, and incomplete results do not count."""

import json
import os
import subprocess
import sys

import pytest

from pipeline.workspace import REPOSITORY
from snaketrain.runtime.stages import settings_words

RUN = "results/runs/small"


@pytest.fixture
def full_disk(tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(folder)]).returncode:
        pytest.skip("mounting a small file system needs root")
    with open(folder / "filler", "wb") as filler:
        filler.write(b"0" * 36_000)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("stage", "arguments"),
    [
        ("prepare_data", ["--raw", "{raw}/manifest.json", "--tokenizer", "{tokenizer}/manifest.json"]),
        ("select_checkpoint", ["--training", f"{RUN}/training/manifest.json", "--data", "{data}/manifest.json"]),
        ("compare_runs", ["--runs-root", "results/runs", "--runs", "small", "other"]),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_no_manifest(workspace, full_disk, stage, arguments):
    places = {name: next((workspace / "results").glob(f"{folder}/*")) for name, folder in
              {"raw": "raw", "data": "data", "tokenizer": "models"}.items()}  # fmt: skip
    settings = json.loads((workspace / RUN / "training/run.json").read_text())["settings"] | {"select": {"metric": "accuracy"}}
    output = full_disk / "made/manifest.json"
    command = [
        sys.executable,
        REPOSITORY / f"workflow/scripts/{stage}.py",
        "--output",
        output,
        *settings_words(full_disk.parent / "made", stage, settings),
    ]
    done = subprocess.run([*command, *(word.format(**places) for word in arguments)], cwd=workspace, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert str(full_disk) in done.stderr.splitlines()[-1] and "cannot be written: the disk is full" in done.stderr.splitlines()[-1]
    assert not output.exists()
