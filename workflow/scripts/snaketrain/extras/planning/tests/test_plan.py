"""`snakemake plan` on finished runs, and the check before any job that refuses a run which cannot fit."""

import json
import shutil

import pytest
from pipeline.workspace import configuration, snakemake, write_configuration

pytestmark = pytest.mark.lengthy


def test_plan_and_refusal(workspace, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(workspace, folder, symlinks=True)

    printed = snakemake(folder, "plan").stdout
    assert "small: " in printed and "other: " in printed
    assert "the data is not prepared yet" not in printed
    steps = json.loads((folder / "results/runs/small/training/journal.jsonl").read_text().splitlines()[0])["steps"]
    assert printed.count(f"  {steps} steps, ") == 2, "as many as were taken"
    assert "measured in other, small" in printed  # their rates, from the journals of the finished trainings

    config = configuration()
    config["compute"] = {"threads": 1, "memory_gb_of_gpu": 0.5}
    config["runs"] = {"small": {}, "large": {"model.arguments.hidden_size": 128, "model.arguments.intermediate_size": 2**18}}
    write_configuration(folder, config)
    for attempt in ("planned", "stored"):
        refused = snakemake(folder, "--dry-run", check=False)
        assert refused.returncode, attempt
        assert "compute.memory_gb_of_gpu: is 0.5, but each of 1 processes needs" in refused.stderr + refused.stdout
        assert "(run large)" in refused.stderr + refused.stdout and "(run small)" not in refused.stderr + refused.stdout
        assert ("planning the memory of" in refused.stderr) == (attempt == "planned")
    assert len(json.loads((folder / ".snakemake/snaketrain-plans.json").read_text())["plans"]) == 1, "a run that was trained is not planned"
