"""The side of Snakemake: which jobs there are, what makes them stale, how they are started, on a cluster too."""
