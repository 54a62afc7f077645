"""Data prepared in shards on the cluster: four are one submission, which a killed workflow leaves behind and another one adopts."""

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pipeline.workspace import read_configuration, sentences, write_configuration, write_part

from slurm import lab
from snaketrain.runtime.journal import all_events
from snaketrain.runtime.manifests import read_manifest

pytest.importorskip("snaketrain.extras.shards")

RESOURCES = ("slurm_account=default", "slurm_partition=normal", "runtime=10", "mem_mb=500")  # four shards fit on a node


@pytest.mark.slow
def test_groups_that_a_killed_workflow_left_are_adopted(cluster, tmp_path):
    folder = lab.make(tmp_path / "shards", nodes="1", threads=1)
    for number in range(6):
        write_part(folder, number, sentences(240)[40 * number :][:40])
    config = read_configuration(folder)
    config["data"] |= {"train": {"path": "raw/*.csv"}, "shards": 6, "labels": {"0": "0", "1": "1"}}
    write_configuration(folder, config)
    killed = lab.Workflow(folder, "--until", "prepare_data", "--default-resources", *RESOURCES)
    with waiting_jobs():  # a group that is left with some shards done is another one than would be submitted
        lab.until(lambda: sum("prepare_shard" in name for name in submitted(folder)) == 2, "shards are submitted", workflow=killed)
        killed.signal(signal.SIGKILL)
        killed.end()
        subprocess.run([*killed.command, "--unlock"], cwd=folder, check=True, capture_output=True)
        following = lab.Workflow(folder, "--until", "prepare_data", "--default-resources", *RESOURCES)
        lab.until(lambda: following.printed().count("was left by an earlier workflow") == 2, "it adopts both", workflow=following)
    following.finish()

    (manifest,) = folder.glob("results/data/*/manifest.json")
    data, splits = manifest.parent.name, read_manifest(manifest).facts["splits"]
    groups = [f"rule_{data}-prepare_shard-{number}_prepare_shard" for number in (0, 1)]
    assert submitted(folder) == Counter({name: 1 for name in (*groups, f"rule_prepare_data_wildcards_{data}")})
    assert sum(split["examples"] for split in splits.values()) == 240


@contextmanager
def waiting_jobs() -> Iterator[None]:
    """No job starts."""
    lab.slurm("scontrol", "update", "partitionname=normal", "state=down")
    try:
        yield
    finally:
        lab.slurm("scontrol", "update", "partitionname=normal", "state=up")


def submitted(folder: Path) -> Counter[str]:
    return Counter(event["comment"] for event in all_events(folder / ".snakemake/slurm_jobs.jsonl") if event["event"] == "submitted")
