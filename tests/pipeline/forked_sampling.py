"""What a forked process runs for `sample_runs.py`, whose workflows are forked as well."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workflow/scripts/tools"))

import sample_runs

words_of = sample_runs.snakemake


def forked(args: argparse.Namespace) -> list[str]:
    python, *module, snakefile_option = words_of(args)[:4]
    assert [*module, snakefile_option] == ["-m", "snakemake", "--snakefile"]
    return [python, str(Path(__file__).with_name("forked_snakemake.py")), *words_of(args)[3:]]


sample_runs.snakemake = forked
sample_runs.main()
