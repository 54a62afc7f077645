"""Where SLURM's programs find their configuration. Snakemake's plugin removes all variables of SLURM from the shell of a job, SLURM_CONF included."""

import os

KEPT = "SNAKETRAIN_SLURM_CONF"


def keep_slurm_conf() -> None:
    """In each process that parses the Snakefile, from the login node down to the shell of a job."""
    if "SLURM_CONF" in os.environ:
        os.environ[KEPT] = os.environ["SLURM_CONF"]
    elif KEPT in os.environ:
        os.environ["SLURM_CONF"] = os.environ[KEPT]
