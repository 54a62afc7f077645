"""What a forked process runs for `snakemake`: with the package beside the Snakefile, and not with the one that the tests have imported."""

import os
import sys
from pathlib import Path

from snakemake.cli import main

scripts = str(Path(sys.argv[sys.argv.index("--snakefile") + 1]).parent / "workflow/scripts")
sys.path.insert(0, scripts)
os.environ["PYTHONPATH"] = scripts  # of what it starts
PACKAGES = ("snaketrain", "snakemake_executor_plugin_slurm_steady", "snakemake_logger_plugin_snaketrain")
for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
    del sys.modules[name]
main()
