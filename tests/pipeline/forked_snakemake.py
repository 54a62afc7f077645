"""What a forked process runs for `snakemake`: with the packages of the Snakefile's folder, and not with those that the tests have imported."""

import sys

from snakemake.cli import main

for name in [name for name in sys.modules if name.partition(".")[0] == "snaketrain"]:
    del sys.modules[name]
main()
