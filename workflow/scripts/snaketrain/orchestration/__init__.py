"""Snakemake's side: which jobs there are, what makes them stale, and how they are started, here and on a cluster."""
