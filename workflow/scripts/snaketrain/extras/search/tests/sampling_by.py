"""`sample.py` whose workflows are started by the script in the first argument, instead of by `python -m snakemake`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import sample

SNAKEMAKE = sys.argv.pop(1)
words_of = sample.snakemake


def by_script(args: argparse.Namespace) -> list[str]:
    python, *module, snakefile_option = words_of(args)[:4]
    assert [*module, snakefile_option] == ["-m", "snakemake", "--snakefile"]
    return [python, SNAKEMAKE, *words_of(args)[3:]]


sample.snakemake = by_script
sample.main()
