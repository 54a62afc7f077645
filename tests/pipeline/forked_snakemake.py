"""What a forked process runs for `snakemake`: with the package of the Snakefile's folder, and not with the one that the tests have imported."""

import sys

from snakemake.cli import main

for name in [name for name in sys.modules if name.partition(".")[0] == "snaketrain"]:
    del sys.modules[name]
main()
