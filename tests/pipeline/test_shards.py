"""Data prepared in shards, by a real workflow: only what changed is prepared again."""

import csv
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.test_staleness import configure, dry_run, jobs_in
from pipeline.workspace import REPOSITORY, configuration, make_workspace, sentences, snakemake

PREPARES = {"survey_shard", "decide_classes", "prepare_shard", "prepare_data"}


def write_part(folder: Path, number: int, rows: list[tuple[str, object]]) -> None:
    (folder / "raw").mkdir(exist_ok=True)
    with open(folder / f"raw/part-{number}.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    """Five files in two shards, whose classes are not listed."""
    folder = make_workspace(tmp_path_factory.mktemp("shards") / "project")
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(REPOSITORY / name)
    for number in range(5):
        write_part(folder, number, sentences(200)[40 * number :][:40])
    data = configuration()["data"] | {"train": {"path": "raw/*.csv"}, "shards": 2, "labels": None}
    configure(folder, data=data, runs={"small": {}})
    printed = snakemake(folder, "--until", "prepare_data").stderr
    assert "survey_shard 2, decide_classes 1, prepare_shard 2, prepare_data 1" in printed
    return folder


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """When each part was written, and what is in it."""
    return {path.parent.name: (path.stat().st_ino, path.read_bytes()) for path in folder.glob("results/data/*/parts/*/train.arrow")}


def facts(folder: Path) -> dict:
    (manifest,) = folder.glob("results/data/*/manifest.json")
    return json.loads(manifest.read_text())["facts"]


def test_another_file_prepares_no_other_one_again(sharded):
    before = contents(sharded)
    assert len(before) == 5 and facts(sharded)["label_names"] == ["0", "1"]
    assert sum(split["examples"] for split in facts(sharded)["splits"].values()) == 200
    assert not PREPARES & jobs_in(dry_run(sharded))

    write_part(sharded, 0, sentences(240)[200:])
    assert PREPARES | {"fetch_data"} <= jobs_in(dry_run(sharded))
    snakemake(sharded, "--until", "prepare_data")
    after = contents(sharded)
    assert len(after) == 5 and len(after.items() & before.items()) == 4, "a part of an earlier file is removed"
    assert sum(split["examples"] for split in facts(sharded)["splits"].values()) == 200


@pytest.mark.slow
def test_another_number_of_shards_changes_nothing(sharded):
    (manifest,) = sharded.glob("results/data/*/manifest.json")
    before, written = contents(sharded), manifest.read_bytes()
    configure(sharded, data__shards=3)
    snakemake(sharded, "--until", "prepare_data")
    assert contents(sharded) == before and manifest.read_bytes() == written
    assert {path.name for path in sharded.glob("results/data/*/shards/*")} == {f"0000{number}-of-00003" for number in range(3)}


def test_a_damaged_part_is_restored(sharded):
    damaged = next(sharded.glob("results/data/*/parts/*/dev.arrow"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    planned = dry_run(sharded)
    assert {"prepare_shard", "prepare_data"} <= jobs_in(planned) and not {"survey_shard", "fetch_data"} & jobs_in(planned)
    damaged.write_bytes(content)


PLACES = {"survey_shard": "surveys", "decide_classes": "classes", "prepare_shard": "parts", "prepare_data": "tokenizer"}


@pytest.mark.slow
@pytest.mark.parametrize("stage", PLACES)
def test_a_killed_job_leaves_nothing_that_is_taken_for_complete(sharded, stage):
    """`benchmarks/scaling_preparation.py` does so more often."""
    (data,), wanted = sharded.glob("results/data/*"), prepared(sharded)
    jobs, (join,) = commands(sharded, stage), commands(sharded, "prepare_data")
    draw = random.Random(0)
    for _ in range(3):
        shutil.rmtree(data / PLACES[stage])
        began = time.monotonic()
        process = subprocess.Popen(["bash", "-c", f"exec {jobs[0]}"], cwd=sharded, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (data / PLACES[stage]).exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, (time.monotonic() - began) / 10))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for job in [*jobs, join]:
            subprocess.run(["bash", "-c", job], cwd=sharded, check=True, capture_output=True)
        assert prepared(sharded) == wanted


def prepared(folder: Path) -> tuple[dict, bytes]:
    (manifest,) = folder.glob("results/data/*/manifest.json")
    return json.loads(manifest.read_text())["files"], manifest.with_name("report.json").read_bytes()


def commands(folder: Path, stage: str) -> list[str]:
    """The commands of the jobs whose results exist, from their logs."""
    found = [log.read_text().splitlines()[0] for log in sorted((folder / "logs" / stage).rglob("*.log"))]
    return [each for each in found if (folder / next(w for w in shlex.split(each) if w.startswith("results/data/"))).exists()]
