"""SLURM_CONF survives Snakemake's SLURM plugin, which removes it from the shells of jobs."""

import os

from snaketrain.slurm.client import keep_slurm_conf


def test_slurm_conf_reaches_the_shell_of_a_job(monkeypatch):
    monkeypatch.setattr(os, "environ", {"SLURM_CONF": "/login/slurm.conf"})
    keep_slurm_conf()
    os.environ["SLURM_CONF"] = "/node/slurm.conf"  # slurmd may know a better one
    keep_slurm_conf()
    del os.environ["SLURM_CONF"]  # as the plugin does, before it starts the innermost Snakemake
    keep_slurm_conf()
    assert os.environ["SLURM_CONF"] == "/node/slurm.conf"


def test_without_a_configuration_nothing_is_set(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    keep_slurm_conf()
    assert os.environ == {}
