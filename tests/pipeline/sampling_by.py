"""`sample_runs.py` whose workflows are started by the script in the first argument, instead of by `python -m snakemake`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workflow/scripts/tools"))

import sample_runs

SNAKEMAKE = sys.argv.pop(1)
words_of = sample_runs.snakemake


def by_script(args: argparse.Namespace) -> list[str]:
    python, *module, snakefile_option = words_of(args)[:4]
    assert [*module, snakefile_option] == ["-m", "snakemake", "--snakefile"]
    return [python, SNAKEMAKE, *words_of(args)[3:]]


sample_runs.snakemake = by_script
sample_runs.main()
