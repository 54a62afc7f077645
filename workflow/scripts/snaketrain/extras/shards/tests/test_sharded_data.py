"""Data prepared in shards, by a real workflow: only what changed is prepared again."""

import json
import sys
from pathlib import Path

import pytest
from pipeline.test_staleness import configure, dry_run, jobs_in
from pipeline.workspace import REPOSITORY, configuration, make_workspace, sentences, snakemake, write_part

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import kill_preparation

PREPARES = {"prepare_shard", "prepare_data"}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    """Five files in two shards."""
    folder = make_workspace(tmp_path_factory.mktemp("shards") / "project")
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(REPOSITORY / name)
    for number in range(5):
        write_part(folder, number, sentences(200)[40 * number :][:40])
    data = configuration()["data"] | {"train": {"path": "raw/*.csv"}, "shards": 2, "labels": {"0": "0", "1": "1"}}
    configure(folder, data=data, runs={"small": {}})
    printed = snakemake(folder, "--until", "prepare_data").stderr
    assert "Compare the runs" not in printed, "the page of an earlier comparison, or none"
    assert "prepare_shard 2, prepare_data 1" in printed
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
    assert {"prepare_shard", "prepare_data"} <= jobs_in(planned) and "fetch_data" not in jobs_in(planned)
    damaged.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("stage", kill_preparation.WORKS_IN)
def test_a_killed_job_leaves_nothing_that_is_taken_for_complete(sharded, stage):
    """`benchmarks/kill_preparation.py` does so more often."""
    found = kill_preparation.kill_trials(sharded, stage, 3)
    assert (found.killed, found.problems) == (3, [])
