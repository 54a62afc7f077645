"""A custom stage outside the repository: a Snakefile that includes ours, or uses it as a module, and adds a rule."""

import shutil
import subprocess
import sys
from pathlib import Path

import limits
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RULE = """
rule count_journal_lines:
    input:
        "results/runs/{run}/training/manifest.json",
    output:
        "results/runs/{run}/lines.txt",
    shell:
        "wc -l < results/runs/{wildcards.run}/training/journal.jsonl > {output:q}"
"""


MODULE = """
module training:
    snakefile: "{workflow}"

use rule * from training
"""
WAYS = {
    "include": f'include: "{REPOSITORY}/Snakefile"\n\n',
    "module": MODULE.format(workflow=REPOSITORY / "workflow/Snakefile"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_custom_rule_runs_after_a_training(tmp_path, way):
    (tmp_path / "own.smk").write_text(WAYS[way] + RULE)
    shutil.copytree(REPOSITORY / "config", tmp_path / "config")
    command = [Path(sys.executable).with_name("snakemake"), "--snakefile", "own.smk", "-n", "results/runs/from_scratch/lines.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=limits.seconds(60))
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = [line.split() for line in (done.stdout + done.stderr).partition("Job stats:")[2].splitlines()]
    counts = {job[0]: int(job[1]) for job in jobs if len(job) == 2 and job[1].isdecimal()}
    assert counts["train_model"] == counts["count_journal_lines"] == 1 and "evaluate_model" not in counts
